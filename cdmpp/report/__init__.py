"""Reports: tables, plots and self-contained HTML pages."""

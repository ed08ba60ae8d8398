"""What commands share: options, progress bars, tables on the terminal."""

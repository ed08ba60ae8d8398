"""Everything that needs TVM: reading records and modules, measuring, searching, the plug-ins."""

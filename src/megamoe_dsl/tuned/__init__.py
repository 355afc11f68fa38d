"""Measured configurations, a JSON file per GPU, which `megamoe tune` writes.  Knows nothing of what is configured."""

from .table import DEFAULT_GPU, Entry, EpEntry, GemmEntry, LaunchEntry, Measured, Table, TableError, tuned_table

__all__ = ["DEFAULT_GPU", "Entry", "EpEntry", "GemmEntry", "LaunchEntry", "Measured", "Table", "TableError", "tuned_table"]

"""Measured configurations, which `megamoe tune` writes: a JSON file per GPU and kind.  Does not depend on kernels."""

from .table import DEFAULT_GPU, Entry, EpEntry, GemmEntry, LaunchEntry, Measured, Table, TableError, tuned_table

__all__ = ["DEFAULT_GPU", "Entry", "EpEntry", "GemmEntry", "LaunchEntry", "Measured", "Table", "TableError", "tuned_table"]

"""Other libraries' names for what this one does."""

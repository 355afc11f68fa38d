"""Options of commands and scripts, each declared once as a field of a dataclass."""

"""GEMMs, dense and grouped by expert: of numbers with block scales, and of BF16."""

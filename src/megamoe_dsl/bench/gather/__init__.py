"""GEMMs over the rows of experts: data with a reference."""

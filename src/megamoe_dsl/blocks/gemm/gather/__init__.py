"""GEMMs over the rows of experts that gather their rows of tokens themselves."""

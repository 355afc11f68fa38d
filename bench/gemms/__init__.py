"""GEMMs beside other projects'."""

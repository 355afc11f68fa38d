"""GEMMs over the rows of experts on SM100: CTA pairs, gather4 loads, scales that the tensor core applies."""

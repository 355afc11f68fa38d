"""GEMMs of CTA pairs: E4M3 or E2M1 weights by rows of either, with scales that the tensor core applies; BF16 by BF16."""

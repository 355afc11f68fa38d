"""Block-scaled GEMMs of CTA pairs: E4M3 or E2M1 weights by rows of either, UE8M0 scales of 32, which the tensor core applies."""

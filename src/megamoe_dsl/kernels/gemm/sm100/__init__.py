"""Block-scaled GEMMs of CTA pairs: E2M1 weights by E4M3 or E2M1 rows, E4M3 weights by E4M3 rows, UE8M0 scales of 32, which the tensor core applies."""

"""The two halves of a layer on SM100: tiles of CTA pairs, and scales that the tensor core applies."""

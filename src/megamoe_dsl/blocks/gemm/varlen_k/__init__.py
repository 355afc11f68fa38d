"""A grouped GEMM whose K are the rows of groups: both operands are MN-major, and one has gathered rows (gradients of weights)."""

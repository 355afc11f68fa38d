"""Times of a MoE layer on one GPU, beside other ways to compute it."""

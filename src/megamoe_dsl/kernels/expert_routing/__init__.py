"""What goes before and after the GEMMs over the rows of experts: tokens quantized and routed, and the sum of each token's results."""

"""What chips define: tensor maps, swizzles, register fragments, orders of scale factors, tensor memory.  Pure Python."""

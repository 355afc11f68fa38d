"""Test data of GEMMs and of the halves of a layer, with what their kernels are to compute."""

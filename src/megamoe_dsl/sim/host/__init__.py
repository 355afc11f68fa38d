"""The host side of the simulator: compiled host functions of CuTe DSL whose CUDA calls are answered here, without a driver or a GPU."""

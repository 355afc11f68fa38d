"""A stand-in for a CUDA host: public CuTe DSL programs run on CPU tensors, and their launches go to the simulator.

`program` runs one program; `torch_cuda`, `driver` and `dsl` are what it finds in place of torch.cuda, the CUDA driver and a few functions
of the DSL; `launches` simulates what it launches.
"""

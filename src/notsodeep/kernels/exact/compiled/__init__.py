"""The pair equation of a DEQ solved in one pass from Gram values to kernels: numba on a CPU, Triton on CUDA."""

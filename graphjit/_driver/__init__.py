"""The CUDA driver as graphjit sees it: one interface, two implementations."""

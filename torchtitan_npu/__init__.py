"""Optimisation layers and tools for device npu, in Python against the public API of torch and torch_npu."""

"""Measurements of speed, each as a ratio to CPU PyTorch in the same run: ``python -m benchmarks --help``."""

"""Layer 1: fused operators. :func:`optimize` puts them in place of modules that are composed of many."""

from torchtitan_npu.fused.optimize import Report, Swap, optimize

__all__ = ["Report", "Swap", "optimize"]

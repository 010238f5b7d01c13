"""Automatic operator fusion: tile programs, their scheduler, and printers for the host and for Ascend.

Knows nothing of torch. ``docs/autofusion.md`` shows how it is used.
"""

from graph_autofusion.dtypes import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, DType
from graph_autofusion.host.compiler import CompilerError
from graph_autofusion.instructions import INSTRUCTIONS, REDUCTIONS
from graph_autofusion.interpreter import interpret
from graph_autofusion.jit import FusedKernel, jit_compile, register_fused_kernel, unregister_fused_kernel
from graph_autofusion.kernel import HostKernel
from graph_autofusion.patterns import FusionPattern, detect_fusion_pattern
from graph_autofusion.program import Stride, TileBuilder, TileProgram
from graph_autofusion.schedule import schedule
from graph_autofusion.spec import validate

__all__ = [
    "BF16",
    "BOOL",
    "F16",
    "F32",
    "F64",
    "I8",
    "I16",
    "I32",
    "I64",
    "INSTRUCTIONS",
    "REDUCTIONS",
    "U8",
    "CompilerError",
    "DType",
    "FusedKernel",
    "FusionPattern",
    "HostKernel",
    "Stride",
    "TileBuilder",
    "TileProgram",
    "detect_fusion_pattern",
    "interpret",
    "jit_compile",
    "register_fused_kernel",
    "schedule",
    "unregister_fused_kernel",
    "validate",
]

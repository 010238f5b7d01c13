"""The vendor's numbers of dtypes: what operators with an argument ``dst_type: int`` take for dtypes of CANN's.

``torch_npu.float8_e4m3fn`` is 292: 256 more than CANN's aclDataType, so that it is no number of a ``torch.dtype``.
The names, but for those that PyTorch has no dtype for (int4, hifloat8, float6, float4, uint1, string), are torch's.
"""

from __future__ import annotations

_ABOVE_TORCH = 256
_ACL_DATA_TYPES = {
    "float32": 0, "float16": 1, "int8": 2, "int32": 3, "uint8": 4, "int16": 6, "uint16": 7, "uint32": 8, "int64": 9,
    "uint64": 10, "float64": 11, "bool": 12, "string": 13, "complex64": 16, "complex128": 17, "bfloat16": 27,
    "int4": 29, "uint1": 30, "complex32": 33, "hifloat8": 34, "float8_e5m2": 35, "float8_e4m3fn": 36,
    "float8_e8m0fnu": 37, "float6_e3m2": 38, "float6_e2m3": 39, "float4_e2m1fn_x2": 40, "float4_e1m2fn_x2": 41,
}  # fmt: skip

NUMBERS: dict[str, int] = {name: _ABOVE_TORCH + number for name, number in _ACL_DATA_TYPES.items()}

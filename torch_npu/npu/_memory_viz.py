"""PyTorch's tools for memory snapshots, which read those of npu as they are."""

import sys

from torch.cuda import _memory_viz

sys.modules[__name__] = _memory_viz

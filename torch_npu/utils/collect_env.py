"""What a report of a problem should say about the machine: ``python -m torch_npu.utils.collect_env``."""

from torch.utils import collect_env

import torch_npu
from torch_npu.npu.utils import get_cann_version

__all__ = ["get_cann_version", "get_env_info"]


def get_env_info() -> str:
    """PyTorch's report, and which CANN is used and why."""
    lines = [f"torch_npu: {torch_npu.__version__}"]
    lines += [f"CANN {key}: {value}" for key, value in torch_npu.cann_info().items()]
    return "\n".join([collect_env.get_pretty_env_info(), "", *lines])


if __name__ == "__main__":
    print(get_env_info())

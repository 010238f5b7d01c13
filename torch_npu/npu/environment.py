"""Environment variables of the vendor's torch_npu that concern the start of CANN, read when torch_npu is imported.

- ``TORCH_ACL_INIT_CONFIG_PATH``: a JSON file for aclInit, such as
  ``{"dump": {"dump_scene": "lite_exception"}, "defaultDevice": {"default_device": "0"}}``. What is wrong with it is
  raised by whatever first names or uses a device. The software CANN takes the file and ignores what it says.
- ``ACL_OP_INIT_MODE``: 0, 1 or 2, when legacy operators are initialised. Accepted: there are none here.
"""

import json
import os
import warnings
from pathlib import Path

from torch_npu import _C

_CONFIG, _INIT_MODE = "TORCH_ACL_INIT_CONFIG_PATH", "ACL_OP_INIT_MODE"


def apply() -> None:
    """Hands the settings over, before a device is used."""
    path = os.environ.get(_CONFIG)
    if path is not None:
        problem = _problem_of(Path(path))
        _C._set_init_config("" if problem else os.path.realpath(path), problem)
    mode = os.environ.get(_INIT_MODE)
    if mode is not None and mode not in ("0", "1", "2"):
        warnings.warn(
            f"Get env {_INIT_MODE} not in [0, 1, 2], but {mode!r}: it is ignored, as every operator here is an aclnn "
            "operator",
            stacklevel=2,
        )


def _problem_of(path: Path) -> str:
    """Why the file cannot be handed to aclInit; "" if it can. The rules are the vendor's for CANN 8.3 and later."""
    if not path.exists():
        return f"{_CONFIG}={path} is invalid: there is no such file; set it to the path of a JSON file"
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        return f"Failed to open user acl json {path} ({_CONFIG}): {error}"
    except ValueError as error:
        return f"Failed to parse user acl json {path} ({_CONFIG}): {error}"
    device = config.get("defaultDevice") if isinstance(config, dict) else None
    if not isinstance(device, dict):
        return (
            f'User acl json {path} ({_CONFIG}) lacks \'defaultDevice\': add "defaultDevice": {{"default_device": "0"}}'
        )
    if device.get("default_device") != "0":
        return (
            f"User acl json {path} ({_CONFIG}) requires 'defaultDevice.default_device' to be \"0\", but it is "
            f"{device.get('default_device')!r}"
        )
    return ""

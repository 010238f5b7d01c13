"""Images [N, C, H, W] on their way to a model, as torchvision's transforms make of them."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

_MOMENTS = "float[]? mean, float[]? variance, int dtype=0"
_DTYPES = (torch.float32, torch.float16)


def _normalized(operator: str, x: Tensor, mean: list[float] | None, divisor: list[float] | None, number: int) -> Tensor:
    if number not in (0, 1):
        refuse(operator, "dtype 0 (float32) or 1 (float16)", number)
    if x.dim() != 4 or mean is None or divisor is None or not len(mean) == len(divisor) == x.shape[1]:
        refuse(operator, "an image [N, C, H, W], and mean and variance of C numbers", [list(x.shape), mean, divisor])
    center, width = (torch.tensor(values, device=x.device).view(-1, 1, 1) for values in (mean, divisor))
    return ((x.float() - center) / width).to(_DTYPES[number])


@composed(f"image_normalize(Tensor self, {_MOMENTS}) -> Tensor")
def image_normalize(self: Tensor, mean: list[float] | None, variance: list[float] | None, dtype: int = 0) -> Tensor:
    """(self - mean) / variance of each channel of [N, C, H, W], in float32, or float16 with dtype 1.

    As torchvision's normalize, of which variance is the std.
    """
    return _normalized("image_normalize", self, mean, variance, dtype)


@composed(f"image_normalize_(Tensor(a!) self, {_MOMENTS}) -> Tensor(a!)")
def image_normalize_(self: Tensor, mean: list[float] | None, variance: list[float] | None, dtype: int = 0) -> Tensor:
    """image_normalize in place, of a float32 image with dtype 0 or a float16 one with dtype 1."""
    name = "image_normalize_"
    result = _normalized(name, self, mean, variance, dtype)
    if self.dtype != result.dtype:
        raise TypeError(f"{name}: expected an image in {result.dtype} with dtype {dtype}, got {self.dtype}")
    return self.copy_(result)


@composed("img_to_tensor(Tensor self) -> Tensor")
def img_to_tensor(self: Tensor) -> Tensor:
    """A uint8 image [N, C, H, W] over 255, in float32."""
    if self.dtype != torch.uint8 or self.dim() != 4:
        raise TypeError(f"img_to_tensor: expected an image [N, C, H, W] in uint8, got {self.dtype} {list(self.shape)}")
    return self.float() / 255


def _places(first: Tensor, last: Tensor, size: int, count: int) -> Tensor:
    """Where the rows (or columns) of crops [boxes, count] are in an image of ``size``; one alone is in the middle."""
    if count == 1:
        return ((first + last) / 2 * (size - 1)).unsqueeze(1)
    step = (last - first) * ((size - 1) / (count - 1))
    return (first * (size - 1)).unsqueeze(1) + step.unsqueeze(1) * torch.arange(count, device=first.device)


def _bilinear(images: Tensor, number: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """[boxes, C, rows, columns] at places within the images."""
    height, width = images.shape[2:]
    top, left = y.floor().clamp(0, height - 1), x.floor().clamp(0, width - 1)
    below, right = y.ceil().clamp(0, height - 1), x.ceil().clamp(0, width - 1)
    down, across = (y - top)[:, None, :, None], (x - left)[:, None, None, :]

    def at(row: Tensor, column: Tensor) -> Tensor:
        return images[number[:, None, None], :, row.long()[:, :, None], column.long()[:, None, :]].permute(0, 3, 1, 2)

    upper = at(top, left) + (at(top, right) - at(top, left)) * across
    lower = at(below, left) + (at(below, right) - at(below, left)) * across
    return upper + (lower - upper) * down


@composed(
    "crop_and_resize(Tensor self, float[]? boxes, int[] box_index, int[] crop_size, float extrapolation_value=0, "
    'str method="bilinear") -> Tensor'
)
def crop_and_resize(
    self: Tensor,
    boxes: list[float] | None,
    box_index: list[int],
    crop_size: list[int],
    extrapolation_value: float = 0,
    method: str = "bilinear",
) -> Tensor:
    """Parts of images [N, C, H, W], each resized to crop_size: [boxes, C, rows, columns] in the dtype of self.

    boxes are y1, x1, y2, x2 of each, where 0 is the first row (column) and 1 the last, box_index their images. method
    is bilinear or nearest; what lies outside is extrapolation_value. As TensorFlow's operator of this name.
    """
    name = "crop_and_resize"
    count = len(box_index)
    if self.dim() != 4 or boxes is None or len(boxes) != 4 * count or len(crop_size) != 2 or min(crop_size) < 1:
        seen = [list(self.shape), None if boxes is None else len(boxes), crop_size]
        refuse(name, "images [N, C, H, W], four numbers a box and a crop_size of two", seen)
    if method not in ("bilinear", "nearest") or any(not 0 <= i < self.shape[0] for i in box_index):
        refuse(name, f"method bilinear or nearest, and indices below {self.shape[0]}", [method, box_index])
    corners = torch.tensor(boxes, device=self.device).view(count, 4)
    number = torch.tensor(box_index, dtype=torch.int64, device=self.device)
    y1, x1, y2, x2 = corners.unbind(1)
    y = _places(y1, y2, self.shape[2], crop_size[0])
    x = _places(x1, x2, self.shape[3], crop_size[1])
    inside = ((y >= 0) & (y <= self.shape[2] - 1))[:, None, :, None]
    inside = inside & ((x >= 0) & (x <= self.shape[3] - 1))[:, None, None, :]
    if method == "nearest":  # halves away from zero, as C's round
        y, x = (y + 0.5).floor(), (x + 0.5).floor()
    found = _bilinear(self.float(), number, y, x)
    return found.where(inside, extrapolation_value).to(self.dtype)

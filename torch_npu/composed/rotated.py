"""Overlaps of rotated boxes.

Boxes are x, y, width, height or corners x1, y1, x2, y2 of the box before it is turned, and the angle in degrees that it
is turned by around its centre, from the axis of x towards that of y. Computed in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torch_npu.composed.registry import composed, refuse

# What is outside of an edge by less than this share of its length counts as on it, so that equal boxes overlap whole.
_SLACK = 1e-5


class Rectangles(NamedTuple):
    """Centres [..., 2], areas [...], and corners [..., 4, 2] around the centres."""

    centre: Tensor
    area: Tensor
    corners: Tensor

    @staticmethod
    def of(boxes: Tensor, from_corners: bool, turn: float = 1) -> Rectangles:
        """Of boxes [..., 5]. ``turn``: -1 if angles are from the axis of y towards that of x."""
        a, b, c, d, angle = boxes.float().unbind(-1)
        if from_corners:
            a, b, c, d = (a + c) / 2, (b + d) / 2, c - a, d - b
        radians = angle.deg2rad() * turn
        along = torch.stack((radians.cos(), radians.sin()), -1) * (c / 2).unsqueeze(-1)
        across = torch.stack((-radians.sin(), radians.cos()), -1) * (d / 2).unsqueeze(-1)
        corners = torch.stack((along + across, across - along, -along - across, along - across), -2)
        return Rectangles(torch.stack((a, b), -1), c * d, corners)

    def unsqueeze(self, dim: int) -> Rectangles:
        return Rectangles(*(t.unsqueeze(dim) for t in self))


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _crossings(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Where the edges of quadrangles [..., 4, 2] cross: points [..., 16, 2], and whether they do."""
    start, other = a.unsqueeze(-2), b.unsqueeze(-3)
    edge, other_edge = (a.roll(-1, -2) - a).unsqueeze(-2), (b.roll(-1, -2) - b).unsqueeze(-3)
    turn = _cross(edge, other_edge)
    parallel = turn.abs() < torch.finfo(turn.dtype).tiny
    turn = turn.masked_fill(parallel, 1)
    at, at_other = _cross(other - start, other_edge) / turn, _cross(other - start, edge) / turn
    crosses = ~parallel & (at >= 0) & (at <= 1) & (at_other >= 0) & (at_other <= 1)
    return (start + edge * at.unsqueeze(-1)).flatten(-3, -2), crosses.flatten(-2)


def _is_inside(points: Tensor, rectangle: Tensor) -> Tensor:
    """Whether points [..., 4, 2] are in rectangles [..., 4, 2] or on their edges."""
    corner = rectangle[..., :1, :]
    first, second = rectangle[..., 1:2, :] - corner, rectangle[..., 3:4, :] - corner
    result = None
    for edge in (first, second):
        along, whole = ((points - corner) * edge).sum(-1), (edge * edge).sum(-1)
        inside = (along >= -_SLACK * whole) & (along <= (1 + _SLACK) * whole)
        result = inside if result is None else result & inside
    assert result is not None
    return result


def common_area(a: Rectangles, b: Rectangles) -> Tensor:
    """The areas that rectangles have in common; shapes are broadcast."""
    # Around the point between both centres, as differences of large coordinates are inexact.
    shift = (b.centre - a.centre).unsqueeze(-2) / 2
    first, second = torch.broadcast_tensors(a.corners - shift, b.corners + shift)
    crossings, crosses = _crossings(first, second)
    points = torch.cat((crossings, first, second), -2)
    valid = torch.cat((crosses, _is_inside(first, second), _is_inside(second, first)), -1)
    # The polygon's corners by their angle around the middle. Those that are none repeat the first one: no area.
    count = valid.sum(-1, keepdim=True)
    points = points * valid.unsqueeze(-1)
    middle = points.sum(-2) / count.clamp_min(1)
    points = points - middle.unsqueeze(-2)
    angle = torch.atan2(points[..., 1], points[..., 0]).masked_fill(~valid, torch.inf)
    order = angle.argsort(-1)
    order = torch.where(torch.arange(order.shape[-1], device=order.device) < count, order, order[..., :1])
    polygon = points.gather(-2, order.unsqueeze(-1).expand_as(points))
    area = _cross(polygon, polygon.roll(-1, -2)).sum(-1).abs() / 2
    return area.masked_fill(count.squeeze(-1) < 3, 0)


def _pairs(operator: str, boxes: Tensor, query_boxes: Tensor, trans: bool) -> tuple[Rectangles, Rectangles]:
    shapes = [list(boxes.shape), list(query_boxes.shape)]
    if any(len(s) != 3 or s[2] != 5 for s in shapes) or shapes[0][0] != shapes[1][0]:
        refuse(operator, "boxes [B, N, 5] and query_boxes [B, K, 5]", shapes)
    return Rectangles.of(boxes, trans).unsqueeze(2), Rectangles.of(query_boxes, trans).unsqueeze(1)


@composed("npu_rotated_overlaps(Tensor self, Tensor query_boxes, bool trans=False) -> Tensor")
def rotated_overlaps(self: Tensor, query_boxes: Tensor, trans: bool = False) -> Tensor:
    """Areas [B, N, K] that boxes [B, N, 5] and [B, K, 5] have in common; trans: they are corners and angle."""
    return common_area(*_pairs("npu_rotated_overlaps", self, query_boxes, trans)).to(self.dtype)


@composed(
    "npu_rotated_iou(Tensor self, Tensor query_boxes, bool trans=False, int mode=0, bool is_cross=True, "
    "float v_threshold=0.0, float e_threshold=0.0) -> Tensor"
)
def rotated_iou(
    self: Tensor,
    query_boxes: Tensor,
    trans: bool = False,
    mode: int = 0,
    is_cross: bool = True,
    v_threshold: float = 0.0,
    e_threshold: float = 0.0,
) -> Tensor:
    """npu_rotated_overlaps over the area of both boxes together (mode 0) or that of self (1).

    It is 0 with a box whose area is not positive.

    Raises:
        NotImplementedError: for is_cross=False and thresholds, whose results are not documented.
    """
    if mode not in (0, 1):
        refuse("npu_rotated_iou", "mode 0 or 1", mode)
    if not is_cross or v_threshold or e_threshold:
        raise NotImplementedError(
            f"npu_rotated_iou: expected is_cross=True and thresholds of 0, got is_cross={is_cross}, "
            f"v_threshold={v_threshold}, e_threshold={e_threshold}"
        )
    a, b = _pairs("npu_rotated_iou", self, query_boxes, trans)
    return overlap(a, b, of_first=mode == 1).to(self.dtype)


def overlap(a: Rectangles, b: Rectangles, of_first: bool = False) -> Tensor:
    """The common areas over those of both together, or of the first; 0 with a box without a positive area."""
    common = common_area(a, b)
    whole = (a.area if of_first else a.area + b.area - common).expand_as(common)
    return torch.where((a.area > 0) & (b.area > 0), common / whole, 0)

"""npu_mrope against a reference in float64."""

import pytest
import torch
from tolerance import assert_close

import torch_npu


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, size: int, mode: str) -> torch.Tensor:
    heads = x.double().view(len(x), -1, size).clone()
    columns = cos.shape[1]
    first, second = torch.arange(columns), torch.arange(columns) + columns
    if mode == "interleave":
        first, second = torch.arange(columns) * 2, torch.arange(columns) * 2 + 1
    a, b = heads[..., first], heads[..., second]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    heads[..., first], heads[..., second] = a * cos - b * sin, b * cos + a * sin
    return heads.view(x.shape)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mode", ["half", "interleave"])
@pytest.mark.parametrize("columns", [8, 5])
@pytest.mark.parametrize("kind", ["plain", "sections", "four", "in turn"])
def test_mrope(dtype, mode, columns, kind):
    torch.manual_seed(1)
    tokens, size = 7, 16
    query, key = torch.randn(tokens, 3 * size).to(dtype), torch.randn(tokens, size).to(dtype)
    cache = torch.randn(20, 2 * columns).to(dtype)
    cos, sin = cache.double().split(columns, 1)
    sections = {
        "plain": None,
        "sections": [2, 1, columns - 3],
        "four": [1, 1, 1, columns - 3],
        "in turn": [columns - 2, 1, 1],
    }
    section = sections[kind]
    kinds = len(section) if section else 1
    positions = torch.randint(20, (kinds, tokens))
    of_column = torch.zeros(columns, dtype=torch.int64)
    if kind == "in turn":
        of_column[1:3:3], of_column[2:3:3] = 1, 2
    elif section:
        of_column = torch.repeat_interleave(torch.arange(kinds), torch.tensor(section))
    chosen = positions[of_column].t()  # [tokens, columns]
    cos, sin = (table.gather(0, chosen) for table in (cos, sin))
    given = positions if section else positions[0]
    results = torch_npu.npu_mrope(
        given.npu(),
        query.npu(),
        key.npu(),
        cache.npu(),
        size,
        mrope_section=section,
        rotary_mode=mode,
        cache_mode="interleave" if kind == "in turn" else "default",
    )
    for actual, x in zip(results, (query, key), strict=True):
        assert actual.dtype == dtype
        assert_close(actual, turned(x, cos, sin, size, mode), terms=4)


def test_refusals():
    positions, x, cache = torch.zeros(4, dtype=torch.int32), torch.zeros(4, 32), torch.zeros(9, 8)
    arguments = [t.npu() for t in (positions, x, x, cache)]
    with pytest.raises(ValueError, match="rotary_mode must be"):
        torch_npu.npu_mrope(*arguments, 16, rotary_mode="x")
    with pytest.raises(ValueError, match="at most head_size"):
        torch_npu.npu_mrope(*arguments, 4)
    with pytest.raises(ValueError, match="one number of tokens"):
        torch_npu.npu_mrope(arguments[0][:3], *arguments[1:], 16)

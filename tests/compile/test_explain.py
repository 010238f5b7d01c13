"""torchtitan_npu.explain: the text and the page say what was fused, what was not and why."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from compile_models import Block

import torchtitan_npu


def test_text_of_a_block() -> None:
    with torch.no_grad():
        explanation = torchtitan_npu.explain(Block().eval().npu(), torch.randn(2, 7, 32).npu())
    text = str(explanation)
    (graph,) = explanation.graphs
    assert text.startswith("Block: 1 compiled graph(s)")
    assert "aten.addmm (addmm): is a matrix operator of CANN" in text
    assert graph.launches < graph.operators
    assert 0 < graph.bytes_after < graph.bytes_before
    assert 0 < graph.arena_bytes < graph.naive_bytes
    assert f"launches {graph.operators} -> {graph.launches}; bytes moved" in text


def test_page_is_well_formed_and_needs_nothing_else(tmp_path: Path) -> None:
    explanation = torchtitan_npu.explain(lambda x: torch.softmax(x @ x, -1).sum(0), torch.randn(16, 16).npu())
    explanation.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text().replace("<!DOCTYPE html>", "").replace('<meta charset="utf-8">', "")
    root = ElementTree.fromstring(page)
    assert len(root.findall(".//svg")) >= 1
    assert "http" not in page
    assert "src=" not in page


def test_checks_of_indices_are_launches() -> None:
    def function(index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(index, table) * 2

    explanation = torchtitan_npu.explain(function, torch.tensor([1, 2]).npu(), torch.randn(5, 6).npu())
    assert "check of arg0_1, before kernel_0: indices beyond the table raise" in str(explanation)
    assert explanation.graphs[0].launches == 2
    assert "<td>arg0_1</td>" in explanation.html


def test_training_has_two_graphs() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() * x).sum()

    x = torch.randn(5).npu().requires_grad_()
    explanation = torchtitan_npu.explain(lambda x: step(x).backward(), x)
    assert [graph.kind for graph in explanation.graphs] == ["forward", "backward"] or explanation.fallbacks


def test_what_is_not_compiled_is_said() -> None:
    explanation = torchtitan_npu.explain(lambda x: x + 1, torch.ones(3))
    assert "run as it is: graph of 3 nodes: no tensor of it is on device npu" in str(explanation)
    assert "Run as it is" in explanation.html


def test_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'explane'"):
        _ = torchtitan_npu.explane

"""Automatic fusion by hand: find a pattern, compile its kernel, let compiled graphs use it; write a kernel oneself."""

import torch
import torch.nn.functional as F

import graph_autofusion
import torchtitan_npu.compile
from graph_autofusion import F32, TileBuilder


def main() -> None:
    # A pattern by name. The convolution stays CANN's operator, the kernel is what follows it.
    pattern = graph_autofusion.detect_fusion_pattern("Conv2d -> GELU -> Add")
    kernel = graph_autofusion.jit_compile(pattern, backend="Ascend C", target="Ascend 910")
    print(kernel.report())
    print(kernel.source[:240], "…\n")
    try:
        kernel(torch.ones(4), torch.ones(4))
    except RuntimeError as refused:
        print("running it here:", refused, "\n")

    # The same program for this machine.
    on_host = graph_autofusion.jit_compile(pattern, backend="host", target="host")
    x, y = torch.randn(2, 8, 16)
    print("error of the host kernel:", (on_host(x, y) - (F.gelu(x) + y)).abs().max().item(), "\n")

    # From now on compiled graphs use it where the pattern is.
    graph_autofusion.register_fused_kernel(kernel)
    model = torch.nn.Conv2d(3, 4, 3, padding=1).npu()
    image, residual = torch.randn(1, 3, 8, 8).npu(), torch.randn(1, 4, 8, 8).npu()
    compiled = torch.compile(lambda image, residual: F.gelu(model(image)) + residual, backend="npu")
    with torch.no_grad():
        error = (compiled(image, residual) - (F.gelu(model(image)) + residual)).abs().max().item()
    print(torchtitan_npu.compile.reports()[0])
    print("error of the compiled graph:", error, "\n")

    # The largest pattern in a function.
    found = graph_autofusion.detect_fusion_pattern(lambda a, b: torch.softmax(a * b, -1), x, y)
    print("found:", found, "\n")

    # A kernel of one's own.
    t = TileBuilder("scaled_softmax", axes=("row",), reduced=("col",))
    scaled = t.load("x", F32) * 0.125
    e = (scaled - scaled.max()).exp()
    t.store("out", e / e.sum(), F32)
    own = graph_autofusion.jit_compile(t.build())
    print("error of scaled_softmax:", (own(x) - torch.softmax(x * 0.125, -1)).abs().max().item())


if __name__ == "__main__":
    main()

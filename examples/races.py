"""Work on a second stream that the default stream does not wait for."""

import torch

import torch_npu

side = torch.npu.Stream()
with torch_npu.check_races("warn"):
    with torch.npu.stream(side):
        batch = torch.randn(64, 1024, device="npu")
    loss = batch.square().sum()  # forgot: torch.npu.current_stream().wait_stream(side)

    torch.npu.current_stream().wait_stream(side)
    loss = batch.square().sum()

"""torch_npu.check_races finds a missing wait between streams, whatever ran first, and lets a correct program alone."""

import pytest
import torch

import torch_npu
from torch_npu.npu._sanitizer import NPUSanitizerErrors


@pytest.fixture
def side() -> torch.npu.Stream:
    torch.npu.synchronize()
    return torch.npu.Stream()


def write_on(stream: torch.npu.Stream) -> torch.Tensor:
    with torch.npu.stream(stream):
        return torch.ones(1000, device="npu")


def test_a_read_that_does_not_wait(side):
    with torch_npu.check_races():
        written = write_on(side)
        with pytest.raises(NPUSanitizerErrors) as error:
            written.add(1)
    message = str(error.value)
    here, there = torch.npu.current_stream().npu_stream, side.npu_stream
    assert (
        f"npu race: aten::add.Tensor on stream {here:#x} does not wait for aten::ones on stream {there:#x}" in message
    )
    assert "in test_a_read_that_does_not_wait" in message
    assert "in write_on" in message
    assert message.count("test_races.py:") >= 2


def test_a_write_that_does_not_wait_for_a_read(side):
    x = torch.ones(1000, device="npu")
    with torch_npu.check_races():
        with torch.npu.stream(side):
            x.add(1)
        with pytest.raises(NPUSanitizerErrors, match=r"aten::mul_.* does not wait for aten::add"):
            x.mul_(2)


def test_parts_of_a_storage(side):
    x = torch.zeros(1000, device="npu")
    first, second = x[:500], x[500:]
    with torch_npu.check_races():
        with torch.npu.stream(side):
            second.fill_(1)
        with pytest.raises(NPUSanitizerErrors, match="writing to self"):
            first.add_(1)


@pytest.mark.parametrize("how", ["wait_stream", "event", "stream.synchronize", "event.synchronize", "synchronize"])
def test_waits(side, how):
    with torch_npu.check_races():
        written = write_on(side)
        event = side.record_event()
        if how == "wait_stream":
            torch.npu.current_stream().wait_stream(side)
        elif how == "event":
            torch.npu.current_stream().wait_event(event)
        elif how == "stream.synchronize":
            side.synchronize()
        elif how == "event.synchronize":
            event.synchronize()
        else:
            torch.npu.synchronize()
        assert (written + 1 == 2).all()


def test_new_memory_has_no_past(side):
    with torch_npu.check_races():
        for _ in range(3):
            temporary = torch.ones(1000, device="npu")
            (temporary + 1).cpu()
            del temporary
        with torch.npu.stream(side):
            torch.ones(1000, device="npu").add_(1)


def test_training_has_no_race():
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.GELU(), torch.nn.Linear(13, 3)).to("npu")
    optimizer = torch.optim.AdamW(model.parameters())
    with torch_npu.check_races():
        for _ in range(3):
            model(torch.randn(5, 7).to("npu")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_warnings_and_the_end_of_the_check(side):
    with pytest.warns(RuntimeWarning, match="npu race: aten::add"), torch_npu.check_races("warn"):
        assert (write_on(side) + 1).shape == (1000,)
    write_on(side) + 1  # not watched any more


def test_arguments():
    with pytest.raises(ValueError, match="action must be"), torch_npu.check_races("ignore"):
        pass
    with torch_npu.check_races(), pytest.raises(RuntimeError, match="under way already"), torch_npu.check_races():
        pass


def test_by_environment(run_python):
    result = run_python(
        """
        import torch, torch_npu
        side = torch.npu.Stream()
        with torch.npu.stream(side):
            x = torch.ones(10, device="npu")
        x + 1
        """,
        check=False,
        TORCH_NPU_SANITIZER="1",
        CANN_HOST_ASYNC="1",
        CANN_HOST_DELAY_US="1000",
    )
    assert result.returncode != 0
    assert "npu race: aten::add.Tensor" in result.stderr


def test_an_event_handler_of_ones_own(side):
    from torch.cuda._sanitizer import EventHandler

    from torch_npu.npu._stream_check import NPUSanitizerDispatchMode

    seen = []

    class Handler(EventHandler):
        def _handle_kernel_launch(self, stream, read_only, read_write, outputs, operator, tensor_aliases):
            seen.append((stream, operator.name, len(read_only), len(read_write)))
            return []

    x = torch.ones(3, device="npu")
    with NPUSanitizerDispatchMode(Handler()) as mode, torch.npu.stream(side):
        assert mode.args_handler is None
        x.mul_(x + 1)
    assert seen == [(side.npu_stream, "aten::add", 1, 1), (side.npu_stream, "aten::mul_", 1, 1)]
    assert mode.args_handler is None

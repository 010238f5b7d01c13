"""Errors say what was seen, what was expected and what to do; and the device goes on working after them."""

import re

import pytest
import torch


def alive() -> None:
    assert (torch.ones(4, device="npu") + 1).sum().item() == 8


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ones(1, device="npu:7"),
        lambda: torch.ones(1).to("npu:7"),
        lambda: torch.npu.set_device(7),
        lambda: torch.npu.get_device_properties(7),
        lambda: torch.npu.Stream(device="npu:7"),
        lambda: torch.Generator("npu:7"),
        lambda: torch.npu.memory_allocated(7),
        lambda: torch.npu.synchronize(7),
    ],
)
def test_wrong_device_index(call):
    count = torch.npu.device_count()
    with pytest.raises((RuntimeError, ValueError, AssertionError), match="7") as error:
        call()
    assert re.search(rf"\b{count}\b|device_count|[Ii]nvalid", str(error.value)), str(error.value)
    alive()


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda n, c: n + c, ()),
        (lambda n, c: c + n, ()),
        (lambda n, c: n.add_(c), ()),
        (lambda n, c: torch.mm(n, c), ("mat2",)),
        (lambda n, c: torch.nn.functional.linear(n, c), ()),
        (lambda n, c: torch.cat([n, c]), ()),
        (lambda n, c: torch.where(n > 0, n, c), ()),
        (lambda n, c: torch.nn.functional.embedding(c.long(), n), ()),
        (lambda n, c: torch.nn.functional.layer_norm(n, (3,), c[0], c[0]), ()),
        (lambda n, c: n.index_select(0, c[0].long()), ()),
        (lambda n, c: torch.add(n, n, out=c), ()),
        (lambda n, c: n.gather(0, c.long()), ()),
    ],
)
def test_mixed_devices(call, names):
    with pytest.raises(RuntimeError) as error:
        call(torch.ones(3, 3, device="npu"), torch.ones(3, 3))
    text = str(error.value)
    assert re.search("[Ee]xpected (all tensors|out tensor|object)|same device", text), text
    assert "npu" in text
    assert "cpu" in text
    assert all(name in text for name in names)
    alive()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x @ torch.ones(5, 2, device="npu"), "mat1 and mat2 shapes cannot be multiplied (2x3 and 5x2)"),
        (lambda x: x + torch.ones(4, device="npu"), "The size of tensor a (3) must match the size of tensor b (4)"),
        (lambda x: x.view(7), "shape '[7]' is invalid for input of size 6"),
        (lambda x: x.sum(5), "Dimension out of range (expected to be in range of [-2, 1], but got 5)"),
        (lambda x: torch.cat([x, torch.ones(2, 4, device="npu")]), "Sizes of tensors must match except in dimension 0"),
        (lambda x: torch.nn.functional.conv2d(x, x), "Expected"),
        (
            lambda x: x.cross_entropy(1) if hasattr(x, "cross_entropy") else x.squeeze().item(),
            "cannot be converted to Scalar",
        ),
    ],
)
def test_wrong_shapes_have_pytorchs_messages(call, message):
    with pytest.raises((RuntimeError, IndexError)) as error:
        call(torch.ones(2, 3, device="npu"))
    assert message in str(error.value)
    alive()


def test_indices_out_of_range_are_reported():
    x = torch.arange(5.0, device="npu")
    for call in (
        lambda: x[torch.tensor([9], device="npu")],
        lambda: x.index_select(0, torch.tensor([9], device="npu")),
        lambda: x.gather(0, torch.tensor([9], device="npu")),
        lambda: torch.nn.functional.embedding(torch.tensor([9], device="npu"), x[:, None]),
    ):
        with pytest.raises((IndexError, RuntimeError), match=r"(?i)out of (range|bounds)|should have"):
            call().cpu()  # waits
    alive()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64])
def test_dtypes_that_few_operators_have(dtype):
    """Moving works for every dtype; what the CPU cannot compute either is refused with its name."""
    host = torch.tensor([0.0, 1.0, 2.0]).to(dtype)
    device = host.npu()
    assert device.dtype == dtype
    assert torch.equal(device.cpu().float(), host.float())
    assert device.float().tolist() == [0, 1, 2]
    with pytest.raises(
        (NotImplementedError, RuntimeError),
        match=r"(?i)not implemented for|not supported|no data type|Expected a floating point",
    ):
        torch.linalg.svd(device.reshape(1, 3))
    alive()


def test_quantized_and_opaque_tensors_are_refused():
    with pytest.raises((NotImplementedError, RuntimeError), match=r"(?i)quantized|not implemented|Could not run"):
        torch.quantize_per_tensor(torch.ones(2, device="npu"), 0.1, 0, torch.qint8)
    alive()


def test_out_of_memory_leaves_a_usable_device(run_python):
    run_python(
        """
        import gc, torch
        kept = torch.ones(1 << 20, device="npu")
        for attempt in range(3):
            try:
                torch.ones(1 << 28, device="npu")
            except torch.OutOfMemoryError as error:
                text = str(error)
                assert "NPU out of memory. Tried to allocate 1024.00 MiB" in text, text
                assert "64.00 MiB" in text, text
            else:
                raise AssertionError("1 GiB fitted into 64 MiB")
            assert (kept + 1).sum().item() == 2 << 20
        blocks = []
        try:
            while True:
                blocks.append(torch.ones(1 << 18, device="npu"))
        except torch.OutOfMemoryError:
            pass
        assert len(blocks) > 20, len(blocks)
        del blocks
        gc.collect()
        assert torch.ones(1 << 22, device="npu").sum().item() == 1 << 22
        try:
            torch.special.bessel_j0(torch.ones(1 << 23, device="npu"))
        except torch.OutOfMemoryError as error:
            assert " out of memory." in str(error)
        else:
            raise AssertionError("two tensors of 32 MiB fitted")
        assert torch.npu.memory_stats()["num_ooms"] >= 5, torch.npu.memory_stats()["num_ooms"]
        """,
        CANN_HOST_MEMORY="64M",
    )


def test_out_of_memory_in_backward_and_in_a_thread(run_python):
    run_python(
        """
        import threading, torch
        x = torch.ones(3 << 20, device="npu", requires_grad=True)
        try:
            y = x.exp().exp().exp().sum()
            y.backward()
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("it fitted")
        y = None
        seen = []
        def work():
            try:
                torch.ones(1 << 28, device="npu")
            except torch.OutOfMemoryError:
                seen.append(True)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert seen
        assert (torch.ones(4, device="npu") + 1).sum().item() == 8
        """,
        CANN_HOST_MEMORY="64M",
    )


@pytest.mark.parametrize(
    ("value", "message"),
    [("/nonexistent/cann", "/nonexistent/cann"), ("nonsense", "nonsense"), ("", None)],
)
def test_corrupt_cann_variable(run_python, value, message):
    """Import works, the device is reported absent, and its use says what was tried and what may be set."""
    result = run_python(
        """
        import torch, torch_npu
        print("available", torch.npu.is_available())
        try:
            torch.ones(1, device="npu")
        except RuntimeError as error:
            print("error", error)
        assert torch.ones(2).sum().item() == 2
        """,
        TORCH_NPU_CANN=value,
    )
    if message is None:
        assert "available True" in result.stdout
    else:
        assert "available False" in result.stdout
        assert message in result.stdout
        assert "TORCH_NPU_CANN" in result.stdout


def test_a_file_that_is_no_library(run_python, tmp_path):
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libascendcl.so").write_text("not a library")
    result = run_python(
        """
        import torch
        try:
            torch.ones(1, device="npu")
        except RuntimeError as error:
            print(error)
        """,
        TORCH_NPU_CANN=str(tmp_path),
    )
    assert "libascendcl.so" in result.stdout
    assert str(tmp_path) in result.stdout


FAILING_LATER = """
    import torch
    table = torch.ones(5, 2, device="npu")
    wrong = torch.tensor([1, 99], device="npu")
    torch.npu.synchronize()
    def lookup():
        return torch.embedding(table, wrong)
    try:
        lookup()
        torch.npu.synchronize()
    except (RuntimeError, IndexError) as error:
        print(error)
    else:
        print("no error")
"""


def test_failure_of_an_operator_names_it_and_its_arguments(run_python):
    text = run_python(FAILING_LATER).stdout
    assert "aclnnEmbedding" in text
    assert "out of range" in text


def test_asynchronous_failure_names_operator_shapes_and_line(run_python):
    text = run_python(FAILING_LATER, CANN_HOST_ASYNC="1", CANN_HOST_DELAY_US="20000").stdout
    assert "aclnnEmbedding" in text
    assert "float32[5, 2]" in text or "float32[5,2]" in text
    assert "int64[2]" in text
    assert "<string>:7 in lookup" in text


def test_asynchronous_failure_is_reported_by_whatever_waits(run_python):
    text = run_python(
        """
        import torch
        table = torch.ones(5, 2, device="npu")
        wrong = torch.tensor([1, 99], device="npu")
        out = torch.embedding(table, wrong)
        for wait in (out.cpu, out.sum().item, torch.npu.synchronize):
            try:
                wait()
            except (RuntimeError, IndexError) as error:
                assert "aclnnEmbedding" in str(error), error
                print("reported")
                break
        """,
        CANN_HOST_ASYNC="1",
        CANN_HOST_DELAY_US="20000",
    ).stdout
    assert "reported" in text

"""The CPU fallback: its ledger and its policy."""

import gc
import threading
import warnings

import pytest
import torch

import torch_npu

# An operator that has no aclnn counterpart, so that it will stay a fallback.
FALLS_BACK, NAME = torch.special.bessel_j0, "aten::special_bessel_j0"


@pytest.fixture(autouse=True)
def fresh_ledger():
    torch_npu.clear_fallback_report()
    yield
    torch_npu.fallback_policy("allow")
    torch_npu.clear_fallback_report()


def entry(op: str = NAME, dtype: str = "float32"):
    found = [e for e in torch_npu.fallback_report() if (e.op, e.dtype) == (op, dtype)]
    return found[0] if found else None


def test_ledger_counts_calls_bytes_and_time():
    x = torch.ones(1000, device="npu")
    for _ in range(3):
        FALLS_BACK(x)
    FALLS_BACK(x.double())
    e = entry()
    assert e.calls == 3
    assert e.bytes == 3 * 4000
    assert e.seconds > 0
    assert entry(dtype="float64").calls == 1
    assert entry(dtype="float64").bytes == 8000


def test_ledger_names_the_first_python_line():
    x = torch.ones(4, device="npu")
    FALLS_BACK(x)
    FALLS_BACK(x)
    line = test_ledger_names_the_first_python_line.__code__.co_firstlineno + 2
    assert entry().first_line == f"{__file__}:{line} in test_ledger_names_the_first_python_line"


def test_nothing_is_copied_where_the_host_can_address_device_memory():
    FALLS_BACK(torch.ones(100, device="npu"))
    assert entry().copied_bytes == 0


def test_native_operators_are_not_in_the_ledger():
    x = torch.ones(2, 2, device="npu")
    (x + x) @ x
    assert torch_npu.fallback_report() == []
    assert "no operator ran on the CPU" in str(torch_npu.fallback_report())


def test_report_prints_a_table_of_the_slowest_first():
    FALLS_BACK(torch.ones(4, device="npu"))
    FALLS_BACK(torch.ones(1 << 20, dtype=torch.float64, device="npu"))
    report = torch_npu.fallback_report()
    assert [e.dtype for e in report] == ["float64", "float32"]
    text = str(report)
    assert NAME in text
    assert "test_fallback.py" in text
    assert text.index("float64") < text.index("float32")


def test_a_dtype_without_native_kernel_stays_itself():
    x = torch.ones(3, 3, dtype=torch.float64, device="npu")
    assert (x @ x).dtype == torch.float64
    assert any(e.dtype == "float64" for e in torch_npu.fallback_report())


def test_policy_error_names_operator_dtype_line_and_remedy():
    x = torch.ones(4, device="npu")
    with torch_npu.fallback_policy("error"), pytest.raises(NotImplementedError) as error:
        FALLS_BACK(x)
    text = str(error.value)
    for part in (
        NAME,
        "Float",
        "test_fallback.py",
        'torch_npu.fallback_policy("allow")',
        "torch_npu.fallback_report()",
    ):
        assert part in text
    assert FALLS_BACK(x).device.type == "npu"
    assert entry().calls == 1


def test_policy_error_lets_native_operators_and_copies_pass():
    with torch_npu.fallback_policy("error"):
        x = torch.ones(2, 2, device="npu")
        assert (x @ x + x).cpu().tolist() == [[3, 3], [3, 3]]


def test_policy_warn_warns_once_an_operator_and_dtype():
    x = torch.ones(4, device="npu")
    with warnings.catch_warnings(record=True) as caught, torch_npu.fallback_policy("warn"):
        warnings.simplefilter("always")
        FALLS_BACK(x)
        FALLS_BACK(x)
        FALLS_BACK(x.double())
    texts = [str(w.message) for w in caught]
    assert len(texts) == 2
    assert NAME in texts[0]
    assert "test_fallback.py" in texts[0]
    assert "Double" in texts[1] or "float64" in texts[1]


def test_policy_scopes_nest_and_end_with_exceptions():
    assert torch_npu.fallback_policy() == "allow"
    with torch_npu.fallback_policy("warn"):
        assert torch_npu.fallback_policy() == "warn"
        with pytest.raises(ZeroDivisionError), torch_npu.fallback_policy("error"):
            1 / 0  # noqa: B018
        assert torch_npu.fallback_policy() == "warn"
    assert torch_npu.fallback_policy() == "allow"
    torch_npu.fallback_policy("error")
    assert torch_npu.fallback_policy() == "error"


def test_policy_holds_in_other_threads_and_in_backward():
    x = torch.ones(4, device="npu", requires_grad=True)
    y = torch.special.i1(x).sum()
    errors = []

    def run():
        try:
            FALLS_BACK(x.detach())
        except NotImplementedError as error:
            errors.append(error)

    with torch_npu.fallback_policy("error"):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        with pytest.raises(NotImplementedError, match="would run on the CPU"):
            y.backward()
    assert len(errors) == 1


def test_unknown_policies_are_refused():
    with pytest.raises(ValueError, match="unknown fallback policy 'never'; expected 'allow', 'warn' or 'error'"):
        torch_npu.fallback_policy("never")


def test_mixed_devices_are_refused_with_pytorchs_error():
    npu, cpu = torch.ones(2, 2, device="npu"), torch.ones(2, 2)
    for call in (lambda: npu + cpu, lambda: npu @ cpu, lambda: torch.cat([npu, cpu]), lambda: torch.hypot(npu, cpu)):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            call()


def test_cpu_scalars_may_stand_beside_npu_tensors():
    npu, scalar = torch.ones(2, device="npu"), torch.tensor(3.0)
    assert (npu + scalar).tolist() == [4, 4]
    assert torch.hypot(npu * 4, scalar).tolist() == [5, 5]
    assert (scalar * npu).device.type == "npu"
    assert npu.fill_(scalar).tolist() == [3, 3]


def test_indices_may_stay_on_the_cpu():
    x = torch.arange(5.0, device="npu")
    assert x[torch.tensor([3, 1])].tolist() == [3, 1]
    x[torch.tensor([0])] = 9
    assert x[0].item() == 9


def test_results_of_the_cpu_live_in_the_pool():
    gc.collect()
    before = torch.npu.memory_allocated()
    y = FALLS_BACK(torch.ones(1 << 18, device="npu"))
    assert 1 << 20 <= torch.npu.memory_allocated() - before <= (1 << 20) + 1024  # the pool rounds up
    del y
    assert torch.npu.memory_allocated() == before


def test_results_survive_their_arguments():
    x = torch.linspace(0, 1, 1000, device="npu")
    y = FALLS_BACK(x)
    expected = FALLS_BACK(torch.linspace(0, 1, 1000))
    del x
    junk = [torch.full((1000,), 7.0, device="npu") for _ in range(20)]
    assert torch.equal(y.cpu(), expected)
    assert len(junk) == 20


def test_custom_operators_fall_back():
    library = torch.library.Library("opinfo_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    x = torch.ones(3, device="npu")
    y = torch.ops.opinfo_test.twice(x)
    assert y.device.type == "npu"
    assert y.tolist() == [2, 2, 2]
    assert entry("opinfo_test::twice").calls == 1


def test_operators_that_count_their_changes_themselves():
    tensors = [torch.full((3,), 2.0, device="npu"), torch.full((4, 2), 3.0, device="npu")]
    versions = [t._version for t in tensors]
    factors = [torch.tensor(5.0, device="npu"), torch.tensor(7.0, device="npu")]
    with torch.no_grad():
        torch._foreach_mul_(tensors, factors)
    assert [t.flatten()[0].item() for t in tensors] == [10, 21]
    assert all(t._version > v for t, v in zip(tensors, versions, strict=True))


def test_generators_of_npu_drive_random_fallbacks():
    def draw(seed):
        return torch.empty(100, device="npu").geometric_(0.3, generator=torch.Generator("npu").manual_seed(seed)).cpu()

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    torch.npu.manual_seed(5)
    first = torch.empty(100, device="npu").geometric_(0.3).cpu()
    second = torch.empty(100, device="npu").geometric_(0.3).cpu()
    torch.npu.manual_seed(5)
    assert not torch.equal(first, second)
    assert torch.equal(torch.empty(100, device="npu").geometric_(0.3).cpu(), first)

"""Seeds, generator states and what is drawn from them."""

import copy
import struct

import pytest
import torch


def state(seed: int, offset: int = 0) -> torch.Tensor:
    return torch.tensor(list(struct.pack("<Qq", seed, offset)), dtype=torch.uint8)


def draw(generator=None) -> torch.Tensor:
    return torch.rand(100, device="npu", generator=generator).cpu()


def test_state_is_16_bytes_of_seed_and_offset():
    torch.npu.manual_seed(12345)
    got = torch.npu.get_rng_state()
    assert got.device.type == "cpu"
    assert torch.equal(got, state(12345))
    assert torch.npu.initial_seed() == 12345


def test_drawing_moves_the_offset_by_a_multiple_of_4():
    torch.npu.manual_seed(1)
    torch.rand(3, device="npu")
    offset = torch.npu._get_rng_state_offset()
    assert offset > 0
    assert offset % 4 == 0
    assert torch.equal(torch.npu.get_rng_state(), state(1, offset))


def test_manual_seed_repeats():
    torch.npu.manual_seed(7)
    first, second = draw(), draw()
    assert not torch.equal(first, second)
    torch.npu.manual_seed_all(7)
    assert torch.equal(draw(), first)
    assert torch.equal(draw(), second)
    torch.manual_seed(7)
    assert torch.equal(draw(), first)


def test_torch_manual_seed_takes_negative_and_large_seeds():
    for seed in (-1, 2**64 - 1, -(2**63)):
        torch.manual_seed(seed)
        assert torch.npu.initial_seed() == seed % 2**64


def test_rng_state_can_be_saved_and_restored():
    torch.npu.manual_seed(3)
    draw()
    saved = torch.npu.get_rng_state()
    first = draw()
    torch.npu.set_rng_state(saved)
    assert torch.equal(draw(), first)
    saved_all = torch.npu.get_rng_state_all()
    assert len(saved_all) == torch.npu.device_count()
    second = draw()
    torch.npu.set_rng_state_all(saved_all)
    assert torch.equal(draw(), second)


@pytest.mark.parametrize("device", ["npu", "npu:0", 0, torch.device("npu"), torch.device("npu:0")])
def test_device_arguments(device):
    torch.npu.manual_seed(4)
    assert torch.equal(torch.npu.get_rng_state(device), state(4))
    torch.npu.set_rng_state(state(5, 8), device)
    assert torch.npu.initial_seed() == 5
    assert torch.npu._get_rng_state_offset(device) == 8


def test_wrong_states_are_refused():
    for wrong in (torch.zeros(7, dtype=torch.uint8), torch.zeros(17, dtype=torch.uint8)):
        with pytest.raises(RuntimeError, match="16 bytes"):
            torch.npu.set_rng_state(wrong)
    with pytest.raises((RuntimeError, TypeError), match=r"[Bb]yte|uint8"):
        torch.npu.set_rng_state(torch.zeros(16))
    with pytest.raises(RuntimeError, match="multiple of 4"):
        torch.npu._set_rng_state_offset(3)


def test_a_seed_without_offset_is_a_state_too():
    torch.npu.set_rng_state(state(9)[:8])
    assert torch.equal(torch.npu.get_rng_state(), state(9))


def test_seed_all_and_seed_draw_new_seeds():
    torch.npu.seed_all()
    first = torch.npu.initial_seed()
    torch.npu.seed()
    assert torch.npu.initial_seed() != first


def test_generator():
    generator = torch.Generator("npu")
    assert generator.device == torch.device("npu:0")
    assert generator.manual_seed(11) is generator
    assert generator.initial_seed() == 11
    first = draw(generator)
    assert not torch.equal(draw(generator), first)
    assert torch.equal(draw(torch.Generator("npu:0").manual_seed(11)), first)
    generator.set_state(state(11))
    assert torch.equal(draw(generator), first)
    generator.set_offset(0)
    assert generator.get_offset() == 0
    assert torch.equal(draw(generator), first)


def test_a_generator_does_not_touch_the_default_one():
    torch.npu.manual_seed(1)
    draw(torch.Generator("npu").manual_seed(2))
    assert torch.equal(torch.npu.get_rng_state(), state(1))


def test_clone_of_a_generator():
    generator = torch.Generator("npu").manual_seed(6)
    draw(generator)
    clone = generator.clone_state()
    assert torch.equal(clone.get_state(), generator.get_state())
    assert torch.equal(draw(clone), draw(generator))


def test_default_generators():
    generators = torch.npu.default_generators
    assert len(generators) == torch.npu.device_count()
    assert generators[0] is torch.npu.default_generators[0]
    assert torch.npu.random.default_generators[0] is generators[0]
    generators[0].manual_seed(21)
    assert torch.npu.initial_seed() == 21


def test_generators_of_other_devices_are_refused():
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device="npu", generator=torch.Generator("cpu"))


def test_fork_rng():
    torch.npu.manual_seed(8)
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        inside = draw()
    assert torch.equal(draw(), inside)


def test_checkpoint_replays_dropout():
    torch.manual_seed(0)
    x = torch.ones(1000, device="npu", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(
        lambda t: torch.nn.functional.dropout(t, 0.5) * t, x, use_reentrant=False, preserve_rng_state=True
    )
    kept = y.detach() != 0
    y.sum().backward()
    assert torch.equal(x.grad != 0, kept)


def test_seeds_before_the_first_use_hold(run_python):
    run_python("""
        import torch
        torch.manual_seed(5)
        assert not torch.npu.is_initialized()
        first = torch.rand(10, device="npu").cpu()
        torch.manual_seed(5)
        assert torch.equal(torch.rand(10, device="npu").cpu(), first)
    """)


def test_seed_all_covers_every_device(run_python):
    run_python(
        """
        import torch
        torch.npu.default_generators[0].manual_seed(1)
        torch.npu.manual_seed_all(2)
        assert [g.initial_seed() for g in torch.npu.default_generators] == [2, 2, 2]
        torch.npu.set_device(1)
        torch.npu.manual_seed(3)
        assert [g.initial_seed() for g in torch.npu.default_generators] == [2, 3, 2]
        torch.npu.seed_all()
        assert len({g.initial_seed() for g in torch.npu.default_generators}) == 1
        states = torch.npu.get_rng_state_all()
        assert len(states) == 3
        """,
        CANN_HOST_DEVICES="3",
    )


def test_without_a_device_seeding_is_silent(run_python):
    run_python(
        """
        import torch
        torch.npu.manual_seed(1)
        torch.npu.manual_seed_all(1)
        torch.npu.seed()
        torch.npu.seed_all()
        torch.manual_seed(1)
        assert torch.npu.default_generators == ()
        """,
        TORCH_NPU_CANN="/nonexistent",
    )


def test_deepcopy_of_a_module_with_a_generator_state():
    saved = copy.deepcopy(torch.npu.get_rng_state())
    torch.npu.set_rng_state(saved)
    assert torch.equal(torch.npu.get_rng_state(), saved)

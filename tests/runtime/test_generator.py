"""Generators of the device: seeds, states, explicit generators."""

import pytest
import torch

import dlbackend  # noqa: F401

DEVICE = "ocl:0"


def test_manual_seed_repeats() -> None:
    torch.manual_seed(11)
    first = torch.randn(100, device=DEVICE)
    second = torch.randn(100, device=DEVICE)
    torch.manual_seed(11)
    assert torch.equal(first, torch.randn(100, device=DEVICE))
    assert not torch.equal(first, second)


def test_state_continues_the_sequence() -> None:
    state = torch.ocl.get_rng_state()
    first = torch.rand(37, device=DEVICE)
    torch.ocl.set_rng_state(state)
    assert torch.equal(first, torch.rand(37, device=DEVICE))


def test_explicit_generator() -> None:
    generator = torch.Generator(device=DEVICE)
    generator.manual_seed(5)
    before = torch.ocl.get_rng_state()
    first = torch.rand(10, device=DEVICE, generator=generator)
    assert torch.equal(before, torch.ocl.get_rng_state())
    generator.manual_seed(5)
    assert torch.equal(first, torch.rand(10, device=DEVICE, generator=generator))
    for draw in (
        lambda g: torch.randperm(50, device=DEVICE, generator=g),
        lambda g: torch.randint(0, 9, (50,), device=DEVICE, generator=g),
        lambda g: torch.bernoulli(torch.full((50,), 0.5, device=DEVICE), generator=g),
        lambda g: torch.multinomial(torch.ones(9, device=DEVICE), 50, True, generator=g),
    ):
        assert torch.equal(draw(generator.manual_seed(1)), draw(generator.manual_seed(1)))


def test_cpu_generator_is_refused() -> None:
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(3, device=DEVICE, generator=torch.Generator())


def test_generator_of_another_device_is_refused() -> None:
    beyond = torch.ocl.device_count()
    with pytest.raises(RuntimeError, match=f"ocl:{beyond} does not exist"):
        torch.Generator(f"ocl:{beyond}")
    assert torch.Generator("ocl").device == torch.device(DEVICE)


def test_generator_for_ops_of_the_cpu(monkeypatch) -> None:
    monkeypatch.setenv("DLBACKEND_FALLBACK", "silent")
    generator = torch.Generator(DEVICE)
    five = torch.full((1000,), 5.0, device=DEVICE)
    for draw in (
        lambda: torch.poisson(five, generator=generator),
        lambda: torch.binomial(five, five / 10, generator=generator),
        lambda: torch._standard_gamma(five, generator=generator),
        lambda: torch._sample_dirichlet(five, generator=generator),
    ):
        generator.manual_seed(3)
        first, second = draw(), draw()
        assert not torch.equal(first, second)
        generator.manual_seed(3)
        assert torch.equal(draw(), first)
        assert torch.equal(draw(), second)
        assert not torch.equal(first, (generator.manual_seed(4), draw())[1])


def test_numbers_do_not_depend_on_the_size_of_the_work() -> None:
    torch.manual_seed(3)
    long = torch.rand(300_001, device=DEVICE)
    torch.manual_seed(3)
    assert torch.equal(long[:1001], torch.rand(1001, device=DEVICE))

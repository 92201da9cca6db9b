"""LSTM and GRU: fused cells, layers, packed sequences, forward and backward."""

import pytest
import torch
from common import DEVICE, assert_near
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

TOLERANCE = 20


def compare(module, run, *inputs, dtype=torch.float32):
    """Runs a module on the CPU in float64 and on the device; compares outputs, input and parameter gradients."""
    module = module.to(dtype)
    reference = type_copy(module).double()
    device = type_copy(module).to(DEVICE)
    a = [x.to(dtype).double().requires_grad_() for x in inputs]
    b = [x.to(dtype).to(DEVICE).requires_grad_() for x in inputs]
    expected, actual = run(reference, *a), run(device, *b)
    for e, o in zip(expected, actual, strict=True):
        assert_near(o.detach(), e.detach(), TOLERANCE)
    sum((e * e).sum() for e in expected).backward()
    sum((o * o).sum() for o in actual).backward()
    for e, o in zip([*a, *reference.parameters()], [*b, *device.parameters()], strict=True):
        assert_near(o.grad, e.grad, TOLERANCE * 5)


def type_copy(module):
    import copy

    return copy.deepcopy(module)


def flat(result):
    out, state = result
    return (out, *(state if isinstance(state, tuple) else (state,)))


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}],
    ids=str,
)
def test_layers(kind, options):
    compare(kind(5, 7, **options), lambda m, x: flat(m(x)), torch.randn(4, 3, 5))


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_packed(kind):
    lengths = torch.tensor([6, 2, 4])

    def run(module, x):
        packed, state = module(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        out, _ = pad_packed_sequence(packed, batch_first=True)
        return flat((out, state))

    compare(kind(5, 7, batch_first=True), run, torch.randn(3, 6, 5))


def test_initial_state_and_projection():
    compare(
        torch.nn.LSTM(5, 7),
        lambda m, x, h, c: flat(m(x, (h, c))),
        torch.randn(4, 3, 5),
        torch.randn(1, 3, 7),
        torch.randn(1, 3, 7),
    )
    compare(torch.nn.GRU(5, 7), lambda m, x, h: flat(m(x, h)), torch.randn(4, 3, 5), torch.randn(1, 3, 7))
    compare(torch.nn.LSTM(5, 7, proj_size=3), lambda m, x: flat(m(x)), torch.randn(4, 3, 5))


@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell])
def test_cells(kind):
    def run(module, x):
        result = module(x)
        return result if isinstance(result, tuple) else (result,)

    compare(kind(5, 70), run, torch.randn(3, 5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    for kind in (torch.nn.LSTM, torch.nn.GRU):
        compare(kind(5, 7), lambda m, x: flat(m(x)), torch.randn(4, 3, 5), dtype=dtype)


def test_only_one_gradient():
    """The cell state's gradient alone, and the hidden state's alone."""
    for pick in (1, 2):
        compare(torch.nn.LSTM(5, 7), lambda m, x, pick=pick: [flat(m(x))[pick]], torch.randn(4, 3, 5))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_batch_sizes_on_the_device(kind):
    """PyTorch's kernels of packed sequences read them as the CPU's memory."""
    reference = getattr(torch.nn, kind)(3, 4)
    module = type_copy(reference).to(DEVICE)
    packed = pack_padded_sequence(torch.rand(5, 2, 3), torch.tensor([5, 3]))
    expected = reference(packed)[0].data
    state = torch.zeros(1, 2, 4, device=DEVICE)
    function = {"LSTM": torch._VF.lstm, "GRU": torch._VF.gru, "RNN": torch._VF.rnn_tanh}[kind]
    sizes = packed.batch_sizes.to(DEVICE)
    start = (state, state) if kind == "LSTM" else state
    actual = function(packed.data.to(DEVICE), sizes, start, module._flat_weights, True, 1, 0.0, True, False)[0]
    assert_near(actual.detach(), expected.detach().double(), TOLERANCE)
    expected.sum().backward()
    actual.sum().backward()
    assert_near(module.weight_hh_l0.grad, reference.weight_hh_l0.grad.double(), TOLERANCE)
    padded, _ = torch._VF._pad_packed_sequence(actual, sizes, False, 0.0, 5)
    assert padded.shape == (5, 2, 4)
    with torch.inference_mode():
        padded, _ = torch._VF._pad_packed_sequence(actual.detach().clone(), sizes, False, 0.0, 5)
    assert padded[3:, 1].count_nonzero() == 0

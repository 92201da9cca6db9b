"""LSTM, GRU and RNN: fused cells, layers, packed sequences, forward and backward, and what is not the usual path."""

from functools import partial

import pytest
import torch
from common import DEVICE, assert_near
from graphs import capture
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

TOLERANCE = 20
RNN_RELU = partial(torch.nn.RNN, nonlinearity="relu")
KINDS = [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN, RNN_RELU]
NAMES = ["LSTM", "GRU", "RNN", "RNN_RELU"]


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


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}],
    ids=str,
)
def test_layers(kind, options):
    compare(kind(5, 7, **options), lambda m, x: flat(m(x)), torch.randn(4, 3, 5))


@pytest.mark.parametrize("kind", KINDS[:3], ids=NAMES[:3])
@pytest.mark.parametrize("sizes", [(1, 1, 40), (9, 1, 16), (2, 23, 133)], ids=str)
def test_sizes(kind, sizes):
    """One sample, one step, and sizes that leave tiles and panels of the kernels partly empty."""
    steps, samples, hidden = sizes
    compare(kind(17, hidden), lambda m, x: flat(m(x)), torch.randn(steps, samples, 17))


@pytest.mark.parametrize("kind", KINDS[:3], ids=NAMES[:3])
def test_inputs_with_strides(kind):
    compare(kind(5, 7), lambda m, x: flat(m(x[::2].transpose(0, 1))), torch.randn(6, 4, 5))


@pytest.mark.parametrize("kind", KINDS[:2], ids=NAMES[:2])
def test_no_gradients(kind):
    module = kind(5, 7, num_layers=2, bidirectional=True)
    x = torch.randn(4, 3, 5)
    device = type_copy(module).to(DEVICE)
    expected = flat(module.double()(x.double()))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for e, o in zip(expected, flat(device(x.to(DEVICE))), strict=True):
                assert_near(o, e.detach(), TOLERANCE)
    with pytest.raises(RuntimeError, match="sequence length"):
        device(torch.empty(0, 3, 5, device=DEVICE))
    assert device(torch.empty(4, 0, 5, device=DEVICE))[0].shape == (4, 0, 14)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_gradients_of_gradients(kind):
    module = kind(2, 3).double().to(DEVICE)
    x = torch.randn(3, 2, 2, dtype=torch.float64, device=DEVICE).requires_grad_()
    names, values = zip(*module.named_parameters(), strict=True)

    def run(x, *weights):
        return flat(torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (x,)))

    with torch.backends.ocl.flags(deterministic=True):  # solvers that are measured meanwhile add in another order
        torch.autograd.gradgradcheck(run, (x, *values), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS[:3], ids=NAMES[:3])
def test_transforms(kind):
    """Batched gradients, and functions of torch.func, which have no memory for the kernels of whole sequences."""
    module = kind(3, 4)
    x, dx = torch.randn(2, 3, 2, 3)
    device = type_copy(module).to(DEVICE)
    results = []
    for m, d in ((module, "cpu"), (device, DEVICE)):
        a = x.to(d).requires_grad_()
        out = m(a)[0]
        directions = torch.eye(out.numel(), device=d).view(-1, *out.shape)[:3]
        (batched,) = torch.autograd.grad(out, a, directions, is_grads_batched=True)
        gradient = torch.func.grad(lambda v, m=m: m(v)[0].square().sum())(x.to(d))
        results.append((batched, gradient))
        if kind is torch.nn.RNN:
            results[-1] += torch.func.jvp(lambda v, m=m: m(v)[0], (x.to(d),), (dx.to(d),))
    for e, o in zip(*results, strict=True):
        assert_near(o.detach(), e.detach().double(), TOLERANCE * 5)


@pytest.mark.parametrize("kind", KINDS[:3], ids=NAMES[:3])
def test_autocast(kind):
    module = kind(5, 7, num_layers=2)
    device = type_copy(module).to(DEVICE)
    x = torch.randn(4, 3, 5)
    with torch.autocast(DEVICE, torch.bfloat16):
        actual = flat(device(x.to(DEVICE)))
    assert all(t.dtype == torch.bfloat16 for t in actual)
    for e, o in zip(flat(module(x)), actual, strict=True):
        torch.testing.assert_close(o.detach().float().cpu(), e.detach(), atol=0.03, rtol=0)
    actual[0].float().sum().backward()
    module(x)[0].sum().backward()
    for e, o in zip(module.parameters(), device.parameters(), strict=True):
        assert o.grad.dtype == torch.float32
        torch.testing.assert_close(o.grad.cpu(), e.grad, atol=0.15, rtol=0.05)


@pytest.mark.parametrize("lengths", [None, [4, 3, 1]], ids=["padded", "packed"])
def test_graph(lengths):
    module = torch.nn.LSTM(5, 7, num_layers=2).to(DEVICE)
    x = torch.randn(4, 3, 5, device=DEVICE)
    packed = x if lengths is None else pack_padded_sequence(x, torch.tensor(lengths))
    data = x if lengths is None else packed.data

    def step():
        out = module(packed)[0]
        out = out if lengths is None else out.data
        return out, *torch.autograd.grad(out.square().sum(), tuple(module.parameters()))

    graph, made = capture(step)
    data.copy_(torch.randn(data.shape))
    graph.replay()
    for e, o in zip(step(), made, strict=True):
        assert_near(o.detach(), e.detach().cpu().double(), TOLERANCE * 5)


def test_dropout_between_layers():
    module = torch.nn.LSTM(5, 7, num_layers=2, dropout=1.0).to(DEVICE)
    x = torch.randn(4, 3, 5, device=DEVICE)
    dropped, (h, _) = module(x)
    assert not torch.equal(dropped, module.eval()(x)[0])
    module.weight_ih_l1.data.zero_()
    assert_near(module(x)[0].detach(), dropped.detach().cpu().double(), TOLERANCE)
    assert h[0].count_nonzero() > 0


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_packed(kind, options):
    lengths = torch.tensor([6, 2, 4])

    def run(module, x):
        packed, state = module(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        out, _ = pad_packed_sequence(packed, batch_first=True)
        return flat((out, state))

    compare(kind(5, 7, batch_first=True, **options), run, torch.randn(3, 6, 5))


def test_initial_state_and_projection():
    compare(
        torch.nn.LSTM(5, 7),
        lambda m, x, h, c: flat(m(x, (h, c))),
        torch.randn(4, 3, 5),
        torch.randn(1, 3, 7),
        torch.randn(1, 3, 7),
    )
    compare(torch.nn.GRU(5, 7), lambda m, x, h: flat(m(x, h)), torch.randn(4, 3, 5), torch.randn(1, 3, 7))
    options = {"proj_size": 3, "num_layers": 2, "bidirectional": True}
    compare(torch.nn.LSTM(5, 7, **options), lambda m, x: flat(m(x)), torch.randn(4, 3, 5))


@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell])
def test_cells(kind):
    def run(module, x):
        result = module(x)
        return result if isinstance(result, tuple) else (result,)

    compare(kind(5, 70), run, torch.randn(3, 5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    for kind in KINDS[:3]:
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

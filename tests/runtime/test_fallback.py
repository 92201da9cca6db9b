"""The CPU fallback: right results, warned about once, counted, forbidden on demand, and never for views."""

import warnings

import pytest
import torch
from fresh_process import forked_python

import dlbackend

DEVICE = "ocl:0"


@pytest.fixture(autouse=True)
def _silent(monkeypatch):
    monkeypatch.setenv("DLBACKEND_FALLBACK", "silent")
    dlbackend.reset_fallback_report()


def without_a_kernel(x):
    return torch.linalg.eigvals(x)


def test_counts_and_resets():
    x = torch.randn(3, 3)
    assert dlbackend.fallback_report() == {}
    for _ in range(3):
        result = without_a_kernel(x.to(DEVICE))
    assert result.device.type == "ocl"
    report = dlbackend.fallback_report()
    counted = [count for name, count in report.items() if "eig" in name]
    assert counted == [3], report
    dlbackend.reset_fallback_report()
    assert dlbackend.fallback_report() == {}


def test_error_mode(monkeypatch):
    monkeypatch.setenv("DLBACKEND_FALLBACK", "error")
    with pytest.raises(NotImplementedError, match="DLBACKEND_FALLBACK=error"):
        without_a_kernel(torch.randn(3, 3).to(DEVICE))
    assert (torch.ones(2).to(DEVICE) + 1).cpu().tolist() == [2, 2]


def test_bad_mode(monkeypatch):
    monkeypatch.setenv("DLBACKEND_FALLBACK", "loud")
    with pytest.raises(RuntimeError, match="must be warn, silent or error"):
        without_a_kernel(torch.randn(3, 3).to(DEVICE))


def test_warns_once():
    code = """
import warnings, torch, dlbackend
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    x = torch.randn(3, 3).to("ocl:0")
    for _ in range(3): torch.linalg.eigvals(x)
texts = [str(w.message) for w in seen if "runs on the CPU" in str(w.message)]
assert len([t for t in texts if "eig" in t]) == 1, texts
"""
    result = forked_python(code, DLBACKEND_FALLBACK="warn")
    assert result.returncode == 0, result.stderr


def test_views_in_place_out_and_lists():
    x = torch.randn(4, 4)
    y = x.to(DEVICE)
    # views of the device's memory as inputs
    torch.testing.assert_close(
        torch.linalg.eigvalsh(y.t()[:2, :2]).cpu(), torch.linalg.eigvalsh(x.t()[:2, :2]), rtol=1e-5, atol=1e-5
    )
    # in place
    y[1:].polygamma_(2)
    expected = x.clone()
    expected[1:].polygamma_(2)
    torch.testing.assert_close(y.cpu(), expected, equal_nan=True)
    # out=
    out = torch.empty(0, device=DEVICE)
    torch.special.bessel_j0(x.to(DEVICE), out=out)
    torch.testing.assert_close(out.cpu(), torch.special.bessel_j0(x))
    # lists
    torch.testing.assert_close(torch.block_diag(y, y).cpu(), torch.block_diag(expected, expected), equal_nan=True)


VIEWS = {
    "as_strided": lambda t: t.as_strided((2, 3), (1, 2), 1),
    "view": lambda t: t.view(2, 12),
    "view_dtype": lambda t: t.view(torch.int32),
    "reshape": lambda t: t.reshape(6, 4),
    "unfold": lambda t: t.unfold(1, 2, 1),
    "t": lambda t: t.t(),
    "transpose": lambda t: t.transpose(0, 1),
    "permute": lambda t: t.permute(1, 0),
    "select": lambda t: t.select(0, 1),
    "slice": lambda t: t[1:, ::2],
    "narrow": lambda t: t.narrow(1, 1, 3),
    "expand": lambda t: t[:1].expand(3, 6),
    "squeeze": lambda t: t[:1].squeeze(0),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "diagonal": lambda t: t.diagonal(),
    "split": lambda t: t.split(2)[1],
    "chunk": lambda t: t.chunk(2, 1)[1],
    "unbind": lambda t: t.unbind(1)[2],
    "tensor_split": lambda t: t.tensor_split(3, 1)[1],
    "movedim": lambda t: t.movedim(0, 1),
    "flatten": lambda t: t.flatten(),
    "unflatten": lambda t: t.unflatten(1, (2, 3)),
    "detach": lambda t: t.detach(),
    "alias": torch.ops.aten.alias,
    "view_as": lambda t: t.view_as(torch.empty(8, 3)),
    "real": lambda t: torch.view_as_complex(t.view(4, 3, 2)).real,
    "view_as_complex": lambda t: torch.view_as_complex(t.view(4, 3, 2)),
    "view_as_real": lambda t: torch.view_as_real(torch.view_as_complex(t.view(4, 3, 2))),
    "_reshape_alias": lambda t: torch.ops.aten._reshape_alias(t, [12, 2], [2, 1]),
    "lift_fresh": torch.ops.aten.lift_fresh,
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "mT": lambda t: t.mT,
    "adjoint": lambda t: t.adjoint(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_share_memory_and_never_fall_back(name, monkeypatch):
    monkeypatch.setenv("DLBACKEND_FALLBACK", "error")
    base = torch.arange(24, dtype=torch.float32).view(4, 6)
    there = base.to(DEVICE)
    view_here, view_there = VIEWS[name](base), VIEWS[name](there)
    assert view_there.shape == view_here.shape
    assert view_there.stride() == view_here.stride()
    assert view_there.storage_offset() == view_here.storage_offset()
    assert view_there.untyped_storage().data_ptr() == there.untyped_storage().data_ptr()
    assert view_there.cpu().equal(view_here)
    if name not in ("expand",):
        view_there.zero_()
        view_here.zero_()
        assert there.cpu().equal(base)


def test_no_view_op_lacks_a_kernel():
    """Every view op of ATen has a kernel of ours or a composite one: the fallback would return a copy."""
    missing = []
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::") or schema.name.endswith(("_copy", "_")):
            continue
        aliases = [a.alias_info for a in schema.arguments if a.alias_info and not a.alias_info.is_write]
        if not aliases or not any(r.alias_info for r in schema.returns):
            continue
        name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        try:
            has = torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1")
            table = torch._C._dispatch_dump_table(name)
        except RuntimeError:
            continue
        line = next((row for row in table.splitlines() if row.startswith("PrivateUse1:")), "")
        if not has and "backend fallback" in line:
            missing.append(name)
    # sparse layouts and jagged tensors, which ocl does not have
    ignored = ("sparse", "crow", "ccol", "col_indices", "row_indices", "indices", "values", "nested", "jagged")
    assert [name for name in missing if not any(word in name for word in ignored)] == []


def test_autograd_through_the_fallback():
    x = torch.randn(3, 3, dtype=torch.float32)
    here, there = x.clone().requires_grad_(), x.to(DEVICE).requires_grad_()
    torch.special.i0(here).sum().backward()
    torch.special.i0(there).sum().backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.special.i0(there.detach())


def test_tensors_of_two_devices_are_refused_but_for_lengths():
    """As on any other device, though the copies on the CPU would do; lengths that the host reads may be there."""
    there, here = torch.eye(3, device=DEVICE), torch.ones(3, 3)
    for x, other in ((there, here), (here, there)):
        with pytest.raises(RuntimeError, match=r"two devices, ocl:0 and cpu.*aten::_compute"):
            torch.ops.aten._compute_linear_combination(x, other)
    with pytest.raises(RuntimeError, match=r"two devices, ocl(:0)? and cpu"):
        torch.cdist(there, here)
    lengths = torch.tensor([5, 3])
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 3, device=DEVICE), lengths)
    assert packed.data.device.type == "ocl"
    scores, targets = torch.randn(10, 2, 5, device=DEVICE).log_softmax(-1), torch.tensor([[1, 2], [2, 3]])
    loss = torch.nn.functional.ctc_loss(scores, targets.to(DEVICE), torch.tensor([10, 9]), torch.tensor([2, 2]))
    assert loss.isfinite()


def test_kernels_for_all_devices_that_read_the_memory_of_the_cpu():
    """Without a registration these crash."""
    x = torch.rand(9)
    scale = torch.ops.aten.choose_qparams_optimized(x.to(DEVICE), 9, 2, 0.1, 8)
    expected = torch.ops.aten.choose_qparams_optimized(x, 9, 2, 0.1, 8)
    assert [t.item() for t in scale] == [t.item() for t in expected]
    engine = torch.quasirandom.SobolEngine(3)
    quasi, state = engine.quasi.clone(), engine.sobolstate
    there = torch.ops.aten._sobol_engine_ff_(quasi.to(DEVICE), 5, state.to(DEVICE), 3, 0)
    assert there.device.type == "ocl"
    assert there.cpu().equal(torch.ops.aten._sobol_engine_ff_(quasi, 5, state, 3, 0))
    assert "aten::_sobol_engine_ff_" in dlbackend.fallback_report()
    with pytest.raises(NotImplementedError, match="call it with tensors on the CPU"):
        torch.ops.aten.fbgemm_pack_gemm_matrix_fp16(torch.rand(4, 4, device=DEVICE))
    shape = torch.tensor([3, 3], device=DEVICE)
    assert torch.ops.aten._reshape_from_tensor(x.to(DEVICE), shape).cpu().equal(x.view(3, 3))

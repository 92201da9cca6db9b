"""Lets a torchvision wheel whose compiled `_C` does not fit this torch run on any device.

`import tv_shim` before `import torchvision`. Where `_C` loads, nothing is changed.
Otherwise the `torchvision::` schemas are defined here with CPU kernels written in torch,
registered for the dispatch key CPU only, as in the compiled library: on another device the
calls must reach that device's own kernels or its CPU fallback. Meta, autograd and autocast
registrations are torchvision's own Python ones.
"""

# ruff: noqa: B905, RUF059, SIM108
import importlib.util
import os

import torch
from torch.library import Library

_POOL = "Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SIZE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, "
    "SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask"
)
_SCHEMAS = [
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "box_iou_rotated(Tensor boxes1, Tensor boxes2) -> Tensor",
    f"roi_align(Tensor input, {_POOL}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, {_POOL}, {_SIZE}, int sampling_ratio, bool aligned) -> Tensor",
    "qroi_align(Tensor input, Tensor rois, float input_scale, int input_zero_point, float rois_scale, "
    "int rois_zero_point, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
    "int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool(Tensor input, {_POOL}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, "
    f"SymInt pooled_height, SymInt pooled_width, {_SIZE}) -> Tensor",
    f"ps_roi_align(Tensor input, {_POOL}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    f"SymInt pooled_height, SymInt pooled_width, int sampling_ratio, {_SIZE}) -> Tensor",
    f"ps_roi_pool(Tensor input, {_POOL}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, float spatial_scale, "
    f"SymInt pooled_height, SymInt pooled_width, {_SIZE}) -> Tensor",
    f"deform_conv2d({_DEFORM}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "_cuda_version() -> int",
]


def nms(dets, scores, iou_threshold):
    x1, y1, x2, y2 = dets.unbind(1)
    area = (x2 - x1) * (y2 - y1)
    order = torch.sort(scores, stable=True, descending=True).indices
    keep = []
    while order.numel():
        i, order = order[0], order[1:]
        keep.append(i)
        w = (torch.minimum(x2[i], x2[order]) - torch.maximum(x1[i], x1[order])).clamp(min=0)
        h = (torch.minimum(y2[i], y2[order]) - torch.maximum(y1[i], y1[order])).clamp(min=0)
        inter = w * h
        order = order[~(inter / (area[i] + area[order] - inter) > iou_threshold)]
    return torch.stack(keep) if keep else dets.new_empty(0, dtype=torch.long)


# roi_align and ps_roi_align are linear in the input: both directions use one table of
# (flat index into H*W, weight) of shape [K, PH, PW, samples * 4].


def _corners(y, x, height, width):
    """Bilinear taps of points (y, x): index and weight with a last dimension of 4."""
    outside = (y < -1) | (y > height) | (x < -1) | (x > width)
    y, x = y.clamp(min=0), x.clamp(min=0)
    y0, x0 = y.floor().long().clamp(max=height - 1), x.floor().long().clamp(max=width - 1)
    y1, x1 = (y0 + 1).clamp(max=height - 1), (x0 + 1).clamp(max=width - 1)
    ly = torch.where(y0 >= height - 1, 0.0, y - y0).to(y.dtype)
    lx = torch.where(x0 >= width - 1, 0.0, x - x0).to(x.dtype)
    index = torch.stack([y0 * width + x0, y0 * width + x1, y1 * width + x0, y1 * width + x1], -1)
    weight = torch.stack([(1 - ly) * (1 - lx), (1 - ly) * lx, ly * (1 - lx), ly * lx], -1)
    return index, weight.masked_fill(outside.unsqueeze(-1), 0)


def _align_table(rois, scale, ph, pw, height, width, ratio, aligned, clamp_size):
    offset = 0.5 if aligned else 0.0
    x1, y1, x2, y2 = (rois[:, 1:] * scale - offset).unbind(1)
    rw, rh = x2 - x1, y2 - y1
    if clamp_size is not None:
        rw, rh = rw.clamp(min=clamp_size), rh.clamp(min=clamp_size)
    bh, bw = rh / ph, rw / pw

    def grid(start, bin_size, bins, samples):
        i = torch.arange(bins, dtype=rois.dtype)
        s = (torch.arange(samples, dtype=rois.dtype) + 0.5) / samples
        return start[:, None, None] + (i[:, None] + s) * bin_size[:, None, None]

    if ratio > 0:
        counts = torch.full((len(rois), 2), ratio)
    else:
        counts = torch.stack([torch.ceil(bh), torch.ceil(bw)], 1).long()
    for gh, gw in counts.unique(dim=0).tolist():
        rows = ((counts[:, 0] == gh) & (counts[:, 1] == gw)).nonzero().flatten()
        if gh <= 0 or gw <= 0:
            continue
        y = grid(y1[rows], bh[rows], ph, gh)[:, :, None, :, None]
        x = grid(x1[rows], bw[rows], pw, gw)[:, None, :, None, :]
        y, x = torch.broadcast_tensors(y, x)
        index, weight = _corners(y.flatten(3), x.flatten(3), height, width)
        yield rows, index.flatten(3), weight.flatten(3) / (gh * gw)


def roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, aligned):
    n, c, h, w = input.shape
    out = input.new_zeros(len(rois), c, pooled_height, pooled_width)
    flat = input.flatten(2)
    table = _align_table(
        rois, spatial_scale, pooled_height, pooled_width, h, w, sampling_ratio, aligned, None if aligned else 1.0
    )
    for rows, index, weight in table:
        for row, idx, wt in zip(rows.tolist(), index, weight):
            out[row] = (flat[int(rois[row, 0])][:, idx] * wt).sum(-1)
    return out


def _roi_align_backward(
    grad, rois, spatial_scale, pooled_height, pooled_width, batch_size, channels, height, width, sampling_ratio, aligned
):
    out = grad.new_zeros(batch_size, channels, height * width)
    table = _align_table(
        rois,
        spatial_scale,
        pooled_height,
        pooled_width,
        height,
        width,
        sampling_ratio,
        aligned,
        None if aligned else 1.0,
    )
    for rows, index, weight in table:
        for row, idx, wt in zip(rows.tolist(), index, weight):
            out[int(rois[row, 0])].index_add_(1, idx.flatten(), (grad[row][..., None] * wt).flatten(1))
    return out.view(batch_size, channels, height, width)


def _ps_channels(channels, ph, pw):
    """Input channel of every output cell [C_out, PH, PW]."""
    return torch.arange(channels, dtype=torch.int32).view(channels // (ph * pw), ph, pw)


def ps_roi_align(input, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio):
    n, c, h, w = input.shape
    chan = _ps_channels(c, pooled_height, pooled_width)
    out = input.new_zeros(len(rois), *chan.shape)
    table = _align_table(rois, spatial_scale, pooled_height, pooled_width, h, w, sampling_ratio, True, None)
    for rows, index, weight in table:
        for row, idx, wt in zip(rows.tolist(), index, weight):
            image = input[int(rois[row, 0])].flatten(1)
            out[row] = (image[chan.long()[..., None], idx] * wt).sum(-1)
    return out, chan.expand(out.shape).contiguous()


def _ps_roi_align_backward(
    grad,
    rois,
    channel_mapping,
    spatial_scale,
    pooled_height,
    pooled_width,
    sampling_ratio,
    batch_size,
    channels,
    height,
    width,
):
    out = grad.new_zeros(batch_size, channels * height * width)
    chan = _ps_channels(channels, pooled_height, pooled_width).long()[..., None]
    table = _align_table(rois, spatial_scale, pooled_height, pooled_width, height, width, sampling_ratio, True, None)
    for rows, index, weight in table:
        for row, idx, wt in zip(rows.tolist(), index, weight):
            where = (chan * height * width + idx).flatten()
            out[int(rois[row, 0])].index_add_(0, where, (grad[row][..., None] * wt).flatten())
    return out.view(batch_size, channels, height, width)


def _pool_bins(roi, scale, ph, pw, height, width):
    """Whole-pixel bins of roi_pool: lists of (start, end) for rows and columns."""
    x1, y1, x2, y2 = (torch.floor(roi[1:] * scale + 0.5)).long().tolist()

    def bins(start, end, count, limit):
        size = max(end - start + 1, 1) / count
        lo = [min(max(int(i * size // 1) + start, 0), limit) for i in range(count)]
        hi = [min(max(int(-(-(i + 1) * size // 1)) + start, 0), limit) for i in range(count)]
        return list(zip(lo, hi))

    return bins(y1, y2, ph, height), bins(x1, x2, pw, width)


def roi_pool(input, rois, spatial_scale, pooled_height, pooled_width):
    n, c, h, w = input.shape
    out = input.new_zeros(len(rois), c, pooled_height, pooled_width)
    arg = torch.full(out.shape, -1, dtype=torch.int32)
    for k, roi in enumerate(rois):
        rows, cols = _pool_bins(roi, spatial_scale, pooled_height, pooled_width, h, w)
        for i, (y0, y1) in enumerate(rows):
            for j, (x0, x1) in enumerate(cols):
                if y1 > y0 and x1 > x0:
                    part = input[int(roi[0]), :, y0:y1, x0:x1].flatten(1)
                    value, at = part.max(1)
                    out[k, :, i, j] = value
                    arg[k, :, i, j] = ((y0 + at // (x1 - x0)) * w + x0 + at % (x1 - x0)).int()
    return out, arg


def _roi_pool_backward(
    grad, rois, argmax, spatial_scale, pooled_height, pooled_width, batch_size, channels, height, width
):
    out = grad.new_zeros(batch_size, channels, height * width)
    for k, roi in enumerate(rois):
        at, g = argmax[k].flatten(1).long(), grad[k].flatten(1)
        out[int(roi[0])].scatter_add_(1, at.clamp(min=0), g.masked_fill(at < 0, 0))
    return out.view(batch_size, channels, height, width)


def _deform_taps(input, offset, mask, kh, kw, stride, pad, dil, groups, use_mask):
    """Taps [N, groups, taps, OH*OW] as indices, weights and their derivatives by y and x."""
    n, c, h, w = input.shape
    oh, ow = offset.shape[-2:]
    ky, kx = torch.meshgrid(torch.arange(kh), torch.arange(kw), indexing="ij")
    base_y = (torch.arange(oh) * stride[0] - pad[0])[:, None] + (ky * dil[0]).reshape(-1, 1, 1)
    base_x = (torch.arange(ow) * stride[1] - pad[1])[None, :] + (kx * dil[1]).reshape(-1, 1, 1)
    off = offset.view(n, groups, kh * kw, 2, oh, ow)
    y, x = off[:, :, :, 0] + base_y, off[:, :, :, 1] + base_x
    y0, x0 = y.floor(), x.floor()
    ly, lx = y - y0, x - x0
    index, weight, dy, dx = [], [], [], []
    for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        yy, xx = y0 + a, x0 + b
        ok = ((yy >= 0) & (yy < h) & (xx >= 0) & (xx < w)).to(input.dtype)
        wy, wx = (ly if a else 1 - ly), (lx if b else 1 - lx)
        index.append((yy.clamp(0, h - 1) * w + xx.clamp(0, w - 1)).long())
        weight.append(wy * wx * ok)
        dy.append((1 if a else -1) * wx * ok)
        dx.append((1 if b else -1) * wy * ok)
    m = mask.view(n, groups, kh * kw, oh, ow) if use_mask else torch.ones_like(y)
    pack = [torch.stack(t, -1).flatten(3, 4) for t in (index, weight, dy, dx)]
    return pack, m.flatten(3)


def _deform_setup(args):
    (input, weight, offset, mask, bias, sh, sw, ph, pw, dh, dw, groups, ogroups, use_mask) = args
    kh, kw = weight.shape[-2:]
    taps, m = _deform_taps(input, offset, mask, kh, kw, (sh, sw), (ph, pw), (dh, dw), ogroups, use_mask)
    n, c = input.shape[:2]
    image = input.reshape(n, ogroups, c // ogroups, -1)
    # values of the four corners of every tap: [N, og, C/og, K, P, 4]
    index = taps[0]
    gathered = torch.gather(image, 3, index.flatten(2)[:, :, None].expand(-1, -1, image.shape[2], -1))
    return taps, m, gathered.view(*gathered.shape[:3], *index.shape[2:])


def deform_conv2d(*args):
    (input, weight, offset, mask, bias, *_, groups, ogroups, use_mask) = args
    (_, wt, _, _), m, val = _deform_setup(args)
    n, oc = input.shape[0], weight.shape[0]
    col = (val * wt[:, :, None]).sum(-1) * m[:, :, None]
    col = col.reshape(n, groups, -1, col.shape[-1])
    out = weight.reshape(groups, oc // groups, -1) @ col
    return out.reshape(n, oc, *offset.shape[-2:]) + bias.view(-1, 1, 1)


def _deform_conv2d_backward(grad, *args):
    (input, weight, offset, mask, bias, *_, groups, ogroups, use_mask) = args
    (index, wt, dy, dx), m, val = _deform_setup(args)
    n, c, h, w = input.shape
    oc = weight.shape[0]
    g = grad.reshape(n, groups, oc // groups, -1)
    sampled = (val * wt[:, :, None]).sum(-1)
    col = (sampled * m[:, :, None]).reshape(n, groups, -1, g.shape[-1])
    grad_weight = (g @ col.transpose(2, 3)).sum(0).view_as(weight)
    gcol = (weight.reshape(groups, oc // groups, -1).transpose(1, 2) @ g).view_as(sampled)
    grad_mask = (gcol * sampled).sum(2).view_as(mask) if use_mask else torch.zeros_like(mask)
    gval = gcol * m[:, :, None]
    goff = torch.stack([((val * d[:, :, None]).sum(-1) * gval).sum(2) for d in (dy, dx)], 3)
    spread = (gval[..., None] * wt[:, :, None]).flatten(3)
    where = index.flatten(2)[:, :, None].expand(-1, -1, spread.shape[2], -1)
    grad_input = input.new_zeros(n, ogroups, c // ogroups, h * w).scatter_add_(3, where, spread)
    return grad_input.view_as(input), grad_weight, goff.reshape(offset.shape), grad_mask, grad.sum((0, 2, 3))


_KERNELS = [
    nms,
    roi_align,
    _roi_align_backward,
    roi_pool,
    _roi_pool_backward,
    ps_roi_align,
    _ps_roi_align_backward,
    deform_conv2d,
    _deform_conv2d_backward,
]
_lib = None


def install():
    global _lib
    spec = importlib.util.find_spec("torchvision")
    if spec is None:
        return
    try:
        torch.ops.load_library(os.path.join(spec.submodule_search_locations[0], "_C.so"))
        return
    except OSError:
        pass
    _lib = Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        _lib.define(schema)
    for kernel in _KERNELS:
        _lib.impl(kernel.__name__, kernel, "CPU")
    _lib.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")
    real = torch.ops.load_library
    torch.ops.load_library = lambda path: None if os.path.basename(path) == "_C.so" else real(path)
    try:
        import torchvision  # noqa: F401
    finally:
        torch.ops.load_library = real


install()

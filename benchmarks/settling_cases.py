"""The problems and networks of benchmarks/settling.py, with sizes for GPUs or smaller ones for CPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.case import Case, Step
from benchmarks.networks import NETS, gpt2, language_step, prepare_precision, training_step
from benchmarks.steps import train

Make = Callable[[], list[Any]]

KINDS = ("product", "convolution", "attention", "memory")  # with --together, a process for each
DTYPES = ("f32", "bf16")

# Channels in and out, filter, stride, size of the image, groups: of resnet50 and mobilenet_v2.
CONVOLUTIONS = (
    (3, 64, 7, 2, 224, 1),
    (64, 256, 1, 1, 56, 1),
    (64, 64, 3, 1, 56, 1),
    (128, 128, 3, 2, 56, 1),
    (512, 512, 3, 1, 7, 1),
    (384, 96, 1, 1, 14, 1),
    (144, 144, 3, 1, 56, 144),
    (192, 192, 3, 2, 28, 192),
)


def _normal(dtype: str, *shape: int, grad: bool = False) -> Any:
    """Random numbers on the host, whose gradient is asked for or not."""
    import torch

    return torch.randn(shape).to(torch.bfloat16 if dtype == "bf16" else torch.float32).requires_grad_(grad)


def _calls(f: Callable[..., Any], make: Make) -> Callable[[Any], Step]:
    """Builds calls of f, with gradients of the operands that ask for them. All operands, the result's gradient too, are
    made on the host, so that the device has run nothing but copies before the first call.
    """

    def build(device: Any) -> Step:
        import torch

        torch.manual_seed(0)
        made = make()
        operands = [x.detach().to(device).requires_grad_(x.requires_grad) for x in made]
        trained = [x for x in operands if x.requires_grad]
        if not trained:
            return lambda: f(*operands)
        result = f(*(x.to("meta") for x in made))
        grad = torch.randn(result.shape).to(result.dtype).to(device)
        return lambda: torch.autograd.grad(f(*operands), trained, grad)

    return build


def _products(large: bool) -> Iterator[tuple[str, Callable[..., Any], Callable[[str], list[Any]]]]:
    """Names, functions, and operands of a dtype."""
    import torch
    import torch.nn.functional as F

    def matrices(*shapes: tuple[int, ...], grad: bool = False) -> Callable[[str], list[Any]]:
        return lambda dtype: [_normal(dtype, *shape, grad=grad) for shape in shapes]

    for n in (512, 1024, 2048, 4096) if large else (64, 128, 256, 512):
        yield f"product {n}^3", torch.matmul, matrices((n, n), (n, n))
    n = 1024 if large else 256
    yield f"product {n}^3, first transposed", lambda a, b: a.mT @ b, matrices((n, n), (n, n))
    yield f"product {n}^3, second transposed", lambda a, b: a @ b.mT, matrices((n, n), (n, n))
    n = 4096 if large else 1024
    yield f"product 1x{n}x{n}", torch.matmul, matrices((1, n), (n, n))
    m, k, n = (1000, 333, 777) if large else (100, 333, 77)
    yield f"product {m}x{k}x{n}", torch.matmul, matrices((m, k), (k, n))
    b, m, k = (96, 256, 64) if large else (8, 64, 64)
    yield f"products {b} of {m}x{k}x{m}", torch.matmul, matrices((b, m, k), (b, k, m))
    m = 1024 if large else 32
    for k, n in ((768, 2304), (768, 768), (768, 3072), (3072, 768), *(((768, 50257),) if large else ())):
        yield f"linear {m}x{k}x{n} with gradients", F.linear, matrices((m, k), (n, k), (n,), grad=True)


def _convolutions(large: bool) -> Iterator[tuple[str, Callable[..., Any], Callable[[str], list[Any]]]]:
    """Names, functions, and operands of a dtype."""
    import torch.nn.functional as F

    batch = 32 if large else 1
    for c, k, size, stride, image, groups in CONVOLUTIONS:

        def convolve(x: Any, w: Any, size: int = size, stride: int = stride, groups: int = groups) -> Any:
            return F.conv2d(x, w, None, stride, size // 2, 1, groups)

        def operands(
            dtype: str, c: int = c, k: int = k, size: int = size, image: int = image, groups: int = groups
        ) -> list[Any]:
            x = _normal(dtype, batch, c, image, image, grad=c > 3)  # pictures need no gradient
            return [x, _normal(dtype, k, c // groups, size, size, grad=True)]

        name = f"{'depthwise' if groups > 1 else 'convolution'} {size}x{size} of {batch}x{c}x{image}x{image} to {k}"
        yield name + (f", stride {stride}" if stride > 1 else ""), convolve, operands


def _attention(large: bool) -> Iterator[tuple[str, Callable[..., Any], Callable[[str], list[Any]]]]:
    """Names, functions, and operands of a dtype."""
    from torch.nn.functional import scaled_dot_product_attention as attention

    shape = (8, 12, 1024, 64) if large else (1, 4, 128, 64)
    for causal in (True, False):
        for grad in (False, True):

            def attend(q: Any, k: Any, v: Any, causal: bool = causal) -> Any:
                return attention(q, k, v, is_causal=causal)

            def operands(dtype: str, grad: bool = grad) -> list[Any]:
                return [_normal(dtype, *shape, grad=grad) for _ in range(3)]

            name = f"attention {'x'.join(map(str, shape))}{', causal' if causal else ''}"
            yield name + (" with gradients" if grad else ""), attend, operands


def _memory_bound(large: bool) -> Iterator[tuple[str, Callable[..., Any], Make]]:
    """Names, functions and operands of what is bound by memory."""
    import torch
    import torch.nn.functional as F

    rows = 4096 if large else 256
    batch = 32 if large else 2
    image = (batch, 64, 112, 112) if large else (batch, 64, 56, 56)
    tokens, words = (8192, 50257) if large else (256, 8192)

    def on(*shape: int, grad: bool = True, dtype: str = "f32") -> Make:
        return lambda: [_normal(dtype, *shape, grad=grad)]

    def scaled(*shape: int, parameters: int, dtype: str = "f32") -> Make:
        """A tensor, and a scale and a shift of so many elements."""
        return lambda: [_normal(dtype, *size, grad=True) for size in (shape, (parameters,), (parameters,))]

    def classes(dtype: str) -> Make:
        return lambda: [_normal(dtype, rows, 1000, grad=True), torch.randint(1000, (rows,))]

    def batch_norm(x: Any, scale: Any, shift: Any) -> Any:
        return F.batch_norm(x, None, None, scale, shift, training=True)

    def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
        return F.layer_norm(x, scale.shape, scale, shift)

    yield f"softmax {rows}x1024 with gradients", lambda x: x.softmax(1), on(rows, 1024)
    yield f"softmax {rows}x1024 bf16", lambda x: x.softmax(1), on(rows, 1024, grad=False, dtype="bf16")
    for dtype in DTYPES:
        name = f"layer norm {rows}x768 with gradients {dtype}"
        yield name, layer_norm, scaled(rows, 768, parameters=768, dtype=dtype)
        name = f"batch norm {'x'.join(map(str, image))} with gradients {dtype}"
        yield name, batch_norm, scaled(*image, parameters=64, dtype=dtype)
        yield f"cross entropy {rows}x1000 with gradients {dtype}", F.cross_entropy, classes(dtype)
    yield f"sum of {rows << 10}", torch.sum, on(rows << 10, grad=False)
    yield f"sum of {rows} rows of 1024", lambda x: x.sum(1), on(rows, 1024, grad=False)
    yield f"sum of 1024 columns of {rows}", lambda x: x.sum(0), on(rows, 1024, grad=False)
    yield f"mean of {batch}x512x7x7 over images", lambda x: x.mean((2, 3)), on(batch, 512, 7, 7, grad=False)
    yield f"amax of {rows} rows of 1024", lambda x: x.amax(1), on(rows, 1024, grad=False)
    yield f"max pool 3x3 {'x'.join(map(str, image))} with gradients", lambda x: F.max_pool2d(x, 3, 2, 1), on(*image)
    yield f"average pool 2x2 {'x'.join(map(str, image))} with gradients", lambda x: F.avg_pool2d(x, 2), on(*image)
    yield (
        f"embedding {tokens} of {words}x768 with gradients",
        F.embedding,
        lambda: [torch.randint(words, (tokens,)), _normal("f32", words, 768, grad=True)],
    )


def problems(large: bool) -> list[Case]:
    """The problems, their kind as the suite. Those of both dtypes follow each other."""
    found = []
    for kind, rows in zip(KINDS, (_products, _convolutions, _attention), strict=False):
        for name, f, operands in rows(large):
            for dtype in DTYPES:

                def make(operands: Callable[[str], list[Any]] = operands, dtype: str = dtype) -> list[Any]:
                    return operands(dtype)

                found.append(Case(f"{name} {dtype}", kind, _calls(f, make)))
    return found + [Case(name, KINDS[-1], _calls(f, make)) for name, f, make in _memory_bound(large)]


def _cnn_step(batch: int, device: Any, precision: str) -> Step:
    """A step of training the network of examples/train_digits.py on random digits."""
    import torch
    from torch import nn

    dtype, context = prepare_precision(precision, device)
    layers: list[nn.Module] = []
    for before, after, pools in ((1, 32, False), (32, 64, True), (64, 64, True)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pools else []
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10)).to(device, dtype)
    x, y = torch.randn(batch, 1, 8, 8).to(dtype).to(device), torch.randint(10, (batch,)).to(device)
    return train(model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), x, y, context)


def _gpt2_step(large: bool, device: Any, precision: str) -> Step:
    """A step of training GPT-2, four of its layers on CPUs."""
    import torch

    net, context = gpt2(12 if large else 4, device, precision)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    return language_step(net, context, optimizer, (4, 256) if large else (1, 128))


def networks(large: bool) -> list[Case]:
    """Steps of training with SGD. Those in bfloat16 have weights of 16 bits."""
    steps: dict[str, Callable[[Any, str], Step]] = {
        "cnn": lambda device, precision: _cnn_step(512 if large else 64, device, precision)
    }
    for name in ("resnet18", "resnet50", "vit_b_16", "mobilenet_v3_small"):

        def of(device: Any, precision: str, name: str = name) -> Step:
            return training_step(name, NETS[name] if large else 4, device, precision)

        steps[name] = of
    steps["gpt2"] = lambda device, precision: _gpt2_step(large, device, precision)
    found = []
    for name, step in steps.items():
        for precision in DTYPES:

            def build(device: Any, step: Callable[[Any, str], Step] = step, precision: str = precision) -> Step:
                return step(device, precision)

            found.append(Case(name if precision == "f32" else f"{name}-{precision}", "network", build))
    return found

"""Steps of many small launches, eager and as graphs that are replayed: GPT-2 small that continues a text by one token
at a time, and the training of an MLP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.case import Case, Step

WIDTH, HEADS, LAYERS, VOCABULARY = 768, 12, 12, 50257  # of GPT-2 small
LENGTH = 256  # tokens that the caches hold


class Layer(nn.Module):
    """A layer of GPT-2 that keeps the keys and values of all tokens up to now."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, HEADS, LENGTH, WIDTH // HEADS))

    def forward(self, x: torch.Tensor, position: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.view(1, 1, HEADS, -1).transpose(1, 2) for t in self.qkv(self.attention_norm(x)).chunk(3, -1))
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        attended = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(1, 1, WIDTH))
        x += self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))
        return x


class Decoder(nn.Module):
    """GPT-2 small, which takes a token and its position and gives the next token, all on the device."""

    places: torch.Tensor

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("places", torch.arange(LENGTH))

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = (self.tokens(token) + self.positions(position)).unsqueeze(0)
        mask = (self.places <= position).view(1, 1, 1, LENGTH)
        for layer in self.layers:
            x = layer(x, position, mask)
        logits: torch.Tensor = self.head(self.norm(x))[0]
        return logits.argmax(-1)


def decode_step(device: torch.device, dtype: torch.dtype = torch.float32, layers: int = LAYERS) -> Step:
    """A step that puts the next token, and its position, where the next step reads them."""
    torch.manual_seed(0)
    model = Decoder(layers).to(device, dtype).eval()
    token, position = (torch.zeros(1, dtype=torch.long).to(device) for _ in range(2))

    @torch.no_grad()
    def step() -> torch.Tensor:
        token.copy_(model(token, position))
        position.add_(1).remainder_(LENGTH)
        return token

    return step


def mlp_step(device: torch.device) -> Step:
    """A step of training a small MLP with Adam."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=device.type != "cpu")
    x, y = torch.randn(32, 64).to(device), torch.randint(10, (32,)).to(device)

    @torch.enable_grad()
    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    return step


def graphed(step: Step, device: torch.device, warm: int = 8) -> Step:
    """The step as a graph that is replayed; on a CPU as it is, for there are no graphs."""
    if device.type == "cpu":
        return step
    module: Any = torch.get_device_module(device)
    side = module.Stream()
    side.wait_stream(module.current_stream())
    with module.stream(side):
        for _ in range(warm):
            step()
    module.current_stream().wait_stream(side)
    module.synchronize()
    graph = module.CUDAGraph() if device.type == "cuda" else module.OclGraph()
    with module.graph(graph):
        step()
    return graph.replay  # type: ignore[no-any-return]


def cases() -> list[Case]:
    """Each eager and as a graph."""

    def decode(device: torch.device) -> Step:
        return decode_step(device)

    rows = [("gpt2 decode, one token", decode), ("MLP 64-128-128-10 training, Adam", mlp_step)]

    def replayed(build: Callable[[torch.device], Step]) -> Callable[[torch.device], Step]:
        return lambda device: graphed(build(device), device)

    eager = [Case(f"{name}, eager", "graphs", build) for name, build in rows]
    return eager + [Case(f"{name}, graph", "graphs", replayed(build)) for name, build in rows]

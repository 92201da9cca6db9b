"""A small GPT on characters: training with AdamW and clipped gradients, then greedy sampling."""

import torch
from torch import nn
from torch.nn import functional as F

TEXT = "the quick brown fox jumps over the lazy dog. " * 20
CONTEXT = 16


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, characters: int, width: int = 32) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(characters, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.norm(self.blocks(self.token(ids) + self.place(places))))


def main(device: str) -> list[float]:
    """The losses of the steps, and at last how many of the sampled characters are right."""
    torch.manual_seed(1)
    letters = sorted(set(TEXT))
    ids = torch.tensor([letters.index(letter) for letter in TEXT])
    net = GPT(len(letters)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    losses = []
    for _ in range(40):
        starts = torch.randint(len(ids) - CONTEXT - 1, (16,))
        x = torch.stack([ids[i : i + CONTEXT] for i in starts]).to(device)
        y = torch.stack([ids[i + 1 : i + CONTEXT + 1] for i in starts]).to(device)
        loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    net.eval()
    sample = ids[None, :CONTEXT].to(device)
    with torch.no_grad():
        for _ in range(16):
            following = net(sample[:, -CONTEXT:])[:, -1].softmax(-1).argmax(-1, keepdim=True)
            sample = torch.cat([sample, following], 1)
    right = (sample[0].cpu() == ids[: sample.shape[1]]).float().mean().item()
    return [*losses, right]

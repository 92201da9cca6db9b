"""An LSTM that tells whether a sentence of two sorts of words has more of the first, with packed sequences."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, 1)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.words(ids), lengths, batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.lstm(packed)
        return self.out(torch.cat([hidden[0], hidden[1]], 1)).squeeze(1)


def main(device: str) -> list[float]:
    """The losses of the steps."""
    torch.manual_seed(1)
    net = Classifier().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for _ in range(20):
        lengths = torch.randint(3, 10, (16,))
        lengths[0] = 9
        ids = torch.randint(1, 20, (16, 9)) * (torch.arange(9) < lengths[:, None])
        label = (((ids > 0) & (ids < 10)).sum(1) * 2 > lengths).float().to(device)
        loss = nn.functional.binary_cross_entropy_with_logits(net(ids.to(device), lengths), label)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses

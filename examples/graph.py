"""Training a small net by a graph: the step is captured once, and then replayed without Python or the dispatcher.

python examples/graph.py [--device ocl:0] [--steps 300]
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

import dlbackend  # noqa: F401 (for the device's name, where another accelerator is there too)


class Training:
    """A net and its optimizer, with the tensors that a step reads its batch from."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
        self.net = net.to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-2, capturable=True)
        self.x, self.y = torch.zeros(64, 16, device=device), torch.zeros(64, 1, device=device)

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.net(self.x), self.y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss

    def load(self, batch: torch.Tensor) -> None:
        self.x.copy_(batch)
        self.y.copy_(batch.sin().sum(1, keepdim=True))


def captured(training: Training) -> tuple["torch.ocl.OclGraph", torch.Tensor]:  # type: ignore[name-defined]
    """The step as a graph, and the tensor that each replay leaves its loss in."""
    ocl = torch.ocl  # type: ignore[attr-defined]
    graph = ocl.OclGraph()
    with ocl.graph(graph):
        loss = training.step()
    return graph, loss


def run(device: torch.device, batches: list[torch.Tensor], graphed: bool) -> tuple[float, float]:
    """Milliseconds a step, and the last loss."""
    ocl = torch.ocl  # type: ignore[attr-defined]
    training = Training(device)
    side = ocl.Stream()
    side.wait_stream(ocl.current_stream())  # the net and its tensors are made there
    with ocl.stream(side):  # the warm-up: kernels are built, and the optimizer makes its state
        for batch in batches[:3]:
            training.load(batch)
            training.step()
    ocl.synchronize()
    graph, loss = captured(training) if graphed else (None, torch.zeros(()))
    start = time.perf_counter()
    for batch in batches[3:]:
        training.load(batch)
        if graph:
            graph.replay()
        else:
            loss = training.step()
    last = loss.item()
    return (time.perf_counter() - start) / (len(batches) - 3) * 1e3, last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl:0")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    torch.manual_seed(1)
    batches = [torch.randn(64, 16) for _ in range(options.steps + 3)]
    for name, graphed in (("eager", False), ("graph", True)):
        took, last = run(torch.device(options.device), batches, graphed)
        print(f"{name}: {took:.3f} ms a step, last loss {last:.6f}")


if __name__ == "__main__":
    main()

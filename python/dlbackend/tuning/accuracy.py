"""How far a model's results are from the right ones."""

from math import inf

import torch

from dlbackend.tuning.variant import Json


def accuracy_of(found: list[torch.Tensor], expected: list[torch.Tensor]) -> Json:
    """The "accuracy" of a tuning's JSON for results in float64 on the CPU (docs/tuning.md)."""
    got, want = (torch.cat([x.flatten() for x in xs]) for xs in (found, expected))
    finite = bool(got.isfinite().all())
    agreement = None
    if found[0].dim() >= 2 and found[0].shape == expected[0].shape:
        classes = 2 if found[0].dim() == 3 else 1  # (batch, tokens, classes); else (batch, classes, ...)
        if found[0].shape[classes] > 1:
            agreement = (found[0].argmax(classes) == expected[0].argmax(classes)).double().mean().item()
    largest, norm = _errors(got - want, want) if finite else (None, None)
    return {"finite": finite, "max_relative": largest, "relative_l2": norm, "top1_agreement": agreement}


def _errors(difference: torch.Tensor, want: torch.Tensor) -> tuple[float, float]:
    """Largest difference over the largest value, and relative L2 norm. Infinite where the wanted result is zero or
    not finite, and the result is another.
    """
    if not difference.any():  # true also of results that are all zero, or empty
        return 0.0, 0.0
    if not want.isfinite().all():
        return inf, inf
    return (difference.abs().max() / want.abs().max()).item(), (difference.norm() / want.norm()).item()

"""
Muon (https://kellerjordan.github.io/posts/muon/): momentum whose matrices are made orthogonal before they are added.

As torch.optim.Muon with `match_rms_adamw`, but for two things that matter on CPUs: its products are F32, as CPUs without
BF16 take a hundred times as long for those of BF16, and matrices of one shape are computed together.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

# Of the quintic polynomial; chosen there so that small singular values grow as fast as they can.
A, B, C = 3.4445, -4.7750, 2.0315
ITERATIONS = 5


def orthogonal(matrices: Tensor) -> Tensor:
    """About U·Vᵀ of each matrix [n, rows, columns] = U·S·Vᵀ, by Newton and Schulz; wants rows ≤ columns."""
    x = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x


class Muon(torch.optim.Optimizer):
    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float, momentum: float):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        assert closure is None
        for group in self.param_groups:
            of_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
            for weight in group["params"]:
                kept = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                kept.lerp_(weight.grad, 1 - group["momentum"])
                # Nesterov's: a step ahead of the momentum.
                update = weight.grad.lerp(kept, group["momentum"])
                # Views, so that what is subtracted from one that was turned is subtracted from the weight.
                wide, update = (weight, update) if weight.shape[0] <= weight.shape[1] else (weight.mT, update.mT)
                of_shape.setdefault(tuple(wide.shape), []).append((wide, update))
            for (rows, columns), pairs in of_shape.items():
                updates = orthogonal(torch.stack([update for _, update in pairs]))
                # So that an element changes by about as much as AdamW changes it, and one rate suits both.
                rate = group["lr"] * 0.2 * max(rows, columns) ** 0.5
                for (wide, _), update in zip(pairs, updates):
                    wide.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=rate)

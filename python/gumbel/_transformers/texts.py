# SPDX-License-Identifier: Apache-2.0
"""Seeds, samples and positions of the texts of a batch."""

from __future__ import annotations

import copy
from typing import Any, Optional, Sequence, Union

import torch

from .._inputs.numbers import read_integer

SEED_END = 2**64


def read_seeds(seed: Union[None, int, Sequence[int]], prompts: int) -> list[int]:
    """One seed for each prompt. If `seed` is None, torch's global generator draws them.

    Raises ValueError for a list of another length, and for seeds outside [0, 2**64).
    """
    if seed is None:
        drawn: list[int] = torch.randint(0, 2**63 - 1, (prompts,)).tolist()
        return drawn
    if isinstance(seed, (list, tuple)):
        if len(seed) != prompts:
            raise ValueError(f"seed: expected one, or {prompts}, one a prompt, got {len(seed)}")
        return [read_integer(f"seed[{i}]", s, 0, SEED_END - 1) for i, s in enumerate(seed)]
    return [read_integer("seed", seed, 0, SEED_END - 1)] * prompts


class Texts:
    """Seed, sample and position of B rows. Each prompt has `copies` rows, its samples 0, 1, ...

    seed         uint64 [B].
    sample       int32 [B], the first_sample of a draw; None: all 0.
    position     int64 [B]: the index of each row's last token, not counting padding. The next token
                 is drawn from that token's logits. The caller advances it.
    """

    def __init__(self, input_ids: torch.Tensor, mask: Any, seed: Any, copies: int) -> None:
        rows, length = input_ids.shape
        self.mask = mask if mask is not None and mask.shape == input_ids.shape else None
        seeds = [s for s in read_seeds(seed, rows // copies) for _ in range(copies)]
        self.seed = torch.tensor(seeds, dtype=torch.uint64).to(input_ids.device)
        self.sample: Optional[torch.Tensor] = None
        if copies > 1:
            self.sample = torch.arange(rows, dtype=torch.int32, device=input_ids.device) % copies
        if mask is None or mask.ndim != 2:
            self.position = torch.full((rows,), length - 1, device=input_ids.device)
        else:  # the mask covers the whole prompt; `input_ids` may be a part of it
            self.position = mask.long().sum(1) - 1

    def noise_arguments(self) -> dict[str, torch.Tensor]:
        """The keyword arguments seed, position and first_sample, which determine the noise."""
        given = {"seed": self.seed, "position": self.position}
        return given if self.sample is None else {**given, "first_sample": self.sample}

    def remove_padding(self, input_ids: torch.Tensor) -> list[list[int]]:
        """The tokens of each row [B, L] without the padding of its prompt."""
        rows: list[list[int]] = input_ids.tolist()
        if self.mask is None:
            return rows
        kept = self.mask.bool().tolist()
        width = self.mask.shape[1]
        return [[t for t, k in zip(row, keep) if k] + row[width:] for row, keep in zip(rows, kept)]

    def copy_to(self, device: Any) -> Texts:
        """A copy on `device` whose positions advance separately, for a draft model."""
        other = copy.copy(self)
        other.seed = self.seed.to(device)
        other.sample = None if self.sample is None else self.sample.to(device)
        other.position = self.position.to(device, copy=True)
        return other

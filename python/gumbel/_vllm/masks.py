# SPDX-License-Identifier: Apache-2.0
"""Masks of tokens in words of 32 bits: bit t & 31 of word t >> 5 allows token t."""

from __future__ import annotations

from typing import Any, Optional

import torch


def _bits(device: Any) -> torch.Tensor:
    return torch.arange(32, dtype=torch.int32, device=device)


def pack(allowed: torch.Tensor) -> torch.Tensor:
    """Words int32 [n, ceil(V / 32)] of bool [n, V]."""
    rows, vocab = allowed.shape
    words = (vocab + 31) // 32
    padded = allowed.new_zeros(rows, words * 32)
    padded[:, :vocab] = allowed
    shifted = padded.view(rows, words, 32).to(torch.int32) << _bits(allowed.device)
    return shifted.sum(-1, dtype=torch.int32)


def forbid(logits: torch.Tensor, mask: torch.Tensor) -> None:
    """Set what a mask [n, words] does not allow to -inf, in place."""
    bits = (mask.unsqueeze(-1) >> _bits(mask.device)) & 1
    allowed = bits.view(len(mask), -1)[:, : logits.shape[1]]
    logits.masked_fill_(allowed == 0, float("-inf"))


def both(one: Optional[torch.Tensor], other: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
    """What two masks allow; None allows all."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def full(rows: int, vocab: int, device: Any) -> torch.Tensor:
    """A mask that allows everything."""
    return torch.full((rows, (vocab + 31) // 32), -1, dtype=torch.int32, device=device)


def of_grammars(
    given: Any, counts: list[int], places: list[Optional[int]], rows: int, vocab: int
) -> torch.Tensor:
    """A mask int32 [rows, words] of what grammars give some requests, on the host.

    given        int32 [any, words or more], as NumPy has it: each request's rows, side by side, or
                 the same number of rows for each, of which it uses the first.
    counts       rows that each of these requests uses.
    places       the row of the first; None: it is not in this batch.
    """
    mask = full(rows, vocab, "cpu")
    bits = torch.from_numpy(given)[:, : mask.shape[1]]
    compact = sum(counts) == len(bits)
    first = 0
    for count, place in zip(counts, places):
        if place is not None:
            mask[place : place + count] = bits[first : first + count]
        first += count if compact else len(bits) // len(counts)
    return mask

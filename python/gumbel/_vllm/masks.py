# SPDX-License-Identifier: Apache-2.0
"""Masks of tokens in words of 32 bits: bit t & 31 of word t >> 5 allows token t."""

from __future__ import annotations

from typing import Any, Optional

import torch


def _bits(device: Any) -> torch.Tensor:
    return torch.arange(32, dtype=torch.int32, device=device)


def pack_mask(allowed: torch.Tensor) -> torch.Tensor:
    """Words int32 [n, ceil(V / 32)] of bool [n, V]."""
    rows, vocab = allowed.shape
    words = (vocab + 31) // 32
    padded = allowed.new_zeros(rows, words * 32)
    padded[:, :vocab] = allowed
    shifted = padded.view(rows, words, 32).to(torch.int32) << _bits(allowed.device)
    return shifted.sum(-1, dtype=torch.int32)


def apply_mask(logits: torch.Tensor, mask: torch.Tensor) -> None:
    """Set the logits that a mask [n, words] does not allow to -inf, in place."""
    bits = (mask.unsqueeze(-1) >> _bits(mask.device)) & 1
    allowed = bits.view(len(mask), -1)[:, : logits.shape[1]]
    logits.masked_fill_(allowed == 0, float("-inf"))


def intersect_masks(
    one: Optional[torch.Tensor], other: Optional[torch.Tensor]
) -> Optional[torch.Tensor]:
    """The intersection of two masks; None allows all."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def full_mask(rows: int, vocab: int, device: Any) -> torch.Tensor:
    """A mask that allows all tokens."""
    return torch.full((rows, (vocab + 31) // 32), -1, dtype=torch.int32, device=device)


def read_grammar_masks(
    given: Any, counts: list[int], places: list[Optional[int]], rows: int, vocab: int
) -> torch.Tensor:
    """A mask int32 [rows, words] of the batch, on the host, from the masks of grammars.

    given        int32 NumPy array [any, words or more]: the rows of each request with a grammar,
                 packed; or an equal number of rows for each request, of which it uses the first.
    counts       number of rows that each of these requests uses.
    places       its first row in the batch; None: the request is not in the batch.
    """
    mask = full_mask(rows, vocab, "cpu")
    bits = torch.from_numpy(given)[:, : mask.shape[1]]
    compact = sum(counts) == len(bits)
    first = 0
    for count, place in zip(counts, places):
        if place is not None:
            mask[place : place + count] = bits[first : first + count]
        first += count if compact else len(bits) // len(counts)
    return mask

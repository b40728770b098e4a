# SPDX-License-Identifier: Apache-2.0
"""The call of flashinfer.topk that selects: top_k()."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch

from .._calls.sample_calls import top_k as largest
from .calls import DTYPES, rows_of
from .sampling import WATCH

LISTED_MOST = 128  # what the library lists of a row


class TopKTieBreak(IntEnum):
    """Which of equal values are taken where not all of them are: any, lower ids, higher ids."""

    NONE = 0
    SMALL = 1
    LARGE = 2

    def __str__(self) -> str:
        return self.name.lower()


def top_k(
    input: torch.Tensor,
    k: int,
    sorted: bool = False,
    deterministic: bool = False,
    tie_break: int = TopKTieBreak.NONE,
    dsa_graph_safe: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k largest of each row and where they are: values in its dtype and int64 ids, [rows, k].

    input        [rows, V], float32, float16 or bfloat16.
    tie_break    a TopKTieBreak; NONE takes lower ids up to k = 128 and is torch.topk() above.

    Sorted whatever `sorted` says, larger values first, then by `tie_break`; `deterministic` and
    `dsa_graph_safe` change nothing. No row may hold a NaN: up to k = 128 its ids are 0, and it is
    counted as `sampling` does. ValueError for k outside of [1, V].
    """
    rows = rows_of("input", input)
    if input.dtype not in DTYPES:
        raise ValueError(f"input: expected float32, float16 or bfloat16, got {input.dtype}")
    vocab, tie_break = rows.shape[1], TopKTieBreak(tie_break)
    if not 1 <= k <= vocab:
        raise ValueError(f"k: must be in [1, {vocab}], is {k}")
    if tie_break is TopKTieBreak.LARGE:
        values, ids = _smallest_ids(rows.flip(1), k)
        return values, vocab - 1 - ids
    if tie_break is TopKTieBreak.NONE and k > LISTED_MOST:
        return torch.topk(rows, k)
    return _smallest_ids(rows, k)


topk = top_k


def _smallest_ids(rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    if k > LISTED_MOST:
        ordered, places = torch.sort(rows, dim=-1, descending=True, stable=True)
        return ordered[:, :k], places[:, :k]
    # The library lists what can be drawn, which -inf cannot, and no row that has +inf.
    ends = torch.finfo(rows.dtype)
    clamped: Any = rows.clamp(ends.min, ends.max)
    found: Any = largest(clamped, k)[1]
    WATCH.look((found[:, 0] < 0).int())  # 1 is the status of a NaN
    ids: torch.Tensor = found.clamp(min=0).long()
    return rows.gather(1, ids), ids

# SPDX-License-Identifier: Apache-2.0
"""flashinfer.topk.top_k(): the largest values of rows."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch

from .._calls.sample_calls import top_k as largest
from .calls import DTYPES, rows_of
from .sampling import WATCH

LISTED_MAX = 128  # the largest k of the library's top_k()


class TopKTieBreak(IntEnum):
    """Which of equal values are selected if not all are: any, lower ids, or higher ids."""

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
    """The k largest values of each row and their ids: [rows, k], in the input's dtype and int64.

    input        [rows, V], float32, float16 or bfloat16.
    tie_break    a TopKTieBreak; NONE selects lower ids for k <= 128, and is torch.topk() above.

    Results are always sorted, largest first, ties by `tie_break`; `sorted`, `deterministic` and
    `dsa_graph_safe` are ignored. Rows must not hold a NaN: for k <= 128 the ids of such a row are
    0, and the row is counted as in `sampling`. Raises ValueError for k outside [1, V].
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
    if tie_break is TopKTieBreak.NONE and k > LISTED_MAX:
        return torch.topk(rows, k)
    return _smallest_ids(rows, k)


topk = top_k


def _smallest_ids(rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    if k > LISTED_MAX:
        ordered, places = torch.sort(rows, dim=-1, descending=True, stable=True)
        return ordered[:, :k], places[:, :k]
    # The library's top_k() returns no -inf, and nothing for rows with +inf: clamp both.
    ends = torch.finfo(rows.dtype)
    clamped: Any = rows.clamp(ends.min, ends.max)
    found: Any = largest(clamped, k)[1]
    WATCH.record((found[:, 0] < 0).int())  # 1 is the status of a NaN
    ids: torch.Tensor = found.clamp(min=0).long()
    return rows.gather(1, ids), ids

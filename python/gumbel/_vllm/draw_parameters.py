# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters of a step's requests, in the form that the library takes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Optional

import torch

from .._inputs.history import History
from .._inputs.row_lists import RowLists

PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
TRUNCATION = ("top_k", "top_p", "min_p")


@dataclass
class DrawParameters:
    """Sampling parameters of a step's requests.

    rows         [B] tensors: temperature, seed, position, top_k, top_p, min_p, penalties. If all
                 requests are greedy: temperature and penalties only.
    more         lists of tokens of each row: logit_bias, banned, allowed.
    mask         int32 [n, words], one row for each row of logits: tokens that may be drawn.
    history      the tokens that penalties count. None: there are no penalties.
    slots        int32 [B], the slot of each row. `rows` and `history` then have an entry for each
                 slot, and `slots` and the tensors of `rows` have the same addresses at every step.
    batch_key    while this is the same object, `rows` is unchanged except for position.
    orders       of the programs that `rows` names; empty: vLLM's order.
    kept_ids     places of a row for the tokens that truncation keeps; 0: they are not listed. Ties
                 of top_k are then cut, so that every row of at most this top_k fits.
    lists        token lists of the rows (dry_lists.py), made for this step. None: there are none.
    others       further draws, and the rows bool [B] whose results are theirs (request_rules.py).
    """

    rows: dict[str, torch.Tensor]
    more: dict[str, Any] = field(default_factory=dict)
    mask: Optional[torch.Tensor] = None
    history: Optional[History] = None
    slots: Optional[torch.Tensor] = None
    batch_key: Any = None
    orders: tuple[str, ...] = ()
    kept_ids: int = 0
    lists: Optional[RowLists] = None
    others: list[tuple[torch.Tensor, "DrawParameters"]] = field(default_factory=list)

    @property
    def edits_logits(self) -> bool:
        """Whether there are parameters besides temperature and truncation by a gumbel_order."""
        return self.history is not None or bool(self.orders) or not self.preparable

    @property
    def truncates(self) -> bool:
        """Whether some requests have top_k, top_p or min_p."""
        return any(name in self.rows for name in TRUNCATION)

    @property
    def preparable(self) -> bool:
        """Whether a prepared call can serve later steps, too: there are no lists and no mask."""
        return not self.more and self.mask is None and self.lists is None

    @functools.cached_property
    def call_key(self) -> tuple[Any, ...]:
        """The properties on which a prepared call depends; values of `rows` are not among them."""
        history = None if self.history is None else id(self.history)
        return self.slots is None, history, self.orders, self.kept_ids, *self.rows

    @property
    def places(self) -> dict[str, Any]:
        """Arguments of a call that say which entry of `rows` a row of logits has."""
        if self.slots is None:
            return {}
        return {"slots": self.slots, "num_slots": len(self.rows["temperature"])}

    def edits(self) -> dict[str, Any]:
        """Arguments of a call that edit logits before the temperature."""
        penalties = {name: self.rows[name] for name in PENALTIES if name in self.rows}
        mask = None if self.mask is None else self.by_entry(self.mask, -1)
        found = {**penalties, **self.more, "mask": mask, "history": self.history}
        return found if self.lists is None else {**found, "lists": self.lists}

    def arguments(self) -> dict[str, Any]:
        """All arguments of a call, with the bits of int64 seeds as uint64."""
        rows = dict(self.rows)
        if "seed" in rows:
            rows["seed"] = rows["seed"].view(torch.uint64)
        order: dict[str, Any] = {"order": "vllm"}
        if self.orders:
            p_less = any("p_less" in order for order in self.orders)
            order = {"order": list(self.orders), "p_less": p_less}
        listed = {"kept_ids": self.kept_ids, "ties": "exact"} if self.kept_ids else {}
        return {**rows, **self.edits(), **self.places, **order, **listed}

    def by_entry(self, values: torch.Tensor, fill: int) -> torch.Tensor:
        """`values`, one for each row of logits, in the order of `rows`; `fill` in other entries."""
        if self.slots is None:
            return values
        shape = (len(self.rows["temperature"]), *values.shape[1:])
        return values.new_full(shape, fill).index_copy_(0, self.slots.long(), values)


@dataclass
class LogprobsRequest:
    """The requested log-probabilities: for how many tokens, and whether of the raw logits."""

    count: int
    raw: bool

# SPDX-License-Identifier: Apache-2.0
"""Draws from hidden states if the logits are deferred (lazy.py), else from logits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, NamedTuple, Optional

import torch

from .._calls import drafts as _drafts, prepared as _prepared, sample_calls as _sampling
from .._calls.screens import Screen
from . import faults, weights
from .counts import counts
from .lazy import LazyLogits, is_lazy, materialise
from .masks import intersect_masks
from .ranks import listed, rank
from .threads import threads_for

TOP_MAX = 128  # largest top_logprobs of the library
_CHANGING = ("seed", "position")  # parameters that change at every step of an unchanged batch
CALLS_KEPT = 32  # prepared calls; each batch size has its own


@dataclass
class DrawParameters:
    """Sampling parameters of a step's requests, in the form that the library takes.

    rows         [B] tensors: temperature, seed, position, top_k, top_p, min_p; if all requests
                 are greedy, temperature only.
    more         other arguments of a call: logit_bias, banned, allowed, penalties and their lists
                 of tokens.
    mask         int32 [n, words], one row for each row of logits: tokens that may be drawn.
    batch_key    while this is the same object, `rows` is unchanged except for seed and position.
    """

    rows: dict[str, torch.Tensor]
    more: dict[str, Any] = field(default_factory=dict)
    mask: Optional[torch.Tensor] = None
    batch_key: Any = None

    def edit_logits(self) -> bool:
        """Whether there are parameters besides temperature and truncation."""
        return bool(self.more) or self.mask is not None


@dataclass
class LogprobsRequest:
    """The requested log-probabilities: for how many tokens, and whether of the raw logits."""

    count: int
    raw: bool


@dataclass
class Drawn:
    """Drawn tokens; ids and log-probabilities of the drawn token, then of the likeliest tokens."""

    tokens: torch.Tensor  # int32 [B, 1]
    ids: Optional[torch.Tensor] = None  # int32 [B, 1 + count]
    logprobs: Optional[torch.Tensor] = None  # float32 [B, 1 + count]
    ranks: Optional[torch.Tensor] = None  # int32 [B]


def _add_mask(logits: Any, parameters: DrawParameters) -> DrawParameters:
    """`parameters` with the mask of deferred logits."""
    if not is_lazy(logits) or logits.mask is None:
        return parameters
    return replace(parameters, mask=intersect_masks(parameters.mask, logits.mask))


class Calls(NamedTuple):
    """The library's calls for one kind of input: a head, logits, or a shard of either."""

    sample: Callable[..., Any]
    score: Callable[..., Any]
    verify: Callable[..., Any]
    prepare: Callable[..., Any]


_HEAD = Calls(_sampling.sample, _sampling.score, _drafts.verify, _prepared.prepare_sample)
_LOGITS = Calls(
    _sampling.sample_logits,
    _sampling.score_logits,
    _drafts.verify_logits,
    _prepared.prepare_sample_logits,
)


def calls_for(logits: Any) -> tuple[Calls, tuple[Any, ...], dict[str, Any]]:
    """The calls for these logits, their first arguments, and their keyword arguments."""
    if not is_lazy(logits):
        logits = materialise(logits)
        return _LOGITS, (logits,), threads_for(logits)
    if logits.shard is None:
        given = {**logits.head, **threads_for(logits.hidden)}
        return _HEAD, (logits.hidden, logits.screen or logits.weight), given
    group = logits.shard.group
    if logits.columns is None:
        calls = Calls(group.sample, group.score, group.verify, group.prepare_sample)
        return calls, (logits.hidden, logits.weight), logits.head
    calls = Calls(
        group.sample_logits, group.score_logits, group.verify_logits, group.prepare_sample_logits
    )
    return calls, (logits.columns(),), {"vocab_size": logits.head["vocab_size"]}


def _cut_mask_to_shard(logits: Any, parameters: DrawParameters) -> DrawParameters:
    """`parameters` with the mask of this rank's shard."""
    if parameters.mask is None or not is_lazy(logits) or logits.shard is None:
        return parameters
    return replace(parameters, mask=logits.shard.mask(parameters.mask))


def _count_name(logits: Any, otherwise: Optional[str]) -> Optional[str]:
    """Name of the field of Counts in which a draw from these logits is counted."""
    if not is_lazy(logits):
        return otherwise
    return "fused" if logits.columns is None else "logits"


@dataclass
class _PreparedDraw:
    """A prepared call, and the tensors of row parameters that it reads at each step."""

    call: _prepared.PreparedCall
    held: dict[str, torch.Tensor]
    batch_key: Any = None  # DrawParameters.batch_key when `held` was written


class Drawer:
    """Draws for a runner. Prepared calls are cached for later steps."""

    def __init__(self) -> None:
        self.prepared: dict[Any, _PreparedDraw] = {}
        weights.hold(self)

    def forget(self) -> None:
        """Drop the prepared calls and their references to weights and workspaces."""
        self.prepared.clear()

    def draw(
        self,
        logits: Any,
        parameters: DrawParameters,
        requested: Optional[LogprobsRequest] = None,
        counted_as: Optional[str] = "logits",
    ) -> Drawn:
        """Draw a token for each row.

        `counted_as` is the count of a draw from logits; None: it is not counted.
        """
        parameters = _add_mask(logits, parameters)
        twice = requested is not None and requested.raw and parameters.edit_logits()
        if requested is not None and requested.raw and isinstance(logits, LazyLogits):
            # vLLM's raw logits include scale, soft-cap and grammar mask.
            if twice or not logits.is_plain:
                logits = logits.get()
        if requested is not None and is_lazy(logits) and logits.screen_only:
            logits = logits.get()  # a screen has no log-probabilities
        counts.add(_count_name(logits, counted_as))
        parameters = _cut_mask_to_shard(logits, parameters)
        if not parameters.edit_logits():
            return self._draw_prepared(logits, parameters, requested)
        calls, inputs, given = calls_for(logits)
        place = inputs[0].device
        wanted = {} if requested is None or twice else _logprobs_arguments(requested, place)
        out = calls.sample(
            *inputs, **given, **call_arguments(parameters), **{"logprobs": None, **wanted}
        )
        faults.note(out.status)
        # A row without a token gets token 0, a valid index; faults.py ends its request.
        tokens = out.tokens.clamp(min=0)
        if requested is None:
            return Drawn(tokens)
        edits = {**parameters.more, "mask": parameters.mask}
        if twice:
            count = listed(requested.count, place)
            out, edits = calls.score(*inputs, out.tokens, top_logprobs=count, **given), {}
        ranks = rank(calls.sample, inputs, given, out, parameters.rows["temperature"], edits)
        return _format_drawn(tokens, out, ranks, requested.count, True)

    def _draw_prepared(
        self, logits: Any, parameters: DrawParameters, requested: Optional[LogprobsRequest]
    ) -> Drawn:
        """Draw by a prepared call; only row parameters, no edits of logits."""
        calls, inputs, given = calls_for(logits)
        first, rows = inputs[0], parameters.rows
        key = self._key(logits, calls, inputs, given, requested, rows)
        known = self.prepared.pop(key, None)
        if known is None:
            if len(self.prepared) >= CALLS_KEPT:  # drop the least recently used one
                self.prepared.pop(next(iter(self.prepared)))
            held = {name: value.clone() for name, value in rows.items()}
            wanted = (
                {"logprobs": None}
                if requested is None
                else _logprobs_arguments(requested, first.device)
            )
            call = calls.prepare(*inputs, **given, **_view_seeds(held), **wanted, order="vllm")
            known = _PreparedDraw(call, held)
        else:
            same = known.batch_key is not None and known.batch_key is parameters.batch_key
            for name in _CHANGING if same else rows:
                if name in rows:
                    known.held[name].copy_(rows[name])
        known.batch_key = parameters.batch_key
        self.prepared[key] = known
        # The next call overwrites these results, hence clamp() into a new tensor.
        drawn: Any = known.call(first)
        faults.note(drawn.status)
        tokens = drawn.tokens.clamp(min=0)
        if requested is None:
            return Drawn(tokens)
        ranks = rank(calls.sample, inputs, given, drawn, rows["temperature"], {})
        return _format_drawn(tokens, drawn, ranks, requested.count, False)

    @staticmethod
    def _key(logits: Any, calls: Any, inputs: Any, given: Any, requested: Any, rows: Any) -> Any:
        """Everything that a prepared call depends on except the values of the row parameters."""
        first, last = inputs[0], inputs[-1]
        weight = weights.place_of(logits.weight) if len(inputs) > 1 else None
        screen = last.address if isinstance(last, Screen) else 0
        shown = None if requested is None else (requested.count, requested.raw)
        kind = (first.shape, first.stride(), first.dtype)
        head = (weights.place_of(value) for value in given.values())
        return (calls.prepare, weight, screen, *kind, *head, shown, *rows)


def _view_seeds(rows: dict[str, Any]) -> dict[str, Any]:
    """Row parameters with the bits of int64 seeds as uint64."""
    return {**rows, "seed": rows["seed"].view(torch.uint64)} if "seed" in rows else rows


def call_arguments(parameters: DrawParameters) -> dict[str, Any]:
    """The keyword arguments of a call."""
    return {
        **_view_seeds(parameters.rows),
        **parameters.more,
        "mask": parameters.mask,
        "order": "vllm",
    }


def _logprobs_arguments(requested: LogprobsRequest, place: torch.device) -> dict[str, Any]:
    return {
        "logprobs": "raw" if requested.raw else "processed",
        "top_logprobs": listed(requested.count, place),
        "ranks": True,
    }


def _format_drawn(
    tokens: torch.Tensor, out: Any, ranks: torch.Tensor, count: int, some_removed: bool
) -> Drawn:
    """Results in vLLM's layout: the drawn token first, then `count` likeliest; in new tensors."""
    ids, logprobs = tokens, out.logprobs
    if count:
        top = out.top_ids[:, :count]
        if some_removed:
            missing = top < 0
            others = _others(torch.cat((tokens, top), 1), top.shape[1])
            places = (missing.cumsum(1) - 1).clamp(min=0)
            top = torch.where(missing, others.gather(1, places), top)
        ids = torch.cat((tokens, top.clamp(min=0)), 1)
        logprobs = torch.cat((logprobs, out.top_logprobs[:, :count]), 1)
    else:
        logprobs = logprobs.clone()
    return Drawn(tokens, ids, logprobs, ranks)


def _others(ids: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` token ids of each row that are not among its `ids`.

    vLLM fills its list with ids of removed tokens if fewer than it requested can be drawn.
    """
    candidates = torch.arange(count + ids.shape[1], dtype=ids.dtype, device=ids.device)
    used = (candidates.unsqueeze(-1) == ids.unsqueeze(1)).any(-1)
    return candidates[used.int().argsort(dim=1, stable=True)[:, :count]]


def verify(
    logits: Any,
    parameters: DrawParameters,
    tokens: torch.Tensor,
    offsets: torch.Tensor,
    most: int,
    counted_as: str = "logits",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept drafts while they equal the drawn tokens.

    tokens       int32 [n]: the token before each row of logits; a request's root comes first.
    offsets      int32 [R + 1]: the first row of each request.
    most         largest number of rows of a request.

    Returns tokens int32 [R, most], -1 after the last, and their number, int32 [R].
    """
    parameters = _add_mask(logits, parameters)
    counts.add(_count_name(logits, counted_as))
    calls, inputs, given = calls_for(logits)
    given = {**given, **call_arguments(_cut_mask_to_shard(logits, parameters))}
    out = calls.verify(*inputs, tokens, offsets=offsets, max_nodes=most, logprobs=None, **given)
    faults.note(out.status)
    found: Any = out.tokens
    found[:, 0].clamp_(min=0)  # as in draw()
    emitted: Any = out.emitted
    return found, emitted.clamp(min=1)

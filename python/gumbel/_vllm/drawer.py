# SPDX-License-Identifier: Apache-2.0
"""Draws from hidden states where logits were put off, else from logits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, NamedTuple, Optional

import torch

from .._calls import drafts as _drafts, prepared as _prepared, sample_calls as _sampling
from .._calls.screens import Screen
from . import faults, weights
from .counts import counts
from .lazy import LazyLogits, is_lazy, looked_at
from .masks import both
from .ranks import listed, rank
from .threads import threads_for

TOP_MOST = 128  # of the likeliest tokens, that the library gives
_CHANGING = ("seed", "position")  # of the rows of one batch of requests
CALLS_KEPT = 32  # that are prepared; a batch of another size is another call


@dataclass
class Asks:
    """What the requests of a step ask for, in the library's terms.

    rows         a number a request, [B]: temperature, seed, position, top_k, top_p, min_p; of
                 greedy ones the first alone.
    more         what else a call takes: logit_bias, banned, allowed, penalties and their texts.
    mask         int32 [n, words], a row of each row of logits: tokens that may be drawn.
    settled      while this is the same object, so are the rows, seed and position apart.
    """

    rows: dict[str, torch.Tensor]
    more: dict[str, Any] = field(default_factory=dict)
    mask: Optional[torch.Tensor] = None
    settled: Any = None

    def edit_logits(self) -> bool:
        """Whether anything is asked for but a temperature and cuts."""
        return bool(self.more) or self.mask is not None


@dataclass
class Likeliest:
    """What log-probabilities are asked for: of how many tokens, and by which logits."""

    count: int
    raw: bool


@dataclass
class Drawn:
    """Tokens int32 [B, 1], and of those and the likeliest ones ids, log-probabilities, ranks."""

    tokens: torch.Tensor
    ids: Optional[torch.Tensor] = None  # int32 [B, 1 + count]
    logprobs: Optional[torch.Tensor] = None  # float32 [B, 1 + count]
    ranks: Optional[torch.Tensor] = None  # int32 [B]


def _masked(logits: Any, asks: Asks) -> Asks:
    """What is asked, with the mask that the logits would have had."""
    if not is_lazy(logits) or logits.mask is None:
        return asks
    return replace(asks, mask=both(asks.mask, logits.mask))


class Calls(NamedTuple):
    """Calls of one way in."""

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


def source(logits: Any) -> tuple[Calls, tuple[Any, ...], dict[str, Any]]:
    """Which calls take these logits, what those take first, and what else of them."""
    if not is_lazy(logits):
        logits = looked_at(logits)
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


def _of_shard(logits: Any, asks: Asks) -> Asks:
    """What is asked of the rank that draws from these logits."""
    if asks.mask is None or not is_lazy(logits) or logits.shard is None:
        return asks
    return replace(asks, mask=logits.shard.mask(asks.mask))


def _took(logits: Any, otherwise: Optional[str]) -> Optional[str]:
    """How a draw from these logits is counted."""
    if not is_lazy(logits):
        return otherwise
    return "fused" if logits.columns is None else "logits"


@dataclass
class _Ready:
    """A prepared call."""

    call: _prepared.PreparedCall
    held: dict[str, torch.Tensor]  # the row parameters that it reads in place
    settled: Any = None  # Asks.settled when `held` was written


class Drawer:
    """Draws of a runner, step after step; calls that come again are kept ready."""

    def __init__(self) -> None:
        self.ready: dict[Any, _Ready] = {}
        weights.hold(self)

    def forget(self) -> None:
        """Drop the prepared calls, and with them references to weights and workspaces."""
        self.ready.clear()

    def draw(
        self,
        logits: Any,
        asks: Asks,
        likeliest: Optional[Likeliest] = None,
        took: Optional[str] = "logits",
    ) -> Drawn:
        """Draw a token of each row; `took` says how one from logits is counted, None: not."""
        asks = _masked(logits, asks)
        twice = likeliest is not None and likeliest.raw and asks.edit_logits()
        if likeliest is not None and likeliest.raw and isinstance(logits, LazyLogits):
            # Raw logits are those behind scale, cap and grammar here, not the product alone.
            if twice or not logits.is_plain:
                logits = logits.get()
        if likeliest is not None and is_lazy(logits) and logits.by_screen:
            logits = logits.get()  # of log-probabilities a screen knows nothing
        counts.add(_took(logits, took))
        asks = _of_shard(logits, asks)
        if not asks.edit_logits():
            return self._ready(logits, asks, likeliest)
        calls, inputs, given = source(logits)
        place = inputs[0].device
        wanted = {} if likeliest is None or twice else _wanted(likeliest, place)
        out = calls.sample(*inputs, **given, **arguments(asks), **{"logprobs": None, **wanted})
        faults.note(out.status)
        # A row without a token gets one that can be looked up; faults.py ends its request.
        tokens = out.tokens.clamp(min=0)
        if likeliest is None:
            return Drawn(tokens)
        edits = {**asks.more, "mask": asks.mask}
        if twice:
            count = listed(likeliest.count, place)
            out, edits = calls.score(*inputs, out.tokens, top_logprobs=count, **given), {}
        ranks = rank(calls.sample, inputs, given, out, asks.rows["temperature"], edits)
        return _drawn(tokens, out, ranks, likeliest.count, True)

    def _ready(self, logits: Any, asks: Asks, likeliest: Optional[Likeliest]) -> Drawn:
        """A draw that takes a number a row and nothing else, by a call that is kept ready."""
        calls, inputs, given = source(logits)
        first, rows = inputs[0], asks.rows
        key = self._key(logits, calls, inputs, given, likeliest, rows)
        known = self.ready.pop(key, None)
        if known is None:
            if len(self.ready) >= CALLS_KEPT:  # the one that was not used for longest goes
                self.ready.pop(next(iter(self.ready)))
            held = {name: value.clone() for name, value in rows.items()}
            wanted = {"logprobs": None} if likeliest is None else _wanted(likeliest, first.device)
            call = calls.prepare(*inputs, **given, **_numbers(held), **wanted, order="vllm")
            known = _Ready(call, held)
        else:
            same = known.settled is not None and known.settled is asks.settled
            for name in _CHANGING if same else rows:
                if name in rows:
                    known.held[name].copy_(rows[name])
        known.settled = asks.settled
        self.ready[key] = known
        # The next call writes the same results; a row without a token gets one as above.
        drawn: Any = known.call(first)
        faults.note(drawn.status)
        tokens = drawn.tokens.clamp(min=0)
        if likeliest is None:
            return Drawn(tokens)
        ranks = rank(calls.sample, inputs, given, drawn, rows["temperature"], {})
        return _drawn(tokens, drawn, ranks, likeliest.count, False)

    @staticmethod
    def _key(logits: Any, calls: Any, inputs: Any, given: Any, likeliest: Any, rows: Any) -> Any:
        """All that a prepared call depends on but the values of the rows."""
        first, last = inputs[0], inputs[-1]
        weight = weights.place_of(logits.weight) if len(inputs) > 1 else None
        screen = last.address if isinstance(last, Screen) else 0
        shown = None if likeliest is None else (likeliest.count, likeliest.raw)
        kind = (first.shape, first.stride(), first.dtype)
        head = (weights.place_of(value) for value in given.values())
        return (calls.prepare, weight, screen, *kind, *head, shown, *rows)


def _numbers(rows: dict[str, Any]) -> dict[str, Any]:
    """What a call takes for a number a row; of seeds the bits count."""
    return {**rows, "seed": rows["seed"].view(torch.uint64)} if "seed" in rows else rows


def arguments(asks: Asks) -> dict[str, Any]:
    """What a call takes for what is asked."""
    return {**_numbers(asks.rows), **asks.more, "mask": asks.mask, "order": "vllm"}


def _wanted(likeliest: Likeliest, place: torch.device) -> dict[str, Any]:
    return {
        "logprobs": "raw" if likeliest.raw else "processed",
        "top_logprobs": listed(likeliest.count, place),
        "ranks": True,
    }


def _drawn(
    tokens: torch.Tensor, out: Any, ranks: torch.Tensor, count: int, some_removed: bool
) -> Drawn:
    """What vLLM is told: the drawn token first, then `count` likeliest; arrays of its own."""
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

    vLLM names removed tokens, too, by an id each, where fewer than it asked for are left.
    """
    candidates = torch.arange(count + ids.shape[1], dtype=ids.dtype, device=ids.device)
    taken = (candidates.unsqueeze(-1) == ids.unsqueeze(1)).any(-1)
    return candidates[taken.int().argsort(dim=1, stable=True)[:, :count]]


def verify(
    logits: Any,
    asks: Asks,
    tokens: torch.Tensor,
    offsets: torch.Tensor,
    most: int,
    took: str = "logits",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept drafts while they are what is drawn.

    tokens       int32 [n]: of each row of logits the token before it, a request's root first.
    offsets      int32 [R + 1]: where the rows of each request begin.
    most         rows that a request has at most.

    Returns tokens int32 [R, most], -1 behind the last, and how many of them count, int32 [R].
    """
    asks = _masked(logits, asks)
    counts.add(_took(logits, took))
    calls, inputs, given = source(logits)
    given = {**given, **arguments(_of_shard(logits, asks))}
    out = calls.verify(
        *inputs, tokens, offsets=offsets, max_nodes=most, logprobs=None, **given
    )
    faults.note(out.status)
    found: Any = out.tokens
    found[:, 0].clamp_(min=0)  # as in draw()
    emitted: Any = out.emitted
    return found, emitted.clamp(min=1)

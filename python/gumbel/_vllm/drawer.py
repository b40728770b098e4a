# SPDX-License-Identifier: Apache-2.0
"""Draws from hidden states if the logits are deferred (lazy.py), else from logits."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Callable, NamedTuple, Optional

import torch

from .._calls import drafts as _drafts, prepared as _prepared, sample_calls as _sampling
from .._calls.screens import Screen
from .._inputs.workspaces import SharedWorkspace, use_workspace
from . import faults, weights
from .counts import counts
from .draw_parameters import DrawParameters, LogprobsRequest
from .lazy import LazyLogits, is_lazy, materialise
from .masks import intersect_masks
from .ranks import listed, rank, score_by_vllm
from .threads import threads_for

TOP_MAX = 128  # largest top_logprobs of the library
CALLS_KEPT = 1024  # prepared calls; each batch size has its own. They share one workspace.


@dataclass
class Drawn:
    """Drawn tokens; ids and log-probabilities of the drawn token, then of the likeliest tokens."""

    tokens: torch.Tensor  # int32 or int64 [B, 1], as the Drawer's
    ids: Optional[torch.Tensor] = None  # int32 or int64 [B, 1 + count]
    logprobs: Optional[torch.Tensor] = None  # float32 [B, 1 + count]
    ranks: Optional[torch.Tensor] = None  # int32 [B]
    kept: Optional[torch.Tensor] = None  # int32 [B]: number of tokens that truncation kept
    kept_ids: Optional[torch.Tensor] = None  # int32 [B, DrawParameters.kept_ids]

    def merge(self, rows: torch.Tensor, other: Drawn) -> Drawn:
        """These results, with those of `other` in the rows [B] that are True."""
        merged: list[Any] = [
            None if mine is None else theirs.where(rows.view(-1, *[1] * (mine.dim() - 1)), mine)
            for mine, theirs in zip(vars(self).values(), vars(other).values())
        ]
        return Drawn(*merged)


def add_mask(logits: Any, parameters: DrawParameters) -> DrawParameters:
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


def _gather_for_truncation(logits: Any, parameters: DrawParameters) -> Any:
    """`logits`, gathered by vLLM if a truncated draw from their shard is slower.

    Ranks gather whole rows to list kept tokens, with processed log-probabilities only.
    """
    if not is_lazy(logits) or logits.shard is None:
        return logits
    gathers = logits.shard.gathers_truncated and parameters.truncates or parameters.kept_ids
    return logits.get() if gathers else logits


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
    batch_key: Any  # DrawParameters.batch_key when `held` was written

    def read(self, parameters: DrawParameters) -> None:
        """Copy the row parameters of a step to the tensors that the call reads."""
        same = self.batch_key is not None and self.batch_key is parameters.batch_key
        for name, value in parameters.rows.items():
            if not same or name == "position":
                self.held[name].copy_(value)
        self.batch_key = parameters.batch_key


class Drawer:
    """Draws of an engine. Prepared calls are cached for later steps.

    All calls use one workspace, as vLLM queues an engine's draws on one stream. Each engine has a
    workspace of its own, because the draws of two engines may run at the same time.

    token_dtype  of drawn tokens: torch.int32 or torch.int64.
    """

    def __init__(self, token_dtype: torch.dtype = torch.int32) -> None:
        self.token_dtype = token_dtype
        self.prepared: dict[Any, _PreparedDraw] = {}
        self._latest: Optional[_PreparedDraw] = None  # the last of `prepared`
        self.workspace = SharedWorkspace()
        weights.hold(self)

    def forget(self) -> None:
        """Drop the prepared calls and their references to weights and workspaces."""
        self.prepared.clear()
        self._latest = None

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
        parameters = add_mask(logits, parameters)
        with use_workspace(self.workspace):
            drawn, statuses = self._draw(logits, parameters, requested, counted_as)
            for rows, more in parameters.others:
                more = replace(more, mask=parameters.mask, kept_ids=parameters.kept_ids)
                other, found = self._draw(logits, more, requested, counted_as, False)
                drawn, statuses = drawn.merge(rows, other), found.where(rows, statuses)
        faults.note(statuses)
        return drawn

    def _draw(
        self,
        logits: Any,
        parameters: DrawParameters,
        requested: Optional[LogprobsRequest],
        counted_as: Optional[str],
        is_first: bool = True,
    ) -> tuple[Drawn, torch.Tensor]:
        """Drawn tokens and their statuses [B], which the next draw overwrites."""
        twice = requested is not None and requested.raw and parameters.edits_logits
        if requested is not None and requested.raw and isinstance(logits, LazyLogits):
            # vLLM's raw logits include scale, soft-cap and grammar mask.
            if twice or not logits.is_plain:
                logits = logits.get()
        if requested is not None and is_lazy(logits) and logits.screen_only:
            logits = logits.get()  # a screen has no log-probabilities
        logits = _gather_for_truncation(logits, parameters)
        if is_first:
            counts.add(_count_name(logits, counted_as))
        parameters = _cut_mask_to_shard(logits, parameters)
        source = calls, inputs, given = calls_for(logits)
        out = self._call(logits, source, parameters, None if twice else requested)
        # A row without a token gets token 0, a valid index; faults.py ends its request. A prepared
        # call overwrites its results, hence a new tensor.
        tokens = torch.maximum(out.tokens, _zero(self.token_dtype, out.tokens.device))
        kept = (out.kept.clone(), out.kept_ids.clone()) if parameters.kept_ids else (None, None)
        if requested is None:
            drawn = Drawn(tokens)
        elif twice:
            drawn = _score_raw(logits, parameters, tokens, out.tokens, requested.count)
        else:
            ranks = rank(calls.sample, inputs, given, out, parameters)
            drawn = _format_drawn(tokens, out, ranks, requested.count, parameters.edits_logits)
        drawn.kept, drawn.kept_ids = kept
        return drawn, out.status

    def verify(
        self,
        logits: Any,
        parameters: DrawParameters,
        tokens: torch.Tensor,
        offsets: torch.Tensor,
        most: int,
        counted_as: str = "logits",
    ) -> tuple[torch.Tensor, torch.Tensor, Drawn]:
        """Accept drafts while they equal the drawn tokens.

        tokens       int32 [n]: the token before each row of logits; a request's root comes first.
        offsets      int32 [R + 1]: the first row of each request.
        most         largest number of rows of a request.

        Returns tokens int32 [R, most], -1 after the last, their number, int32 [R], and the kept
        tokens of the n rows.
        """
        parameters = add_mask(logits, parameters)
        logits = _gather_for_truncation(logits, parameters)
        counts.add(_count_name(logits, counted_as))
        calls, inputs, given = calls_for(logits)
        given = {**given, **_cut_mask_to_shard(logits, parameters).arguments()}
        with use_workspace(self.workspace):
            out = calls.verify(
                *inputs, tokens, offsets=offsets, max_nodes=most, logprobs=None, **given
            )
        faults.note(out.status)
        found: Any = out.tokens
        found[:, 0].clamp_(min=0)  # as in draw()
        emitted: Any = out.emitted
        return found, emitted.clamp(min=1), Drawn(found, kept=out.kept, kept_ids=out.kept_ids)

    def propose(
        self, logits: Any, parameters: DrawParameters, captures: bool = False
    ) -> torch.Tensor:
        """int64 [n]: a draft for each row of a drafter's logits; neither counted nor reported.

        captures     whether a CUDA graph is captured: the call then has memory of its own, which
                     the graph keeps.
        """
        calls, inputs, given = calls_for(logits)
        if captures:
            arguments = parameters.arguments()
            out = calls.sample(*inputs, **given, **arguments, logprobs=None)
        else:
            with use_workspace(self.workspace):
                out = self._call(logits, (calls, inputs, given), parameters, None)
        tokens: torch.Tensor = out.tokens.view(-1).clamp(min=0).long()
        return tokens

    def _call(
        self,
        logits: Any,
        source: tuple[Calls, tuple[Any, ...], dict[str, Any]],
        parameters: DrawParameters,
        requested: Optional[LogprobsRequest],
    ) -> Any:
        """A draw's output: of a prepared call, if the parameters allow one.

        source       calls_for(logits), which may multiply the logits of a shard.
        """
        calls, inputs, given = source
        wanted: dict[str, Any] = {"logprobs": None}
        if requested is not None:
            wanted = _logprobs_arguments(requested, inputs[0].device)
        if not parameters.preparable:
            return calls.sample(*inputs, **given, **parameters.arguments(), **wanted)
        key = self._key(logits, calls, inputs, given, requested, parameters)
        known = self.prepared.get(key)
        if known is None:
            if len(self.prepared) >= CALLS_KEPT:  # drop the least recently used one
                self.prepared.pop(next(iter(self.prepared)))
            known = _prepare(calls, inputs, given, parameters, wanted)
        elif parameters.slots is None:
            known.read(parameters)
        if known is not self._latest:  # the most recently used one is the last
            self.prepared.pop(key, None)
            self.prepared[key] = self._latest = known
        out = known.call(inputs[0])
        known.call.release_inputs()  # logits of a batch may take 100 MB
        return out

    @staticmethod
    def _key(
        logits: Any, calls: Any, inputs: Any, given: Any, requested: Any, parameters: DrawParameters
    ) -> Any:
        """Everything that a prepared call depends on except the values of the row parameters."""
        first, last = inputs[0], inputs[-1]
        weight = weights.place_of(logits.weight) if len(inputs) > 1 else None
        screen = last.address if isinstance(last, Screen) else 0
        shown = None if requested is None else (requested.count, requested.raw)
        kind = (first.shape, first.stride(), first.dtype)
        head = map(weights.place_of, given.values())
        return (calls.prepare, weight, screen, *kind, *head, shown, parameters.call_key)


def _prepare(
    calls: Calls, inputs: Any, given: Any, parameters: DrawParameters, wanted: dict[str, Any]
) -> _PreparedDraw:
    """A prepared call, which reads the row parameters of later steps."""
    held = parameters.rows
    if parameters.slots is None:
        held = {name: value.clone() for name, value in held.items()}
    arguments = replace(parameters, rows=held).arguments()
    call = calls.prepare(*inputs, **given, **arguments, **wanted)
    return _PreparedDraw(call, held, parameters.batch_key)


def _score_raw(
    logits: Any, parameters: DrawParameters, tokens: torch.Tensor, drawn: torch.Tensor, count: int
) -> Drawn:
    """Log-probabilities of unmodified logits, for tokens that were drawn from edited ones.

    drawn        `tokens`, with -1 for rows without a token.
    """
    scored = score_by_vllm(logits, tokens, count)
    if scored is not None:
        ids = scored.logprob_token_ids.to(tokens.dtype)
        return Drawn(tokens, ids, scored.logprobs, scored.selected_token_ranks)
    calls, inputs, given = calls_for(logits)
    listed_count = listed(count, inputs[0].device)
    out = calls.score(*inputs, drawn, top_logprobs=listed_count, **given)
    temperature = parameters.rows["temperature"]
    if parameters.slots is not None:
        temperature = temperature[parameters.slots.long()]
    unedited = DrawParameters({"temperature": temperature})
    ranks = rank(calls.sample, inputs, given, out, unedited)
    return _format_drawn(tokens, out, ranks, count, True)


@functools.cache
def _zero(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A zero [1]; an operation with it has a result of this dtype."""
    return torch.zeros(1, dtype=dtype, device=device)


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
    ids, logprobs = tokens.int(), out.logprobs
    if count:
        top = out.top_ids[:, :count]
        if some_removed:
            missing = top < 0
            others = _others(torch.cat((ids, top), 1), top.shape[1])
            places = (missing.cumsum(1) - 1).clamp(min=0)
            top = torch.where(missing, others.gather(1, places), top)
        ids = torch.cat((ids, top.clamp(min=0)), 1)
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


def drawer_of(runner: Any) -> Drawer:
    """The drawer of a runner's steps."""
    found: Optional[Drawer] = runner.__dict__.get("_gumbel_drawer")
    if found is None:
        found = runner.__dict__["_gumbel_drawer"] = Drawer()
    return found

# SPDX-License-Identifier: Apache-2.0
"""Drafts verified, for speculative decoding."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from .. import _abi
from .._inputs.arguments import read_row_integers, read_row_tokens, read_token_lists
from .._inputs.arrays import Array, NumpyArrays, address, layout, workspace
from .._inputs.common import DISTRIBUTIONS, Common, Request, Tokens, read_choice, takes_common
from .._inputs.numbers import read_integer
from .library_call import (
    Callee,
    LogitsSource,
    read_head,
    read_logit_options,
    read_logits,
    resolve_callee,
)
from .outputs import VerifyOutput
from .proposals import Proposal
from .screens import Weights

if TYPE_CHECKING:
    from typing_extensions import Unpack


RULES = {
    "coupled": _abi.RULE_COUPLED,
    "rejection": _abi.RULE_REJECTION,
    "block": _abi.RULE_BLOCK,
}


@dataclass
class Draft:
    """A draft's struct, and the arrays that it points to."""

    struct: _abi.Draft
    held: list[Any]


@takes_common("num_samples", "given", "top_logprobs", "ranks", "kept", "num_best")
def verify(
    hidden: Array,
    weight: Weights,
    tokens: Array,
    *,
    offsets: Optional[Any] = None,
    max_nodes: Optional[int] = None,
    nodes: Optional[Any] = None,
    parents: Optional[Any] = None,
    limit: Optional[Any] = None,
    stop: Optional[Tokens] = None,
    rule: str = "coupled",
    proposal: Optional[Proposal] = None,
    bias: Optional[Array] = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> VerifyOutput:
    """Draw from the rows behind drafted tokens, and accept drafts while they are what is drawn.

    hidden       [n, D]: row j of a request is what follows its node j.
    tokens       int32 [R, M], n being R * M, or [n] with `offsets`: the token of each node. Node 0
                 of a request, its root, is its last certain token; the others are drafts. What is
                 outside of the vocabulary is no draft, and nothing behind it is accepted.
    offsets      int32 [R + 1]: request r has rows offsets[r] to offsets[r + 1] - 1.
    max_nodes    M, with `offsets`: at most 1024. None: the most that a request has, which tensors
                 on a GPU do not tell.
    nodes        [R]: how many of its rows a request uses; with 0 it emits nothing. None: all.
    parents      int32 [n] or [R, M]: of node j > 0 a node of the request before it, so that drafts
                 are trees. None: j - 1, chains.
    limit        [R]: tokens to emit at most. None: no limit; a call emits at most M.
    stop         token ids behind which a request ends: one list, or a list of lists, one each.

    rule         "coupled": drafts are accepted while they are what is drawn. For chains also:
                 "rejection", each with chance min(1, p / q), p the target's and q the
                 draft's probability of it, the first that is not replaced by a draw from
                 max(p - q, 0); "block", from logits alone, jointly, which accepts more.
    proposal     of these two: what drew the drafts, as proposal() or proposal_logits() say it, n
                 rows; row j of a request drew node j + 1. None: drafts were not drawn at random.

    By "coupled", draft with sample() itself: with the seed and position of the target a draft is
    accepted as often as the two models' distributions allow; any other draft serves, too. **Pass
    the seed that the draft was drawn with**: with seed=None, a fresh one, the tokens are as exact,
    but a drawn draft is accepted by chance alone. What is emitted are the tokens that sample()
    draws step by step, bit for bit, whatever was drafted.
    By the others, draft with domain=draft_domain(), for "block" draft_domain(step): the texts have
    the target's law.

    Row parameters, slots, lists of tokens and the history are those of R requests, a mask is of n
    rows. `position` is that of the token behind the root: node j is drawn at position + its depth.
    Penalties count the drafts from the root to the node beside what `history` counts; the root is
    in that.
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    requests = count_requests(tokens, offsets)
    made = read_head(hidden, weight, bias, shared, common, batch=requests)
    rows = len(hidden)
    draft = read_draft(made[1], rows, tokens, offsets, max_nodes, nodes, parents, limit, stop)
    _set_proposal(draft, made[1], rows, rule, proposal, common)
    return verify_draft(_abi.lib.gumbel_verify, *made, draft)


@takes_common("num_samples", "given", "top_logprobs", "ranks", "kept", "num_best")
def verify_logits(
    logits: Array,
    tokens: Array,
    *,
    offsets: Optional[Any] = None,
    max_nodes: Optional[int] = None,
    nodes: Optional[Any] = None,
    parents: Optional[Any] = None,
    limit: Optional[Any] = None,
    stop: Optional[Tokens] = None,
    rule: str = "coupled",
    proposal: Optional[Proposal] = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> VerifyOutput:
    """Verify drafts by logits [n, V] that are there already; else as verify()."""
    shared = read_logit_options(scale, softcap, vocab_size)
    requests = count_requests(tokens, offsets)
    made = read_logits(logits, shared, common, batch=requests)
    rows = len(logits)
    draft = read_draft(made[1], rows, tokens, offsets, max_nodes, nodes, parents, limit, stop)
    _set_proposal(draft, made[1], rows, rule, proposal, common)
    return verify_draft(_abi.lib.gumbel_verify_logits, *made, draft)


def count_requests(tokens: Any, offsets: Any) -> int:
    """R."""
    if offsets is None:
        shape = layout("tokens", tokens).shape
        if len(shape) != 2:
            raise ValueError(f"tokens: expected the shape (R, M) without offsets, got {shape}")
        return shape[0]
    shape = layout("offsets", offsets).shape
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"offsets: expected the shape (R + 1,), got {shape}")
    return shape[0] - 1


def _most_nodes(offsets: Any, arrays: NumpyArrays) -> int:
    if arrays.name != "cpu":
        raise ValueError("max_nodes: offsets on a GPU do not tell it")
    return max(1, int(np.diff(np.asarray(offsets)).max(initial=1)))


def read_draft(
    request: Request,
    rows: int,
    tokens: Any,
    offsets: Any,
    max_nodes: Optional[int],
    nodes: Any,
    parents: Any,
    limit: Any,
    stop: Any,
) -> Draft:
    """What verify() takes of a draft, as the library does."""
    arrays, requests = request.arrays, request.batch
    if offsets is None:
        shape = layout("tokens", tokens).shape
        if max_nodes is not None and max_nodes != shape[1]:
            raise ValueError(f"max_nodes: tokens have {shape[1]}")
        most = read_integer("tokens", shape[1], 1, _abi.NODES_MOST)
        if requests * most != rows:
            raise ValueError(f"tokens: {requests} x {most} nodes, and there are {rows} rows")
    else:
        shape = (rows,)
        most = _most_nodes(offsets, arrays) if max_nodes is None else max_nodes
        most = read_integer("max_nodes", most, 1, _abi.NODES_MOST)
    struct = _abi.Draft(requests=requests, max_nodes=most)
    held: list[Any] = []

    def point(name: str, value: Any, shape: tuple[int, ...]) -> None:
        if value is not None:
            held.append(read_row_tokens(name, value, (shape,), arrays))
            setattr(struct, name, address(held[-1]))

    def count(name: str, value: Any) -> None:
        if value is not None:
            made, stride = read_row_integers(name, value, requests, np.int32, arrays)
            if stride == _abi.SAME and requests != 1:
                raise ValueError(f"{name}: expected the shape ({requests},), one a request")
            held.append(made)
            setattr(struct, name, address(made))

    point("tokens", tokens, shape)
    point("parents", parents, shape)
    point("offsets", offsets, (requests + 1,))
    count("nodes", nodes)
    count("limit", limit)
    if stop is not None:
        struct.stop, lists = read_token_lists("stop", stop, requests, arrays)
        held += lists
    return Draft(struct, held)


def _set_proposal(
    draft: Draft,
    request: Request,
    rows: int,
    rule: str,
    proposal: Optional[Proposal],
    common: Any,
) -> None:
    """Say how drafts are accepted, and what drew them."""
    draft.struct.rule = read_choice("rule", rule, RULES)
    if proposal is None:
        return
    if not isinstance(proposal, Proposal):
        found = type(proposal).__name__
        raise TypeError(f"proposal: expected what gumbel.proposal() gives, got {found}")
    if rule == "coupled":
        raise ValueError('proposal: the rule "coupled" weighs no probabilities')
    slots = {name: common.get(name) for name in ("slots", "num_slots")}
    (head, logits), drew = proposal.read(request.batch, slots)
    drew.sampling.slots = _abi.Slots()
    shapes: list[tuple[int, ...]] = [(rows,)]
    if draft.struct.offsets is None:
        shapes.append((request.batch, draft.struct.max_nodes))
    told = proposal.told(shapes, request.arrays)
    draft.held += [head, logits, drew, told]
    if drew.arrays.name != request.arrays.name:
        raise ValueError(f"proposal: is on {drew.arrays.name}, the call on {request.arrays.name}")
    if head is not None:
        draft.struct.head = ctypes.pointer(head)
    if logits is not None:
        draft.struct.logits = ctypes.pointer(logits)
    draft.struct.sampling = ctypes.pointer(drew.sampling)
    for name, array in told.items():
        setattr(draft.struct, name, address(array))


def verify_draft(
    call: Any, source: LogitsSource, request: Request, draft: Draft, callee: Optional[Callee] = None
) -> VerifyOutput:
    """Verify a draft by one call of the library."""
    arrays, requests, most = request.arrays, request.batch, draft.struct.max_nodes

    def make(shape: tuple[int, ...], dtype: type) -> Any:
        return arrays.zeros(shape, dtype)

    request.draw_seed()
    made = dict(
        tokens=make((requests, most), np.int32),
        emitted=make((requests,), np.int32),
        accepted=make((requests,), np.int32),
        path=make((requests, most), np.int32),
        last_row=make((requests,), np.int32),
        position=make((request.places,), np.uint64),
        finished=make((requests,), np.int32),
        status=make((requests,), np.int32),
        logprobs=make((requests, most), np.float32) if request.logprobs else None,
    )
    verified = _abi.Verified(**{name: address(array) for name, array in made.items()})
    rows_tokens = _raw_tokens(request, source, verified)
    size, error = ctypes.c_size_t(), _abi.Error()
    what = (request.sampling, draft.struct, verified)
    called = resolve_callee(arrays, callee)
    status = called.verify_workspace_size(called.handle, *source, *what, size, error)
    _abi.check(status, error)
    scratch = workspace(arrays, size.value)
    where = (called.handle, arrays.stream)
    head = source[0] or source[1]
    status = call(*where, head, *what, scratch.address, scratch.size, error)
    _abi.check(status, error)
    del rows_tokens  # until here it was written to
    return VerifyOutput(**made, seed=request.seed)


def _raw_tokens(request: Request, source: LogitsSource, verified: _abi.Verified) -> Any:
    """What rows are asked for where log-probabilities are of the raw logits; None: nothing."""
    if request.logprobs != "raw":
        return None
    head, logits = source
    rows = head.hidden.rows if head else logits.logits.rows if logits else 0
    tokens = request.arrays.empty((rows,), np.int32)
    output = _abi.Output(tokens=address(tokens), logprobs_of=DISTRIBUTIONS["raw"])
    verified.rows = ctypes.pointer(output)
    return tokens

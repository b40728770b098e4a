# SPDX-License-Identifier: Apache-2.0
"""Verification of drafted tokens, for speculative decoding."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from .. import _abi
from .._inputs.arguments import read_row_integers, read_row_tokens, read_token_lists
from .._inputs.arrays import Array, NumpyArrays, address_of, layout_of
from .._inputs.common import DISTRIBUTIONS, takes_common
from .._inputs.numbers import read_choice, read_integer
from .._inputs.parameters import Common, Tokens
from .._inputs.request import Request
from .._inputs.workspaces import get_workspace
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
    """The C struct of a draft, and the arrays that it points to."""

    struct: _abi.Draft
    held: list[Any]


@takes_common("num_samples", "given", "token_ids", "top_logprobs", "ranks", "kept", "num_best")
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
    node_position: Optional[Any] = None,
    bias: Optional[Array] = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> VerifyOutput:
    """Verify drafted tokens: accept a prefix of each draft and draw one token after it.

    hidden       [n, D]: row j of a request is the hidden state after its node j.
    tokens       int32 [R, M] with n = R * M, or [n] with `offsets`: the token of each node. Node 0
                 of a request, its root, is the last token of its text; the others are drafts. A
                 token outside the vocabulary is not accepted, nor are the nodes after it.
    offsets      int32 [R + 1]: request r has rows offsets[r] to offsets[r + 1] - 1.
    max_nodes    M, with `offsets`: at most 1024. None: the largest number of nodes of a request;
                 required if `offsets` is on a GPU.
    nodes        [R]: number of rows that a request uses; 0: it emits nothing. None: all rows.
    parents      int32 [n] or [R, M]: the parent of node j > 0, an earlier node of its request;
                 drafts are then trees. None: node j - 1, so that drafts are chains.
    limit        [R]: largest number of tokens to emit. None: M.
    stop         token ids that end a request: one list for all requests, or one list each.

    rule         "coupled": a draft is accepted if it equals the drawn token. For chains also
                 "rejection": a draft is accepted with probability min(1, p / q), where p is the
                 target's and q the draft's probability of it; the first rejected draft is replaced
                 by a draw from max(p - q, 0). "block", from logits only: accepts drafts jointly,
                 and more of them. "rejection" and "block" are unstable: they may change in a minor
                 release; see docs/compatibility.md.
    proposal     for "rejection" and "block": the distributions from which the drafts were drawn, as
                 proposal() or proposal_logits() with n rows; node j + 1 of a request was drawn from
                 its row j. None: the drafts were not drawn at random, so q = 1.

    node_position
                 for "coupled": uint64 [n], the position of each row's draw, as of
                 Watermark.update_nodes(). None: `position` + the depth of the node.

    With "coupled", draft with sample() at the target's seed and position: both models then use the
    same noise, and agree more often than independent draws. Other drafts are valid, too.
    **Pass the seed that the draft was drawn with**: with a fresh seed (seed=None) the tokens are
    equally exact, but a draft is accepted only by chance. The emitted tokens are bit-identical to
    those that sample() draws step by step, whatever the drafts were.
    For "rejection" draft with domain=draft_domain(), for "block" with domain=draft_domain(step);
    the emitted tokens then have the target's distribution.

    Row parameters, slots, lists of tokens and the history have one entry for each of the R
    requests; a mask has n rows, as the outputs of `kept_ids` have. `position` is the position of
    the token after the root: node j is drawn at position + its depth. Penalties count the tokens of
    `history`, which include the root, and the drafts from the root to the node.

    Raises TypeError or ValueError naming the argument.
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    requests = count_requests(tokens, offsets)
    source, request = read_head(hidden, weight, bias, shared, common, batch=requests)
    rows = len(hidden)
    draft = read_draft(request, rows, tokens, offsets, max_nodes, nodes, parents, limit, stop)
    _set_proposal(draft, request, rows, rule, proposal, common)
    _set_node_position(draft, request, rows, rule, node_position)
    return verify_draft(_abi.lib.gumbel_verify, source, request, draft)


@takes_common("num_samples", "given", "token_ids", "top_logprobs", "ranks", "kept", "num_best")
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
    node_position: Optional[Any] = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> VerifyOutput:
    """Verify drafts with precomputed logits [n, V]; otherwise as verify()."""
    shared = read_logit_options(scale, softcap, vocab_size)
    requests = count_requests(tokens, offsets)
    source, request = read_logits(logits, shared, common, batch=requests)
    rows = len(logits)
    draft = read_draft(request, rows, tokens, offsets, max_nodes, nodes, parents, limit, stop)
    _set_proposal(draft, request, rows, rule, proposal, common)
    _set_node_position(draft, request, rows, rule, node_position)
    return verify_draft(_abi.lib.gumbel_verify_logits, source, request, draft)


def count_requests(tokens: Any, offsets: Any) -> int:
    """The number of requests, R."""
    if offsets is None:
        shape = layout_of("tokens", tokens).shape
        if len(shape) != 2:
            raise ValueError(f"tokens: expected the shape (R, M) without offsets, got {shape}")
        return shape[0]
    shape = layout_of("offsets", offsets).shape
    if len(shape) != 1 or shape[0] < 1:
        raise ValueError(f"offsets: expected the shape (R + 1,), got {shape}")
    return shape[0] - 1


def _max_nodes(offsets: Any, arrays: NumpyArrays) -> int:
    if arrays.name != "cpu":
        raise ValueError("max_nodes: required if `offsets` is on a GPU")
    return max(1, int(np.diff(np.asarray(offsets)).max(initial=1)))


def read_draft(request: Request, rows: int, *given: Any) -> Draft:
    """The draft arguments of verify(), `tokens` to `stop`, as a C struct."""
    return read_draft_arrays(request.arrays, request.batch, rows, *given)


def read_draft_arrays(
    arrays: NumpyArrays,
    requests: int,
    rows: int,
    tokens: Any,
    offsets: Any,
    max_nodes: Optional[int],
    nodes: Any,
    parents: Any,
    limit: Any,
    stop: Any,
) -> Draft:
    """As read_draft(), of `requests` requests with `rows` nodes."""
    if offsets is None:
        shape = layout_of("tokens", tokens).shape
        if max_nodes is not None and max_nodes != shape[1]:
            raise ValueError(
                f"max_nodes: expected {shape[1]}, columns of `tokens`, got {max_nodes}"
            )
        most = read_integer("tokens", shape[1], 1, _abi.NODES_MAX)
        if requests * most != rows:
            raise ValueError(
                f"tokens: expected {rows} nodes, one for each row, got {requests} x {most}"
            )
    else:
        shape = (rows,)
        most = _max_nodes(offsets, arrays) if max_nodes is None else max_nodes
        most = read_integer("max_nodes", most, 1, _abi.NODES_MAX)
    struct = _abi.Draft(requests=requests, max_nodes=most)
    held: list[Any] = []

    def set_tokens(name: str, value: Any, shape: tuple[int, ...]) -> None:
        if value is not None:
            held.append(read_row_tokens(name, value, (shape,), arrays))
            setattr(struct, name, address_of(held[-1]))

    def set_counts(name: str, value: Any) -> None:
        if value is not None:
            array, stride = read_row_integers(name, value, requests, np.int32, arrays)
            if stride == _abi.SAME and requests != 1:
                raise ValueError(f"{name}: expected the shape ({requests},), one for each request")
            held.append(array)
            setattr(struct, name, address_of(array))

    set_tokens("tokens", tokens, shape)
    set_tokens("parents", parents, shape)
    set_tokens("offsets", offsets, (requests + 1,))
    set_counts("nodes", nodes)
    set_counts("limit", limit)
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
    """Set the rule and the proposal of a draft."""
    draft.struct.rule = read_choice("rule", rule, RULES)
    if proposal is None:
        return
    if not isinstance(proposal, Proposal):
        found = type(proposal).__name__
        raise TypeError(f"proposal: expected a gumbel.Proposal, got {found}")
    if rule == "coupled":
        raise ValueError('proposal: the rule "coupled" uses no proposal; pass None')
    slots = {name: common.get(name) for name in ("slots", "num_slots")}
    (head, logits), drew = proposal.read(request.batch, slots)
    drew.sampling.slots = _abi.Slots()
    shapes: list[tuple[int, ...]] = [(rows,)]
    if draft.struct.offsets is None:
        shapes.append((request.batch, draft.struct.max_nodes))
    drawn = proposal.read_drawn(shapes, request.arrays)
    draft.held += [head, logits, drew, drawn]
    if drew.arrays.name != request.arrays.name:
        raise ValueError(f"proposal: is on {drew.arrays.name}, the call on {request.arrays.name}")
    if head is not None:
        draft.struct.head = ctypes.pointer(head)
    if logits is not None:
        draft.struct.logits = ctypes.pointer(logits)
    draft.struct.sampling = ctypes.pointer(drew.sampling)
    for name, array in drawn.items():
        setattr(draft.struct, name, address_of(array))


def _set_node_position(
    draft: Draft, request: Request, rows: int, rule: str, node_position: Optional[Any]
) -> None:
    """Set the positions of the nodes of a draft."""
    if node_position is None:
        return
    if rule != "coupled":
        raise ValueError(f'node_position: requires the rule "coupled", not "{rule}"')
    name = "node_position"
    found, stride = read_row_integers(name, node_position, rows, np.uint64, request.arrays)
    if stride == _abi.SAME and rows != 1:
        raise ValueError(f"{name}: expected the shape ({rows},), one for each row")
    draft.held.append(found)
    draft.struct.node_position = address_of(found)


def verify_draft(
    call: Any, source: LogitsSource, request: Request, draft: Draft, callee: Optional[Callee] = None
) -> VerifyOutput:
    """Call the library to verify a draft."""
    arrays, requests, most = request.arrays, request.batch, draft.struct.max_nodes

    request.draw_seed()
    results = dict(
        tokens=arrays.zeros((requests, most), np.int32),
        emitted=arrays.zeros((requests,), np.int32),
        accepted=arrays.zeros((requests,), np.int32),
        path=arrays.zeros((requests, most), np.int32),
        last_row=arrays.zeros((requests,), np.int32),
        position=arrays.zeros((request.places,), np.uint64),
        finished=arrays.zeros((requests,), np.int32),
        status=arrays.zeros((requests,), np.int32),
        logprobs=arrays.zeros((requests, most), np.float32) if request.logprobs else None,
    )
    verified = _abi.Verified(**{name: address_of(array) for name, array in results.items()})
    of_rows = _request_row_outputs(request, source, verified)
    size, error = ctypes.c_size_t(), _abi.Error()
    structs = (request.sampling, draft.struct, verified)
    called = resolve_callee(arrays, callee)
    status = called.verify_workspace_size(called.handle, *source, *structs, size, error)
    _abi.check_status(status, error)
    scratch = get_workspace(arrays, size.value)
    where = (called.handle, arrays.stream)
    head = source[0] or source[1]
    status = call(*where, head, *structs, scratch.address, scratch.size, error)
    _abi.check_status(status, error)
    listed = {name: array for name, array in of_rows.items() if name != "tokens"}
    return VerifyOutput(**results, **listed, seed=request.seed)


def _request_row_outputs(
    request: Request, source: LogitsSource, verified: _abi.Verified
) -> dict[str, Any]:
    """Request log-probabilities of raw logits, kept sets and entropies, if the call returns these.

    The C struct has these options only among its row outputs, which require an array of tokens.
    Returns the arrays of the n rows, {name: array}, with these tokens. The caller must keep them
    alive until the call of the library returns.
    """
    if request.logprobs != "raw" and not request.kept_ids and not request.entropy:
        return {}
    head, logits = source
    rows = head.hidden.rows if head else logits.logits.rows if logits else 0
    listed, make = (rows, request.kept_ids), request.arrays.empty
    found = {"tokens": make((rows,), np.int32)}
    if request.kept_ids:
        found.update(kept=make((rows,), np.int32), kept_ids=make(listed, np.int32))
        if request.logprobs:
            found["kept_logprobs"] = make(listed, np.float32)
    if request.entropy:
        found["entropy"] = make((rows,), np.float32)
    places = {name: address_of(array) for name, array in found.items()}
    output = _abi.Output(
        logprobs_of=DISTRIBUTIONS[request.logprobs], kept_capacity=request.kept_ids, **places
    )
    verified.rows = ctypes.pointer(output)
    return found

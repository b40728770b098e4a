# SPDX-License-Identifier: Apache-2.0
"""Summaries of vocabulary shards: partial(), merge() and finish(), on the shards' devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._inputs.arrays import Array, NumpyArrays, address_of, arrays_of, layout_of
from .._inputs.common import takes_common
from .._inputs.parameters import Common
from .._inputs.programs import PARAMETERS as PROGRAM_PARAMETERS
from .._inputs.request import Request
from .._inputs.row_state import check_writable
from .._inputs.tensors import is_tensor
from .library_call import LogitsSource, call_library, read_head, read_logit_options, read_logits
from .outputs import SampleOutput
from .screens import Weights

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: dtype of a summary, 48 bytes: the dtype of arrays of summaries; tensors are uint8 [..., 48].
SUMMARY: np.dtype[Any] = np.dtype(_abi.Summary)

# Parameters that need the whole vocabulary, and outputs that finish() always returns.
_WHOLE_VOCABULARY = (
    *("top_k", "top_p", "min_p", "order", "ties", "given", "token_ids", *PROGRAM_PARAMETERS),
    *("logprobs", "top_logprobs", "ranks", "kept", "kept_ids", "num_best", "entropy"),
)


@takes_common(*_WHOLE_VOCABULARY)
def partial(
    hidden: Array,
    weight: Weights,
    *,
    first_token: int = 0,
    bias: Optional[Array] = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> NDArray[Any]:
    """The partial results of a draw over one shard of the vocabulary: summaries [B, num_samples].

    weight       [V, D] of the shard; row 0 is token `first_token`. bias is [V] of the shard.
    vocab_size   size of the whole vocabulary, equal for all shards; None: first_token + V.
    mask         [B, ceil((first_token + V) / 32)]. The mask and lists of tokens use global ids. Ids
                 of other shards are skipped; with `vocab_size` an id beyond it is an error.
    seed         **pass equal seeds and positions for all shards**. None gives each shard a seed of
                 its own: the draw is still exact, as the noise of tokens is independent, but its
                 token is not that of sample(), and the draw cannot be repeated.

    Returns an array of dtype SUMMARY, or a uint8 tensor [B, num_samples, 48]: plain data that can
    be sent to other processes. Merge or gather the summaries of all shards, computed with equal
    parameters; finish() then returns the results of sample() over the whole vocabulary. Otherwise
    as sample().
    """
    shared = read_logit_options(scale, softcap, vocab_size, first_token)
    source, request = read_head(hidden, weight, bias, shared, common, shard=True)
    return _compute_summaries(_abi.lib.gumbel_partial, source, request)


@takes_common(*_WHOLE_VOCABULARY)
def partial_logits(
    logits: Array,
    *,
    first_token: int = 0,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> NDArray[Any]:
    """As partial(), from a shard's logits [B, V]; column 0 is token `first_token`."""
    shared = read_logit_options(scale, softcap, vocab_size, first_token)
    source, request = read_logits(logits, shared, common, shard=True)
    return _compute_summaries(_abi.lib.gumbel_partial_logits, source, request)


def _compute_summaries(call: Any, source: LogitsSource, request: Request) -> Any:
    request.draw_seed()
    summaries = request.arrays.empty_records((request.batch, request.sampling.num_samples), SUMMARY)
    call_library(call, source, request, [address_of(summaries)])
    return summaries


def merge(into: Array, other: Array) -> None:
    """Merge the summaries of `other` into those of `into`, element by element and in place.

    Both have one shape, such as [B, num_samples] of partial(), and are on one device. Every order
    of merges gives the same bits.
    """
    arrays = arrays_of({"into": into, "other": other}, None, None)
    shape = _check_summaries("into", into)
    if _check_summaries("other", other) != shape:
        raise ValueError(f"other: expected the shape of into, got {tuple(other.shape)}")
    check_writable("into", into)
    error, count = _abi.Error(), int(np.prod(shape))
    places = [address_of(into) or 0, address_of(other) or 0]
    if 0 < abs(places[0] - places[1]) < count * SUMMARY.itemsize:
        raise ValueError("other: overlaps into; copy it first")
    status = _abi.lib.gumbel_merge(arrays.device, arrays.stream, *places, count, error)
    _abi.check_status(status, error)


def finish(summaries: Array) -> SampleOutput:
    """The tokens, logprobs, lse and status of summaries [B, num_samples] of a whole vocabulary.

    Summaries [parts, B, num_samples], as gathered from ranks, are merged first. Results are on the
    device of the summaries.
    """
    arrays = arrays_of({"summaries": summaries}, None, None)
    shape = _check_summaries("summaries", summaries)
    if len(shape) not in (2, 3) or not 1 <= shape[-1] <= _abi.SAMPLES_MAX:
        raise ValueError(
            "summaries: expected the shape [B, num_samples] or [parts, B, num_samples], got "
            f"{tuple(summaries.shape)}"
        )
    parts = shape[0] if len(shape) == 3 else 1
    if not 1 <= parts <= _abi.PARTS_MAX:
        raise ValueError(f"summaries: expected 1 to {_abi.PARTS_MAX} parts, got {parts}")
    return _finish_summaries(arrays, summaries, parts, *shape[-2:])


def _finish_summaries(
    arrays: NumpyArrays, summaries: Any, parts: int, batch: int, samples: int
) -> Any:
    result = SampleOutput(
        tokens=arrays.empty((batch, samples), np.int32),
        logprobs=arrays.empty((batch, samples), np.float32),
        lse=arrays.empty((batch,), np.float32),
        status=arrays.empty((batch,), np.int32),
    )
    places = {name: address_of(array) for name, array in vars(result).items() if array is not None}
    output = _abi.Output(**places)
    error = _abi.Error()
    where = (arrays.device, arrays.stream)
    found = address_of(summaries)
    status = _abi.lib.gumbel_finish(*where, found, parts, batch, samples, output, error)
    _abi.check_status(status, error)
    return result


def _check_summaries(name: str, array: Any) -> tuple[int, ...]:
    """The shape of a contiguous array of summaries."""
    found = layout_of(name, array)
    if is_tensor(array):
        if found.dtype != "uint8" or found.shape[-1:] != (SUMMARY.itemsize,):
            raise TypeError(
                f"{name}: expected summaries, uint8 [..., {SUMMARY.itemsize}], got {found.dtype} "
                f"{found.shape}"
            )
        dense = array.is_contiguous()
    else:
        if array.dtype != SUMMARY:
            raise TypeError(f"{name}: expected summaries, of dtype SUMMARY, got {array.dtype}")
        dense = array.flags.c_contiguous
    if not dense:
        raise ValueError(f"{name}: the summaries are not contiguous; copy them first")
    return found.shape[:-1] if is_tensor(array) else found.shape

# SPDX-License-Identifier: Apache-2.0
"""Summaries of parts of a vocabulary: made, merged and finished where the parts lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._inputs.arrays import Array, NumpyArrays, address, arrays_of, layout
from .._inputs.common import Common, Request, takes_common
from .._inputs.tensors import is_tensor
from .library_call import LogitsSource, call_library, read_head, read_logit_options, read_logits
from .outputs import SampleOutput
from .screens import Weights

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: A summary, 48 bytes. Arrays of them are of this dtype; tensors are uint8 [..., 48].
SUMMARY: np.dtype[Any] = np.dtype(_abi.Summary)

# What no part of a vocabulary can tell, and what finish() gives without being asked.
_NOT_OF_PARTS = (
    *("top_k", "top_p", "min_p", "order", "ties", "given"),
    *("logprobs", "top_logprobs", "ranks", "kept", "num_best"),
)


@takes_common(*_NOT_OF_PARTS)
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
    """What the tokens of one shard, or of one chunk, come to in a draw: summaries [B, num_samples].

    weight       [V, D] of the shard, whose row 0 is token `first_token`; bias [V] likewise.
    vocab_size   of all shards, the same for each; None: first_token + V.
    mask         [B, ceil((first_token + V) / 32)]. It and lists of tokens go by global ids. Ids of
                 other shards are passed over; with `vocab_size` an id beyond it is an error.
    seed         **pass the same seed and position for every shard**. None gives each shard a seed
                 of its own: the token is drawn as exactly, as every token has noise of its own, but
                 is not that of sample(), and the draw cannot be repeated.

    An array of dtype SUMMARY, or a uint8 tensor [B, num_samples, 48]: plain data, which may be sent
    and gathered. Merge or gather those of every shard, with the same parameters, and finish() gives
    what sample() gives of the whole. Else as sample().
    """
    shared = read_logit_options(scale, softcap, vocab_size, first_token)
    made = read_head(hidden, weight, bias, shared, common, shard=True)
    return _partial(_abi.lib.gumbel_partial, *made)


@takes_common(*_NOT_OF_PARTS)
def partial_logits(
    logits: Array,
    *,
    first_token: int = 0,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> NDArray[Any]:
    """The same of a shard's logits [B, V], whose column 0 is token `first_token`."""
    shared = read_logit_options(scale, softcap, vocab_size, first_token)
    made = read_logits(logits, shared, common, shard=True)
    return _partial(_abi.lib.gumbel_partial_logits, *made)


def _partial(call: Any, source: LogitsSource, request: Request) -> Any:
    request.draw_seed()
    made = request.arrays.empty_records((request.batch, request.sampling.num_samples), SUMMARY)
    call_library(call, source, request, [address(made)])
    return made


def merge(into: Array, other: Array) -> None:
    """Merge the summaries of `other` into those of `into`, one by one, where they lie.

    Both are of one shape, as [B, num_samples] of partial(), and lie on one device. Any order and
    any tree give the same bits.
    """
    arrays = arrays_of({"into": into, "other": other}, None, None)
    shape = _shape("into", into)
    if _shape("other", other) != shape:
        raise ValueError(f"other: expected the shape of into, got {tuple(other.shape)}")
    if isinstance(into, np.ndarray) and not into.flags.writeable:
        raise ValueError("into: it is read-only")
    error = _abi.Error()
    where, count = (arrays.device, arrays.stream), int(np.prod(shape))
    status = _abi.lib.gumbel_merge(*where, address(into), address(other), count, error)
    _abi.check(status, error)


def finish(summaries: Array) -> SampleOutput:
    """What summaries [B, num_samples] of a whole vocabulary say: tokens, logprobs, lse and status.

    Those of several parts may come as [parts, B, num_samples], as ranks gather them: they are
    merged first. Results lie where the summaries lie.
    """
    arrays = arrays_of({"summaries": summaries}, None, None)
    shape = _shape("summaries", summaries)
    if len(shape) not in (2, 3) or not 1 <= shape[-1] <= _abi.SAMPLES_MOST:
        raise ValueError(
            "summaries: expected the shape [B, num_samples] or [parts, B, num_samples], got "
            f"{tuple(summaries.shape)}"
        )
    parts = shape[0] if len(shape) == 3 else 1
    if not 1 <= parts <= _abi.PARTS_MOST:
        raise ValueError(f"summaries: {parts} parts; there must be 1 to {_abi.PARTS_MOST}")
    return _finish(arrays, summaries, parts, *shape[-2:])


def _finish(arrays: NumpyArrays, summaries: Any, parts: int, batch: int, samples: int) -> Any:
    result = SampleOutput(
        tokens=arrays.empty((batch, samples), np.int32),
        logprobs=arrays.empty((batch, samples), np.float32),
        lse=arrays.empty((batch,), np.float32),
        status=arrays.empty((batch,), np.int32),
    )
    made = {name: address(array) for name, array in vars(result).items() if array is not None}
    output = _abi.Output(**made)
    error = _abi.Error()
    where = (arrays.device, arrays.stream)
    found = address(summaries)
    status = _abi.lib.gumbel_finish(*where, found, parts, batch, samples, output, error)
    _abi.check(status, error)
    return result


def _shape(name: str, array: Any) -> tuple[int, ...]:
    """The shape of an array of summaries, which has no gaps."""
    found = layout(name, array)
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

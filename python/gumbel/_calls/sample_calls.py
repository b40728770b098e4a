# SPDX-License-Identifier: Apache-2.0
"""Calls that draw or score tokens, or return transformed rows: sample(), score(), softmax(), ..."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._inputs.arguments import do_overlap, read_matrix, read_row_tokens
from .._inputs.arrays import Array, address_of, import_array
from .._inputs.common import takes_common
from .._inputs.numbers import read_integer
from .._inputs.parameters import Common
from .._inputs.request import Request
from .._inputs.row_state import check_writable
from .._inputs.tensors import is_tensor
from .library_call import (
    Callee,
    LogitsSource,
    call_library,
    draw_request,
    make_output,
    read_head,
    read_logit_options,
    read_logits,
)
from .outputs import SampleOutput
from .screens import Weights

if TYPE_CHECKING:
    from typing_extensions import Unpack

TEXT_BYTES = 4096  # size of the buffer of an explanation


@takes_common()
def sample(
    hidden: Array,
    weight: Weights,
    *,
    bias: Optional[Array] = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> SampleOutput:
    """Draw tokens from hidden states; the product with the LM head is fused with the draw.

    hidden, weight
                 [B, D] and [V, D]: float32, float16, bfloat16 (ml_dtypes), or uint16 holding
                 bfloat16 bits. Their dtypes may differ. The last axis must be contiguous; rows may
                 have any stride >= D. Nothing is copied.
    bias         [V], contiguous, added to the logits.
    scale        multiplies the logits; not 0.
    softcap      applied after scale: y = softcap * tanh(y / softcap); 0: off.
    vocab_size   token ids >= vocab_size are never drawn (padding rows of `weight`); None: V.

    hidden, weight, bias and mask are NumPy arrays, torch tensors on one device, or arrays that
    support DLPack, which are imported as one of these two. A draw from CUDA tensors is queued on
    the current stream and does not wait for it. A parameter that is a CUDA tensor of the library's
    dtype (or int64 for seeds and positions, int32 for first_sample) is not copied, and its values
    are not checked on the host: an invalid temperature sets the status of its row.

    Equal (seed, position) and logits give equal tokens for every batch size, thread count and ISA.
    Raises TypeError or ValueError naming the argument, and RuntimeError if the device or build does
    not support the call.
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    return draw_request(_abi.lib.gumbel_sample, *read_head(hidden, weight, bias, shared, common))


@takes_common()
def sample_logits(
    logits: Array,
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> SampleOutput:
    """Draw tokens from precomputed logits [B, V]; otherwise as sample().

    Equal logits and seeds give the tokens of sample().
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    return draw_request(_abi.lib.gumbel_sample_logits, *read_logits(logits, shared, common))


@takes_common("given", "token_ids", "num_samples", "ranks", "num_best")
def score(
    hidden: Array,
    weight: Weights,
    tokens: Array,
    *,
    bias: Optional[Array] = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> SampleOutput:
    """Compute log-probabilities and ranks of given tokens, without a draw.

    tokens       int32 [B] or [B, S]: the tokens to score in each row, such as those of a prompt.
                 -1 stands for no token; its log-probability is NaN, its rank -1.

    `logprobs` and `ranks` are [B, S], with S = 1 for tokens [B]; a token that cannot be drawn has
    -inf. Rows are processed a few hundred at a time, which bounds the memory for any B. Otherwise
    as sample().
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    source, request = read_head(hidden, weight, bias, shared, common)
    return score_tokens(_abi.lib.gumbel_sample, source, request, tokens)


@takes_common("given", "token_ids", "num_samples", "ranks", "num_best")
def score_logits(
    logits: Array,
    tokens: Array,
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> SampleOutput:
    """Log-probabilities and ranks of given tokens from logits [B, V]; otherwise as score()."""
    source, request = read_logits(logits, read_logit_options(scale, softcap, vocab_size), common)
    return score_tokens(_abi.lib.gumbel_sample_logits, source, request, tokens)


def score_tokens(
    call: Any, source: LogitsSource, request: Request, tokens: Any, callee: Optional[Callee] = None
) -> SampleOutput:
    """Score `tokens` [B] or [B, S] by one call of the library."""
    rows = (request.batch,)
    found = read_row_tokens("tokens", tokens, (rows, (*rows, None)), request.arrays)
    request.sampling.num_samples = 1 if len(found.shape) == 1 else found.shape[1]
    request.set_given(found, 0)
    request.ranks = True
    return draw_request(call, source, request, callee)


@takes_common("token_ids")
def process_logits(
    logits: Array,
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    out: Optional[Array] = None,
    **common: Unpack[Common],
) -> NDArray[Any]:
    """Compute the transformed logits of a draw from logits [B, V]: float32 [B, V], or `out`.

    out          an array [B, V] that receives the result and is returned: `logits` itself, or
                 memory that does not overlap it, of float32 or the dtype of the logits. A 16-bit
                 result is rounded once from float32, to nearest, ties to even; in float16, 65520
                 and more become inf, -65520 and less -inf. The last axis must be contiguous.

    Padding, masked, banned and truncated tokens are -inf; a row with a NaN or +inf is all NaN.
    Parameters of noise, samples and outputs are ignored. Otherwise as sample_logits().
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    if out is None:
        return _transform_rows(_abi.lib.gumbel_process_logits, logits, shared, common)
    return _process_into(out, logits, shared, common)


@takes_common("token_ids")
def softmax(
    logits: Array,
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> NDArray[np.float32]:
    """Compute the probabilities of a draw from logits [B, V]: float32 [B, V].

    Padding, masked, banned and truncated tokens have probability 0, and the others are
    renormalised. Greedy rows (temperature 0) have the probabilities of temperature 1. A row with a
    NaN or +inf, or in which no token can be drawn, is all NaN. Otherwise as process_logits().
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    return _transform_rows(_abi.lib.gumbel_softmax, logits, shared, common)


def top_k(logits: Array, k: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return the k largest logits of every row and their ids: float32 and int32 [B, k], k <= 128.

    Sorted by logit, largest first; equal logits by id. A row with fewer than k logits above -inf is
    padded with logit -inf and id -1. A row with a NaN or +inf has logits NaN and ids -1 only.
    Raises TypeError or ValueError naming the argument.
    """
    count = read_integer("k", k, 1, 128)
    source, request = read_logits(logits, {}, {})
    arrays = request.arrays
    greedy = arrays.empty((1,), np.float32)
    greedy[:] = 0  # the call also draws a token; a greedy one computes no noise
    request.sampling.temperature = _abi.Rows(address_of(greedy), _abi.SAME)
    tokens, ids, values = (
        arrays.empty((request.batch, width), dtype)
        for width, dtype in ((1, np.int32), (count, np.int32), (count, np.float32))
    )
    output = _abi.Output(
        tokens=address_of(tokens),
        top_ids=address_of(ids),
        top_logits=address_of(values),
        num_top=count,
    )
    call_library(_abi.lib.gumbel_sample_logits, source, request, [output], output)
    return values, ids


def _transform_rows(call: Any, logits: Any, shared: dict[str, Any], common: Any) -> Any:
    """The result of gumbel_process_logits() or gumbel_softmax(): float32 [B, V]."""
    source, request = read_logits(logits, shared, common)
    rows = request.arrays.empty(tuple(logits.shape), np.float32)
    call_library(call, source, request, (address_of(rows), 0))
    return rows


def _read_out(out: Any, logits: _abi.Tensor) -> _abi.Tensor:
    """The tensor of process_logits()'s argument `out`. Raises TypeError or ValueError."""
    found = read_matrix("out", out)
    shape = (logits.rows, logits.cols)
    if (found.rows, found.cols) != shape:
        raise ValueError(f"out: expected the shape of the logits, {shape}, got {tuple(out.shape)}")
    if found.dtype not in (_abi.FLOAT32, logits.dtype):
        raise TypeError(f"out: dtype {out.dtype} is neither float32 nor that of the logits")
    if found.data == logits.data and (found.dtype, found.stride) != (logits.dtype, logits.stride):
        raise ValueError("out: in place of the logits, it must have their dtype and row stride")
    if found.data != logits.data and do_overlap(found, logits):
        raise ValueError("out: overlaps the logits; pass the logits themselves, or other memory")
    if is_tensor(out):
        if out.requires_grad:
            raise ValueError("out: requires a gradient; pass out.detach()")
    check_writable("out", out)
    return found


def _process_into(out: Any, logits: Any, shared: dict[str, Any], common: Any) -> Any:
    """Write the result of gumbel_process_logits_into() to `out`, which is returned."""
    given = import_array("out", out)
    source, request = read_logits(logits, shared, common, out=given)
    assert source[1] is not None
    rows = _read_out(given, source[1].logits)
    results = (rows.data, rows.dtype, rows.stride)
    call_library(_abi.lib.gumbel_process_logits_into, source, request, results)
    return out


@takes_common()
def explain(
    weight_or_logits: Weights,
    hidden: Optional[Array] = None,
    **common: Unpack[Common],
) -> str:
    """Explain which kernels serve a call, and why kernels that are preferred to them cannot.

    weight_or_logits, hidden
                 weight [V, D] with hidden [B, D], as in sample(); or logits [B, V] only.

    Returns lines of text for people and bug reports; nothing is drawn. Raises the errors that the
    call would raise. Otherwise as sample().
    """
    name = "weight_or_logits"
    if hidden is None:
        source, request = read_logits(weight_or_logits, {}, common, name)
    else:
        source, request = read_head(hidden, weight_or_logits, None, {}, common, name)
    _, output = make_output(request)
    text, error = ctypes.create_string_buffer(TEXT_BYTES), _abi.Error()
    status = _abi.lib.gumbel_explain(
        request.arrays.device, *source, request.sampling, output, text, TEXT_BYTES, error
    )
    _abi.check_status(status, error, {"weight": name, "logits": name})
    return _abi.decode_text(text.value)

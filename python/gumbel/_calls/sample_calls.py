# SPDX-License-Identifier: Apache-2.0
"""The calls: arguments in, one call of the library, arrays out."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._inputs.arguments import read_row_tokens
from .._inputs.arrays import Array, address
from .._inputs.common import Common, Request, takes_common
from .._inputs.numbers import read_integer
from .library_call import (
    Callee,
    LogitsSource,
    call_library,
    draw,
    make_output,
    read_head,
    read_logit_options,
    read_logits,
)
from .outputs import SampleOutput
from .screens import Weights

if TYPE_CHECKING:
    from typing_extensions import Unpack

TEXT_BYTES = 4096  # what an explanation has room for


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

    hidden       [B, D] and weight [V, D]: float32, float16, bfloat16 (ml_dtypes), or uint16, which
                 means bfloat16 bits. Dtypes are independent. The last axis must be contiguous; rows
                 may lie any distance apart. Nothing is copied.
    bias         [V], contiguous, added to the logits.
    scale        multiplies the logits; not 0.
    softcap      then y = softcap * tanh(y / softcap); 0: off.
    vocab_size   token ids from here on never count (padding rows of `weight`); None: V.

    hidden, weight, bias and mask are NumPy arrays, or torch tensors of one device, or arrays of any
    library that speaks DLPack, which are taken as one of these two. Tensors on CUDA are drawn from
    on the current stream, without waiting for it; a parameter that is a tensor there in the
    library's dtype, or in int64 for seeds and positions and int32 for first_sample, is not copied
    and not looked at: a bad temperature is a status of its row.

    The same (seed, position) and logits give the same token whatever the batch, threads or ISA.
    Raises TypeError or ValueError naming the argument, and RuntimeError for what this machine
    lacks.
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    return draw(_abi.lib.gumbel_sample, *read_head(hidden, weight, bias, shared, common))


@takes_common()
def sample_logits(
    logits: Array,
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> SampleOutput:
    """Draw tokens from logits [B, V] that are there already; else as sample().

    Equal logits give the tokens that sample() gives.
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    return draw(_abi.lib.gumbel_sample_logits, *read_logits(logits, shared, common))


@takes_common("given", "num_samples", "ranks", "num_best")
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
    """Log-probabilities and ranks of tokens that are there already; nothing is drawn.

    tokens       int32 [B] or [B, S]: prompts, or what another model drew; -1 is no token, and has
                 NaN and rank -1.

    `logprobs` and `ranks` are [B, S], S being 1 for tokens [B]; a token that could not be drawn has
    -inf. Rows are served a few hundred at a time, so that thousands take no more memory. Else as
    sample().
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    source, request = read_head(hidden, weight, bias, shared, common)
    return score_tokens(_abi.lib.gumbel_sample, source, request, tokens)


@takes_common("given", "num_samples", "ranks", "num_best")
def score_logits(
    logits: Array,
    tokens: Array,
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> SampleOutput:
    """Log-probabilities and ranks of tokens by logits [B, V]; else as score()."""
    source, request = read_logits(logits, read_logit_options(scale, softcap, vocab_size), common)
    return score_tokens(_abi.lib.gumbel_sample_logits, source, request, tokens)


def score_tokens(
    call: Any, source: LogitsSource, request: Request, tokens: Any, callee: Optional[Callee] = None
) -> SampleOutput:
    """Score `tokens` [B] or [B, S] by one call of the library."""
    rows = (request.batch,)
    found = read_row_tokens("tokens", tokens, (rows, (*rows, None)), request.arrays)
    request.sampling.num_samples = 1 if len(found.shape) == 1 else found.shape[1]
    request.give(found, 0)
    request.ranks = True
    return draw(call, source, request, callee)


@takes_common()
def process_logits(
    logits: Array,
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> NDArray[np.float32]:
    """What the draw from logits [B, V] sees: transformed logits, float32 [B, V].

    -inf stands for what does not count, is masked or banned, or was removed by truncation; a row
    with a NaN or +inf is NaN throughout. Noise, samples and further outputs play no part. Else as
    sample_logits().
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    return _rows(_abi.lib.gumbel_process_logits, logits, shared, common)


@takes_common()
def softmax(
    logits: Array,
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> NDArray[np.float32]:
    """The probabilities that the draw from logits [B, V] draws with: float32 [B, V].

    0 stands for what does not count, is masked or banned, or was removed by truncation, so that
    top_k, top_p and min_p give renormalised probabilities; greedy rows give those of temperature 1.
    A row with a NaN or +inf, or without a token, is NaN throughout. Else as process_logits().
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    return _rows(_abi.lib.gumbel_softmax, logits, shared, common)


def top_k(logits: Array, k: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """The k largest logits of every row and their ids: float32 and int32 [B, k], k <= 128.

    Larger ones first, then lower ids; -inf and -1 after the last that is above -inf. A row with a
    NaN or +inf has NaN and -1 throughout.
    """
    count = read_integer("k", k, 1, 128)
    source, request = read_logits(logits, {}, {})
    arrays = request.arrays
    greedy = arrays.empty((1,), np.float32)
    greedy[:] = 0  # a token is drawn, too: greedily it needs no noise
    request.sampling.temperature = _abi.Rows(address(greedy), _abi.SAME)
    tokens, ids, values = (
        arrays.empty((request.batch, width), dtype)
        for width, dtype in ((1, np.int32), (count, np.int32), (count, np.float32))
    )
    output = _abi.Output(
        tokens=address(tokens), top_ids=address(ids), top_logits=address(values), num_top=count
    )
    call_library(_abi.lib.gumbel_sample_logits, source, request, [output], output)
    return values, ids


def _rows(call: Any, logits: Any, shared: dict[str, Any], common: Any) -> Any:
    """One float32 row [V] for each row of logits, by process_logits() or softmax()."""
    source, request = read_logits(logits, shared, common)
    made = request.arrays.empty(tuple(logits.shape), np.float32)
    call_library(call, source, request, (address(made), 0))
    return made


@takes_common()
def explain(
    weight_or_logits: Weights,
    hidden: Optional[Array] = None,
    **common: Unpack[Common],
) -> str:
    """Which kernels would serve a call, and why those that come before them would not.

    weight_or_logits, hidden
                 weight [V, D] with hidden [B, D], as in sample(); or logits [B, V] alone.

    Lines of text for people and bug reports; nothing is drawn. Arguments that the call would
    refuse are refused. Else as sample().
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
    _abi.check(status, error, {"weight": name, "logits": name})
    return _abi.text(text.value)

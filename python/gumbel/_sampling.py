# SPDX-License-Identifier: Apache-2.0
"""The calls: arguments in, one call of the library, arrays out."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Sequence

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._arguments import matrix, vector
from ._arrays import NumpyArrays, address, arrays_of, workspace
from ._common import DISTRIBUTIONS, Common, Request, flag, read_common, takes_common
from ._numbers import integer, is_list, length, number, refuse_masked
from ._tensors import to_numpy

if TYPE_CHECKING:
    from typing_extensions import Unpack

INT64_MAX = 2**63 - 1
UINT32_MAX, UINT64_MAX = 2**32 - 1, 2**64 - 1
TEXT_BYTES = 4096  # what an explanation has room for


@dataclass(frozen=True, eq=False)
class SampleOutput:
    """What a draw gives, as arrays of the kind that it was given: NumPy's, or torch tensors.

    A row whose status is not 0 has token -1 and NaN in its float arrays. What was not asked for is
    None.
    """

    tokens: NDArray[np.int32]  #: [B, num_samples] token ids
    logprobs: Optional[NDArray[np.float32]]  #: [B, num_samples] log-probability of each token
    lse: Optional[NDArray[np.float32]]  #: [B] log-normaliser: ln(sum of exp(transformed logits))
    status: NDArray[np.int32]  #: [B] 0 fine, 1 a NaN logit, 2 a +inf logit, 3 every logit -inf,
    #: and on a GPU, where nothing but the row can tell, 4 a bad temperature, 5 a bad slot; 6: the
    #: row was not drawn, as it is none of the live ones
    ranks: Optional[NDArray[np.int32]] = None  #: [B, num_samples] 1 + how many are likelier
    kept: Optional[NDArray[np.int32]] = None  #: [B] how many tokens truncation kept
    top_ids: Optional[NDArray[np.int32]] = None  #: [B, top_logprobs] the likeliest tokens, best
    #: first; -1 after the last that can be drawn without truncation
    top_logprobs: Optional[NDArray[np.float32]] = None  #: theirs; -inf where truncated


@takes_common
def sample(
    hidden: NDArray[Any],
    weight: NDArray[Any],
    *,
    bias: Optional[NDArray[Any]] = None,
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

    hidden, weight, bias and mask are NumPy arrays, or torch tensors of one device. Tensors on CUDA
    are drawn from on the current stream, without waiting for it; a parameter that is a tensor there
    in the library's dtype, or in int64 for seeds and positions, is not copied and not looked at: a
    bad temperature is a status of its row.

    The same (seed, position) and logits give the same token whatever the batch, threads or ISA.
    Raises TypeError or ValueError naming the argument, and RuntimeError for what this machine
    lacks.
    """
    arrays, rest = _open({"hidden": hidden, "weight": weight, "bias": bias}, common)
    head = _abi.Head(
        hidden=matrix("hidden", hidden),
        weight=matrix("weight", weight),
        **_of_logits(scale, softcap, vocab_size),
    )
    if bias is not None:
        head.bias = vector("bias", bias)
    request = read_common(arrays, len(hidden), len(weight), **rest)
    return _draw(_abi.lib.gumbel_sample, (head, None), request)


@takes_common
def sample_logits(
    logits: NDArray[Any],
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> SampleOutput:
    """Draw tokens from logits [B, V] that are there already; else as sample().

    Equal logits give the tokens that sample() gives.
    """
    arrays, rest = _open({"logits": logits}, common)
    head = _abi.Logits(logits=matrix("logits", logits), **_of_logits(scale, softcap, vocab_size))
    request = read_common(arrays, *logits.shape, **rest)
    return _draw(_abi.lib.gumbel_sample_logits, (None, head), request)


@takes_common
def process_logits(
    logits: NDArray[Any],
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
    shared = _of_logits(scale, softcap, vocab_size)
    return _rows(_abi.lib.gumbel_process_logits, logits, shared, common)


@takes_common
def softmax(
    logits: NDArray[Any],
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
    shared = _of_logits(scale, softcap, vocab_size)
    return _rows(_abi.lib.gumbel_softmax, logits, shared, common)


def top_k(logits: NDArray[Any], k: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """The k largest logits of every row and their ids: float32 and int32 [B, k], k <= 128.

    Larger ones first, then lower ids; -inf and -1 after the last that is above -inf. A row with a
    NaN or +inf has NaN and -1 throughout.
    """
    count = integer("k", k, 1, 128)
    arrays, _ = _open({"logits": logits}, {})
    head = _abi.Logits(logits=matrix("logits", logits))
    request = read_common(arrays, *logits.shape)
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
    _call(_abi.lib.gumbel_sample_logits, request, (None, head), output)
    return values, ids


def _rows(call: Any, logits: Any, shared: dict[str, Any], common: Any) -> Any:
    """One float32 row [V] for each row of logits, by process_logits() or softmax()."""
    arrays, rest = _open({"logits": logits}, common)
    head = _abi.Logits(logits=matrix("logits", logits), **shared)
    request = read_common(arrays, *logits.shape, **rest)
    made = arrays.empty(tuple(logits.shape), np.float32)
    scratch, size = _workspace(request, (None, head), None)
    error = _abi.Error()
    status = call(
        arrays.device,
        arrays.stream,
        head,
        request.sampling,
        address(made),
        0,
        address(scratch),
        size,
        error,
    )
    _abi.check(status, error)
    return made


def _open(inputs: dict[str, Any], common: Any) -> tuple[NumpyArrays, dict[str, Any]]:
    """The arrays of a call, on the device that it asks for; the other parameters."""
    rest = dict(common)
    inputs["mask"] = rest.get("mask")
    isa, threads = rest.pop("isa", None), rest.pop("threads", None)
    return arrays_of(inputs, isa, threads), rest


def _of_logits(scale: float, softcap: float, vocab_size: Optional[int]) -> dict[str, Any]:
    """The fields that both ways in share."""
    factor = number("scale", scale)
    if factor == 0:  # which the library reads as its default, 1
        raise ValueError("scale: 0 would make every token equally likely; expected another number")
    return {
        "scale": factor,
        "soft_cap": number("softcap", softcap),
        "vocab_size": 0 if vocab_size is None else integer("vocab_size", vocab_size, 1, INT64_MAX),
    }


def _workspace(
    request: Request, way_in: tuple[Any, Any], output: Optional[_abi.Output]
) -> tuple[Any, int]:
    """The workspace of a call and its size; `way_in` is a head or logits, the other None."""
    size, error = ctypes.c_size_t(), _abi.Error()
    status = _abi.lib.gumbel_workspace_size(
        request.arrays.device, *way_in, request.sampling, output, size, error
    )
    _abi.check(status, error)
    return workspace(request.arrays, size.value), size.value


def _output(request: Request) -> tuple[SampleOutput, _abi.Output]:
    """The arrays of a request's results, and the struct that points to them."""
    arrays, batch = request.arrays, request.batch
    draws, tops = (batch, request.sampling.num_samples), (batch, request.top_logprobs)

    def make(wanted: Any, shape: tuple[int, ...], dtype: type) -> Any:
        return arrays.empty(shape, dtype) if wanted else None

    result = SampleOutput(
        tokens=make(True, draws, np.int32),
        logprobs=make(request.logprobs, draws, np.float32),
        lse=make(request.logprobs, (batch,), np.float32),
        status=make(True, (batch,), np.int32),
        ranks=make(request.ranks, draws, np.int32),
        kept=make(request.kept, (batch,), np.int32),
        top_ids=make(request.top_logprobs, tops, np.int32),
        top_logprobs=make(request.top_logprobs, tops, np.float32),
    )
    output = _abi.Output(
        **{name: address(array) for name, array in vars(result).items()},
        num_top=request.top_logprobs,
        logprobs_of=DISTRIBUTIONS[request.logprobs],
    )
    return result, output


def _draw(call: Any, way_in: tuple[Any, Any], request: Request) -> SampleOutput:
    """Draw by one call of the library; `way_in` as in _workspace()."""
    result, output = _output(request)
    _call(call, request, way_in, output)
    return result


def _call(call: Any, request: Request, way_in: tuple[Any, Any], output: _abi.Output) -> None:
    """Fill an output; `way_in` as in _workspace()."""
    arrays = request.arrays
    scratch, size = _workspace(request, way_in, output)
    head, error = way_in[0] or way_in[1], _abi.Error()
    where = (arrays.device, arrays.stream)
    status = call(*where, head, request.sampling, output, address(scratch), size, error)
    _abi.check(status, error)


@takes_common
def explain(
    weight_or_logits: NDArray[Any],
    hidden: Optional[NDArray[Any]] = None,
    **common: Unpack[Common],
) -> str:
    """Which kernels would serve a call, and why those that come before them would not.

    weight_or_logits, hidden
                 weight [V, D] with hidden [B, D], as in sample(); or logits [B, V] alone.

    Lines of text for people and bug reports; nothing is drawn. Else as sample().
    """
    name = "weight_or_logits"
    way_in: tuple[Any, Any]
    arrays, rest = _open({name: weight_or_logits, "hidden": hidden}, common)
    if hidden is None:
        way_in = (None, _abi.Logits(logits=matrix(name, weight_or_logits)))
        request = read_common(arrays, *weight_or_logits.shape, **rest)
    else:
        weight = matrix(name, weight_or_logits)
        way_in = (_abi.Head(hidden=matrix("hidden", hidden), weight=weight), None)
        request = read_common(arrays, len(hidden), len(weight_or_logits), **rest)
    _, output = _output(request)
    text, error = ctypes.create_string_buffer(TEXT_BYTES), _abi.Error()
    status = _abi.lib.gumbel_explain(
        arrays.device, *way_in, request.sampling, output, text, TEXT_BYTES, error
    )
    _abi.check(status, error)
    return _abi.text(text.value)


def noise(
    seed: int, position: int, vocab_size: int, *, sample: int = 0, domain: int = 0
) -> NDArray[np.float32]:
    """The Gumbel noise [vocab_size] that draw number `sample` of a row adds to its logits.

    seed         the row's own seed, < 2**64.
    position     < 2**64: the step in the row's sequence.
    sample       < 2**32: which of the row's draws.
    domain       < 2**31: which stream of randomness; draws use 0.
    """
    count = integer("vocab_size", vocab_size, 0, 2**31)
    out = np.empty(count, dtype=np.float32)
    error = _abi.Error()
    status = _abi.lib.gumbel_noise(
        integer("seed", seed, 0, UINT64_MAX),
        integer("position", position, 0, UINT64_MAX),
        integer("sample", sample, 0, UINT32_MAX),
        integer("domain", domain, 0, UINT32_MAX),
        0,
        count,
        address(out),
        error,
    )
    _abi.check(status, error)
    return out


def philox4x32(counter: Sequence[int], key: Sequence[int], rounds: int = 10) -> NDArray[np.uint32]:
    """One block [4] of Philox4x32 from `counter`, 4 words, and `key`, 2 words; rounds 0 to 16."""

    def words(name: str, values: Sequence[int], count: int) -> ctypes.Array:
        values = to_numpy(name, values)
        refuse_masked(name, values)
        if not is_list(values) and not (isinstance(values, np.ndarray) and values.ndim):
            raise TypeError(f"{name}: expected {count} words, got {type(values).__name__}")
        if length(values) != count:
            raise ValueError(f"{name}: expected {count} words, got {length(values)}")
        numbers = [integer(f"{name}[{i}]", v, 0, UINT32_MAX) for i, v in enumerate(values)]
        return (ctypes.c_uint32 * count)(*numbers)

    out = (ctypes.c_uint32 * 4)()
    rounds = integer("rounds", rounds, 0, 16)
    _abi.check(
        _abi.lib.gumbel_philox4x32(words("counter", counter, 4), words("key", key, 2), rounds, out)
    )
    return np.array(out, dtype=np.uint32)

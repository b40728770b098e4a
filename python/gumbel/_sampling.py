# SPDX-License-Identifier: Apache-2.0
"""The calls: arguments in, one call of the library, arrays out."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence, Union

import numpy as np
from numpy.typing import NDArray

from . import _abi
from ._arguments import address, integer, matrix, number, row_floats, row_integers
from ._arguments import vector, workspace
from ._device import open_device

RowFloats = Union[float, Sequence[float], NDArray[Any]]
RowIntegers = Union[int, Sequence[int], NDArray[Any]]

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
UINT32_MAX, UINT64_MAX = 2**32 - 1, 2**64 - 1


@dataclass(frozen=True, eq=False)
class SampleOutput:
    """What a draw gives. A row whose status is not 0 has token -1 and NaN in its float arrays."""

    tokens: NDArray[np.int32]  #: [B, num_samples] token ids
    logprobs: Optional[NDArray[np.float32]]  #: [B, num_samples] log-probability of each token
    lse: Optional[NDArray[np.float32]]  #: [B] log-normaliser: ln(sum of exp(transformed logits))
    status: NDArray[np.int32]  #: [B] 0 fine, 1 a NaN logit, 2 a +inf logit, 3 every logit -inf


def sample(
    hidden: NDArray[Any],
    weight: NDArray[Any],
    *,
    bias: Optional[NDArray[Any]] = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    temperature: RowFloats = 1.0,
    seed: RowIntegers = 0,
    position: RowIntegers = 0,
    num_samples: int = 1,
    logprobs: Optional[str] = "processed",
    isa: Optional[str] = None,
    threads: Optional[int] = None,
) -> SampleOutput:
    """Draw tokens from hidden states; the product with the LM head is fused with the draw.

    hidden       [B, D] and weight [V, D]: float32, float16, bfloat16 (ml_dtypes), or uint16, which
                 means bfloat16 bits. Dtypes are independent. The last axis must be contiguous; rows
                 may lie any distance apart. Nothing is copied.
    bias         [V], contiguous, added to the logits.
    scale        multiplies the logits; not 0.
    softcap      then y = softcap * tanh(y / softcap); 0: off.
    vocab_size   token ids from here on never count (padding rows of `weight`); None: V.
    temperature  >= 0, one or [B]; 0 is greedy. Rounded to float32.
    seed         < 2**64. An array [B] gives each row its own seed; one seed for the batch is mixed
                 with the row number (gumbel_row_seed), and row 0 uses it as it is.
    position     < 2**32, one or [B]: the step in the row's sequence.
    num_samples  independent draws a row, 1 to 65536.
    logprobs     "processed": of the distribution that is drawn from; None: `logprobs` and `lse` of
                 the result are None and their time is saved.
    isa          None, "reference", "avx2", "avx512" or "neon"; all give the same bits.
    threads      None: the CPUs this process may use. The result is the same for every count.

    The same (seed, position) and logits give the same token whatever the batch, threads or ISA.
    Raises TypeError or ValueError naming the argument, and RuntimeError for an ISA that this
    machine lacks.
    """
    head = _abi.Head(
        hidden=matrix("hidden", hidden),
        weight=matrix("weight", weight),
        **_transforms(scale, softcap, vocab_size),
    )
    if bias is not None:
        head.bias = vector("bias", bias)
    return _draw(
        _abi.lib.gumbel_sample,
        head,
        hidden.shape,
        open_device(isa, threads),
        temperature=temperature,
        seed=seed,
        position=position,
        num_samples=num_samples,
        logprobs=logprobs,
    )


def sample_logits(
    logits: NDArray[Any],
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    temperature: RowFloats = 1.0,
    seed: RowIntegers = 0,
    position: RowIntegers = 0,
    num_samples: int = 1,
    logprobs: Optional[str] = "processed",
    isa: Optional[str] = None,
    threads: Optional[int] = None,
) -> SampleOutput:
    """Draw tokens from logits [B, V] that are there already; else as sample().

    Equal logits give the tokens that sample() gives.
    """
    return _draw(
        _abi.lib.gumbel_sample_logits,
        _abi.Logits(logits=matrix("logits", logits), **_transforms(scale, softcap, vocab_size)),
        (logits.shape[0], 0),
        open_device(isa, threads),
        temperature=temperature,
        seed=seed,
        position=position,
        num_samples=num_samples,
        logprobs=logprobs,
    )


def _transforms(scale: float, softcap: float, vocab_size: Optional[int]) -> dict[str, Any]:
    """The fields that both ways in share."""
    if number("scale", scale) == 0:  # which the library reads as its default, 1
        raise ValueError("scale: 0 would make every token equally likely; expected another number")
    return {
        "scale": scale,
        "soft_cap": number("softcap", softcap),
        "vocab_size": 0 if vocab_size is None else integer("vocab_size", vocab_size, 1, INT64_MAX),
    }


def _draw(
    call: Callable[..., int],
    head: _abi.Sized,
    shape: tuple[int, int],
    device: ctypes.c_void_p,
    *,
    temperature: RowFloats,
    seed: RowIntegers,
    position: RowIntegers,
    num_samples: int,
    logprobs: Optional[str],
) -> SampleOutput:
    """Run one call of the library on `head`; `shape` is [B, D], D = 0 for logits."""
    batch, width = shape
    temperatures, temperature_stride = row_floats("temperature", temperature, batch)
    seeds, seed_stride = row_integers("seed", seed, batch, np.uint64)
    positions, position_stride = row_integers("position", position, batch, np.uint32)
    samples = integer("num_samples", num_samples, 1, INT32_MAX)
    if logprobs not in (None, "processed"):
        raise ValueError(f"logprobs: {logprobs!r} is neither 'processed' nor None")
    sampling = _abi.Sampling(
        temperature=address(temperatures),
        temperature_stride=temperature_stride,
        seed=address(seeds),
        seed_stride=seed_stride,
        position=address(positions),
        position_stride=position_stride,
        num_samples=samples,
    )
    size, error = ctypes.c_size_t(), _abi.Error()
    status = _abi.lib.gumbel_workspace_size(device, batch, width, samples, size, error)
    _abi.check(status, error)
    scratch = workspace(size.value)
    result = SampleOutput(
        tokens=np.empty((batch, samples), dtype=np.int32),
        logprobs=np.empty((batch, samples), dtype=np.float32) if logprobs else None,
        lse=np.empty(batch, dtype=np.float32) if logprobs else None,
        status=np.empty(batch, dtype=np.int32),
    )
    output = _abi.Output(**{name: address(array) for name, array in vars(result).items()})
    status = call(device, head, sampling, output, address(scratch), scratch.nbytes, error)
    _abi.check(status, error)
    return result


def noise(
    seed: int, position: int, vocab_size: int, *, sample: int = 0, domain: int = 0
) -> NDArray[np.float32]:
    """The Gumbel noise [vocab_size] that draw number `sample` of a row adds to its logits.

    seed         the row's own seed, < 2**64.
    position     < 2**32: the step in the row's sequence.
    sample       < 2**32: which of the row's draws.
    domain       < 2**31: which stream of randomness; draws use 0.
    """
    count = integer("vocab_size", vocab_size, 0, 2**31)
    out = np.empty(count, dtype=np.float32)
    error = _abi.Error()
    status = _abi.lib.gumbel_noise(
        integer("seed", seed, 0, UINT64_MAX),
        integer("position", position, 0, UINT32_MAX),
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
        if len(values) != count:
            raise ValueError(f"{name}: expected {count} words, got {len(values)}")
        numbers = [integer(f"{name}[{i}]", v, 0, UINT32_MAX) for i, v in enumerate(values)]
        return (ctypes.c_uint32 * count)(*numbers)

    out = (ctypes.c_uint32 * 4)()
    rounds = integer("rounds", rounds, 0, 16)
    _abi.check(
        _abi.lib.gumbel_philox4x32(words("counter", counter, 4), words("key", key, 2), rounds, out)
    )
    return np.array(out, dtype=np.uint32)

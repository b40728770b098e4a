# SPDX-License-Identifier: Apache-2.0
"""The Gumbel noise of draws, and its random-number generator."""

from __future__ import annotations

import ctypes
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._inputs.arrays import address_of
from .._inputs.numbers import get_length, is_list, read_integer, reject_masked
from .._inputs.tensors import to_numpy

UINT32_MAX, UINT64_MAX = 2**32 - 1, 2**64 - 1


def noise(
    seed: int, position: int, vocab_size: int, *, sample: int = 0, domain: int = 0
) -> NDArray[np.float32]:
    """The Gumbel noise [vocab_size] that a draw adds to a row's transformed logits.

    seed         the row's own seed, < 2**64.
    position     the step in the row's sequence, < 2**64.
    sample       the sample counter of the draw, < 2**32.
    domain       the random stream, < 2**31; texts use 0.
    """
    count = read_integer("vocab_size", vocab_size, 0, 2**31)
    out = np.empty(count, dtype=np.float32)
    error = _abi.Error()
    status = _abi.lib.gumbel_noise(
        read_integer("seed", seed, 0, UINT64_MAX),
        read_integer("position", position, 0, UINT64_MAX),
        read_integer("sample", sample, 0, UINT32_MAX),
        read_integer("domain", domain, 0, UINT32_MAX),
        0,
        count,
        address_of(out),
        error,
    )
    _abi.check_status(status, error)
    return out


def philox4x32(counter: Sequence[int], key: Sequence[int], rounds: int = 10) -> NDArray[np.uint32]:
    """One block [4] of Philox4x32 from `counter` (4 words) and `key` (2 words); 0 to 16 rounds."""

    def read_words(name: str, values: Sequence[int], count: int) -> ctypes.Array:
        values = to_numpy(name, values)
        reject_masked(name, values)
        if not is_list(values) and not (isinstance(values, np.ndarray) and values.ndim):
            raise TypeError(f"{name}: expected {count} words, got {type(values).__name__}")
        if get_length(values) != count:
            raise ValueError(f"{name}: expected {count} words, got {get_length(values)}")
        numbers = [read_integer(f"{name}[{i}]", v, 0, UINT32_MAX) for i, v in enumerate(values)]
        return (ctypes.c_uint32 * count)(*numbers)

    out = (ctypes.c_uint32 * 4)()
    rounds = read_integer("rounds", rounds, 0, 16)
    _abi.check_status(
        _abi.lib.gumbel_philox4x32(
            read_words("counter", counter, 4), read_words("key", key, 2), rounds, out
        )
    )
    return np.array(out, dtype=np.uint32)

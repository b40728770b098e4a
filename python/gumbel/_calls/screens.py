# SPDX-License-Identifier: Apache-2.0
"""Screens: copies of LM heads by which draws read half of them."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Union

import numpy as np

from .. import _abi
from .._inputs.arguments import matrix
from .._inputs.arrays import Array, arrays_of, taken, workspace


class Screen:
    """The weights of an LM head rounded to a byte each, with bounds of what that loses.

    >>> screen = gumbel.Screen(weight)
    >>> gumbel.sample(hidden, screen, logprobs=None, temperature=0.8).tokens

    weight       [V, D] as in sample(), D <= 65535, in memory of the CPU: on a GPU there are no
                 screens yet, which is a RuntimeError. It must not change while the screen is used.
    isa, threads as in sample(); the screen is the same for all of them, and serves all.

    A screen stands for its weights in every call that takes weights, and changes the time of a
    call, never a bit of its results. What it cannot serve takes the full pass as if it were not
    there: log-probabilities (so logprobs=None), truncation, ranks, lists; gumbel.explain() tells.
    It takes half as much memory as bfloat16 weights do. Threads may share it.
    """

    weight: Array  #: what it was made of
    nbytes: int  #: of the copy and its bounds

    def __init__(
        self, weight: Array, *, isa: Optional[str] = None, threads: Optional[int] = None
    ) -> None:
        self.weight = taken("weight", weight)
        self._arrays = arrays_of({"weight": self.weight}, isa, threads)
        tensor, size, error = matrix("weight", self.weight), ctypes.c_size_t(), _abi.Error()
        device = self._arrays.device
        _abi.check(_abi.lib.gumbel_screen_size(device, tensor, size, error), error)
        self.nbytes = size.value
        self._bytes = workspace(self._arrays, self.nbytes, kept=False)
        self.address = self._bytes.address
        status = _abi.lib.gumbel_screen_prepare(
            device, self._arrays.stream, tensor, self.address, self.nbytes, error
        )
        _abi.check(status, error)

    def verify(self) -> None:
        """Compute all bounds again; ValueError names the first row whose weights have changed."""
        error = _abi.Error()
        status = _abi.lib.gumbel_screen_verify(
            self._arrays.device,
            self._arrays.stream,
            matrix("weight", self.weight),
            self.address,
            error,
        )
        _abi.check(status, error)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """The bytes of the copy and its bounds, as gumbel/screen.h has them: uint8 [nbytes]."""
        start = self._bytes.address - np.asarray(self._bytes.block).ctypes.data
        return np.asarray(self._bytes.block)[start : start + self.nbytes]


Weights = Union[Array, Screen]  # of a head

# SPDX-License-Identifier: Apache-2.0
"""Screens: copies of LM heads by which draws read half of them."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Union

import numpy as np

from .. import _abi
from .._inputs.arguments import matrix
from .._inputs.arrays import Array, address, arrays_of, layout, taken, workspace


class Screen:
    """The weights of an LM head rounded to a byte each, with bounds of what that loses.

    >>> screen = gumbel.Screen(weight)
    >>> gumbel.sample(hidden, screen, logprobs=None, temperature=0.8).tokens

    weight       [V, D] as in sample(), D <= 65535, on the CPU or on a GPU, where plain draws alone
                 go by a screen (gumbel/screen.h). After a write into it call update(); until then
                 draws may give wrong tokens.
    isa, threads as in sample(); the screen is the same for all of them, and serves all.

    A screen stands for its weights in every call that takes weights, and changes the time of a
    call, never a bit of its results. What it cannot serve takes the full pass as if it were not
    there: log-probabilities (so logprobs=None), ranks, kept counts, lists; gumbel.explain() tells.
    It takes half as much memory as bfloat16 weights do. Threads may share it.
    """

    weight: Array  #: what it was made of
    bytes: Array  #: the copy and its bounds, as gumbel/screen.h has them: uint8 [nbytes]
    nbytes: int  #: of them

    def __init__(
        self, weight: Array, *, isa: Optional[str] = None, threads: Optional[int] = None
    ) -> None:
        self._open(taken("weight", weight), isa, threads)
        room = workspace(self._arrays, self.nbytes, kept=False)
        block: Any = room.block
        start = room.address - (address(block) or 0)
        self.bytes, self.address = block[start : start + self.nbytes], room.address
        self.update()

    def update(self) -> None:
        """Make the copy again, in place, of weights that were written in place.

        Prepared calls, operators and CUDA graphs that use `bytes` use the new copy from then on.
        """
        error = _abi.Error()
        status = _abi.lib.gumbel_screen_prepare(
            self._arrays.device,
            self._arrays.current_stream(),
            matrix("weight", self.weight),
            self.address,
            self.nbytes,
            error,
        )
        _abi.check(status, error)

    def _open(self, weight: Array, isa: Optional[str], threads: Optional[int]) -> None:
        """The weights, their device, and how many bytes their screen has."""
        self.weight = weight
        self._arrays = arrays_of({"weight": weight}, isa, threads)
        size, error = ctypes.c_size_t(), _abi.Error()
        status = _abi.lib.gumbel_screen_size(
            self._arrays.device, matrix("weight", weight), size, error
        )
        _abi.check(status, error)
        self.nbytes = size.value

    @classmethod
    def of_bytes(cls, weight: Array, screen: Array) -> Screen:
        """The screen of `weight` that these bytes are, the `bytes` of one; they are not copied.

        Raises ValueError for an array of another size, TypeError for one of another dtype or place.
        Whether they are of these very weights verify() tells.
        """
        found = cls.__new__(cls)
        found._open(taken("weight", weight), None, None)
        found.bytes = taken("screen", screen)
        arrays_of({"weight": found.weight, "screen": found.bytes}, None, None)
        lies = layout("screen", found.bytes)
        if lies.dtype != "uint8":
            raise TypeError(f"screen: dtype {lies.dtype} is not uint8")
        if lies.shape != (found.nbytes,) or lies.strides != (1,):
            raise ValueError(f"screen: expected the shape ({found.nbytes},), got {lies.shape}")
        found.address = lies.address
        return found

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
        """The bytes, as an array."""
        return np.asarray(self.bytes, *args, **kwargs)


Weights = Union[Array, Screen]  # of a head

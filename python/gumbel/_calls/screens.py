# SPDX-License-Identifier: Apache-2.0
"""Screens: copies of LM heads by which draws read half of them."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Union

import numpy as np

from .. import _abi
from .._inputs.arguments import matrix
from .._inputs.arrays import Array, address, arrays_of, layout, taken, workspace
from .._inputs.tensors import is_tensor


def _place_of(weight: Any) -> tuple[Any, ...]:
    return address(weight), *weight.shape


def _version_of(weight: Any) -> Optional[int]:
    """How many in-place changes torch has counted of a tensor; None where nobody counts."""
    if not is_tensor(weight) or weight.is_inference():
        return None
    return int(weight._version)


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

    A Screen keeps the array and its memory. Weights that were changed make it stale. A call by a
    stale screen raises ValueError if the change can be seen: the array has other memory (a
    Parameter's `.data` was set, an array was resized), or torch counted an in-place change (an
    optimizer's step, copy_()). Changes of a NumPy array's elements, changes through a tensor's
    `.data` and changes under a prepared call are not seen by a call; verify() finds them. Binding
    a name anew, as in `model.weight = other`, does not reach the Screen: it draws from the array
    that it was made of.
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
        self._check_memory()
        error = _abi.Error()
        status = _abi.lib.gumbel_screen_prepare(
            self._arrays.device,
            self._arrays.current_stream(),
            matrix("weight", self.weight),
            self.memory(),
            error,
        )
        _abi.check(status, error)
        self._version = _version_of(self.weight)

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
        self._memory = weight.detach() if is_tensor(weight) else weight  # prepared calls read it
        self._place, self._version = _place_of(weight), _version_of(weight)

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

    def memory(self) -> _abi.ScreenMemory:
        """The screen's memory as C takes it; this Screen keeps it."""
        return _abi.ScreenMemory(self.address, self.nbytes)

    def _check_memory(self) -> None:
        if _place_of(self.weight) != self._place:
            raise ValueError(
                "weight: its memory was replaced after the Screen was made; make a new Screen"
            )

    def check_weight(self) -> None:
        """Raise ValueError if a change of the weights can be seen, as every call does."""
        self._check_memory()
        if _version_of(self.weight) != self._version:
            raise ValueError(
                "weight: it was changed in place after the Screen was made; call the Screen's "
                "update(), or verify() if the values are the same"
            )

    def verify(self) -> None:
        """Compute all bounds again; ValueError names the first row whose weights have changed."""
        self._check_memory()
        error = _abi.Error()
        status = _abi.lib.gumbel_screen_verify(
            self._arrays.device,
            self._arrays.stream,
            matrix("weight", self.weight),
            self.memory(),
            error,
        )
        _abi.check(status, error)
        self._version = _version_of(self.weight)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """The bytes, as an array."""
        return np.asarray(self.bytes, *args, **kwargs)


Weights = Union[Array, Screen]  # of a head

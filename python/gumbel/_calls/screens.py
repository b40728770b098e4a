# SPDX-License-Identifier: Apache-2.0
"""Screens: quantized copies of LM heads. A draw with a screen reads half the bytes or fewer."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Union

import numpy as np

from .. import _abi
from .._inputs.arguments import read_matrix
from .._inputs.arrays import Array, address_of, arrays_of, import_array, layout_of
from .._inputs.numbers import read_choice, read_integer
from .._inputs.tensors import is_tensor
from .._inputs.workspaces import allocate_workspace


def _describe_memory(weight: Any) -> tuple[Any, ...]:
    return address_of(weight), *weight.shape


def _read_version(weight: Any) -> Optional[int]:
    """torch's version counter of a tensor, or None; in-place operations advance it."""
    if not is_tensor(weight) or weight.is_inference():
        return None
    return int(weight._version)


class Screen:
    """A quantized copy of LM-head weights: one byte for each weight, with error bounds.

    >>> screen = gumbel.Screen(weight)
    >>> gumbel.sample(hidden, screen, logprobs=None, temperature=0.8).tokens

    weight       [V, D] as in sample(), D <= 65535, on the CPU or on a GPU. gumbel/screen.h
                 lists the calls that use a screen. Call update() after writing to the weights;
                 until then draws may give wrong tokens.
    certificate  "probable" (default): a bound of a draw fails with a chance below 2^-64, and the
                 bounds are tight. "certain": no bound ever fails.
    seed         of the dither, the random offsets behind which weights are rounded; in [0, 2^64).
                 None (default): dither from the operating system, new at each update(). With a
                 seed the bytes are the same for every isa and threads.
    format       "bytes" (default), or "nibbles": draws of few rows without truncation read the
                 upper half of each byte first, which takes half to two thirds of the time.
    isa, threads as in sample()

    Keep the bytes secret from those who choose prompts, adapters or hidden states: whoever knows
    the dither can search for hidden states for which a probable bound fails.

    Pass a screen in place of its weights to any call. A screen changes the time of a call, never
    its results. Calls that it cannot serve use the full pass over the weights: always those for raw
    log-probabilities, and, unless all rows have top_k or min_p, those for other log-probabilities
    (hence logprobs=None), ranks, kept counts and lists of tokens; gumbel.explain() reports which. A
    screen takes half as much memory as bfloat16 weights. Threads may share it.

    A Screen keeps a reference to the weights. Changed weights make it stale. A call with a stale
    screen raises ValueError if it detects the change: the array has other memory (a Parameter's
    `.data` was set, an array was resized), or torch's version counter has advanced (an optimizer's
    step, copy_()). Writes to a NumPy array, writes through a tensor's `.data` and writes between
    prepared calls are not detected; verify() finds them. Rebinding a name, as in
    `model.weight = other`, does not affect the Screen, which draws from its own array.

    Unstable: may change in a minor release; see docs/compatibility.md.
    """

    weight: Array  #: the weights
    bytes: Array  #: uint8 [nbytes]: the copy and its bounds, in the format of gumbel/screen.h
    nbytes: int  #: size of `bytes`

    certificate: str  #: the kind of certificate that update() makes
    seed: Optional[int]  #: the seed of the dither that update() makes
    format: str  #: the format that update() makes, and that draws on a GPU expect

    def __init__(
        self,
        weight: Array,
        *,
        certificate: str = "probable",
        seed: Optional[int] = None,
        format: str = "bytes",
        isa: Optional[str] = None,
        threads: Optional[int] = None,
    ) -> None:
        self._set_update(certificate, seed, format)
        self._set_weight(import_array("weight", weight), isa, threads)
        room = allocate_workspace(self._arrays, self.nbytes)
        block: Any = room.block
        place: Any = room.address.value
        start = place - (address_of(block) or 0)
        self.bytes, self.address = block[start : start + self.nbytes], place
        self.update()

    def update(self) -> None:
        """Rebuild the copy in place, after the weights were written in place.

        Prepared calls, operators and CUDA graphs that use `bytes` then use the new copy.
        """
        self._check_memory()
        error = _abi.Error()
        options = _abi.ScreenOptions(
            certificate=_abi.CERTIFICATES[self.certificate],
            format=_abi.SCREEN_FORMATS[self.format],
        )
        if self.seed is not None:
            options.seed = ctypes.pointer(ctypes.c_uint64(self.seed))
        status = _abi.lib.gumbel_screen_prepare(
            self._arrays.device,
            self._arrays.current_stream(),
            read_matrix("weight", self.weight),
            options,
            self.memory(),
            error,
        )
        _abi.check_status(status, error)
        self._version = _read_version(self.weight)

    def _set_update(self, certificate: str, seed: Optional[int], format: str) -> None:
        """Set the options of update()."""
        read_choice("certificate", certificate, _abi.CERTIFICATES)
        read_choice("format", format, _abi.SCREEN_FORMATS)
        self.certificate, self.format = certificate, format
        self.seed = None if seed is None else read_integer("seed", seed, 0, 2**64 - 1)

    def _set_weight(self, weight: Array, isa: Optional[str], threads: Optional[int]) -> None:
        """Set the weights, their device, and the size of the screen, but not its memory."""
        self.weight = weight
        self._arrays = arrays_of({"weight": weight}, isa, threads)
        size, error = ctypes.c_size_t(), _abi.Error()
        status = _abi.lib.gumbel_screen_size(
            self._arrays.device, read_matrix("weight", weight), size, error
        )
        _abi.check_status(status, error)
        self.nbytes = size.value
        # Keeps alive the memory of the weights, which prepared calls read.
        self._memory = weight.detach() if is_tensor(weight) else weight
        self._place, self._version = _describe_memory(weight), _read_version(weight)

    @classmethod
    def of_bytes(
        cls,
        weight: Array,
        screen: Array,
        *,
        certificate: str = "probable",
        seed: Optional[int] = None,
        format: str = "bytes",
    ) -> Screen:
        """A Screen of `weight` that uses `screen`, the `bytes` of another one, without a copy.

        certificate, seed
                     as in Screen(), for update(); draws use the certificate of the bytes
        format       as in Screen(). On a GPU it must be that of the bytes: with another one, draws
                     do not use them. On a CPU it is for update().

        Raises ValueError if the size is wrong, and TypeError if the dtype or device is wrong. Call
        verify() to check that the bytes match the weights.
        """
        found = cls.__new__(cls)
        found._set_update(certificate, seed, format)
        found._set_weight(import_array("weight", weight), None, None)
        found.bytes = import_array("screen", screen)
        arrays_of({"weight": found.weight, "screen": found.bytes}, None, None)
        placed = layout_of("screen", found.bytes)
        if placed.dtype != "uint8":
            raise TypeError(f"screen: dtype {placed.dtype} is not uint8")
        if placed.shape != (found.nbytes,) or placed.strides != (1,):
            raise ValueError(f"screen: expected the shape ({found.nbytes},), got {placed.shape}")
        found.address = placed.address
        return found

    def memory(self) -> _abi.ScreenMemory:
        """The C struct of the screen's memory, which this Screen owns."""
        return _abi.ScreenMemory(self.address, self.nbytes, _abi.SCREEN_FORMATS[self.format])

    def _check_memory(self) -> None:
        if _describe_memory(self.weight) != self._place:
            raise ValueError(
                "weight: its memory was replaced after the Screen was built; build a new Screen"
            )

    def check_weight(self) -> None:
        """Raise ValueError if the weights have detectably changed; every call checks this."""
        self._check_memory()
        if _read_version(self.weight) != self._version:
            raise ValueError(
                "weight: it was changed in place after the Screen was built; call the Screen's "
                "update(), or verify() if the values are equal"
            )

    def verify(self) -> None:
        """Compare the screen with all weights; ValueError names the first row that differs."""
        self._check_memory()
        error = _abi.Error()
        status = _abi.lib.gumbel_screen_verify(
            self._arrays.device,
            self._arrays.stream,
            read_matrix("weight", self.weight),
            self.memory(),
            error,
        )
        _abi.check_status(status, error)
        self._version = _read_version(self.weight)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """The bytes, as an array."""
        return np.asarray(self.bytes, *args, **kwargs)


Weights = Union[Array, Screen]  # a head's weights, or their screen

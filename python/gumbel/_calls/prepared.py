# SPDX-License-Identifier: Apache-2.0
"""Calls that are made ready once and run step after step: structs, results, workspace are kept."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from .. import _abi
from .._inputs.arguments import matrix
from .._inputs.arrays import Array, address, layout, taken
from .screens import Weights
from .ways import (
    Callee,
    SampleOutput,
    WayIn,
    callee_of,
    from_head,
    from_logits,
    of_logits,
    output_of,
    scratch_of,
)
from .._inputs.common import Common, Request, takes_common
from .._inputs.tensors import is_tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Parameters that a row has one number of.
ROW_PARAMETERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "position",
    "first_sample",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "given",
    "slots",
    "live_rows",
)


class PreparedCall:
    """What prepare_sample() and prepare_sample_logits() give.

    >>> call = gumbel.prepare_sample(hidden, weight, position=positions)
    >>> out = call()                # draws from what `hidden` and `positions` hold now
    >>> positions += 1
    >>> out = call(other_hidden)    # the same shape, dtype and strides, somewhere else

    Every call writes the same arrays, `output`: copy what must outlive the next one. One call at a
    time; on CUDA all on one stream, as results and workspace are shared. It can be captured in a
    CUDA graph, for as long as this object lives.
    """

    output: SampleOutput  #: what the latest call has drawn

    def __init__(
        self,
        call: Any,
        name: str,
        inputs: Any,
        way_in: WayIn,
        request: Request,
        callee: Optional[Callee] = None,
    ) -> None:
        head, logits = way_in
        self.output, self._struct = output_of(request)
        scratch = scratch_of(way_in, request, self._struct, kept=False, callee=callee)
        self._call, self._error = call, _abi.Error()
        self._handle = callee_of(request.arrays, callee).handle
        self._name, self._inputs, self._arrays = name, inputs, request.arrays
        self._kind, self._itemsize = _kind(inputs), layout(name, inputs).itemsize
        self._tensor = head.hidden if head else logits.logits  # type: ignore[union-attr]
        self._held = (way_in, request, scratch)
        structs = (head or logits, request.sampling, self._struct)
        self._arguments = (
            *map(ctypes.byref, structs),
            ctypes.c_void_p(scratch.address),
            ctypes.c_size_t(scratch.size),
            ctypes.byref(self._error),
        )

    def __call__(self, inputs: Optional[Array] = None) -> SampleOutput:
        """Draw; from `inputs` from now on, if they are given: hidden states, or logits."""
        if inputs is not None:
            self._point_to(inputs)
        stream = self._arrays.current_stream()
        status = self._call(self._handle, stream, *self._arguments)
        if status:
            _abi.check(status, self._error)
        return self.output

    def _point_to(self, inputs: Any) -> None:
        inputs = taken(self._name, inputs)
        known = type(inputs) is np.ndarray or is_tensor(inputs)
        if not known or _kind(inputs) != self._kind:
            raise ValueError(
                f"{self._name}: expected the kind, shape, dtype and strides that the call was "
                "prepared for"
            )
        place: Any = address(inputs)
        if place % self._itemsize:
            matrix(self._name, inputs)  # says what is wrong
        self._tensor.data, self._inputs = place, inputs


def _kind(inputs: Any) -> Any:
    """What a call is prepared for; a single row has no stride."""
    first = 1 if inputs.shape[0:1] == (1,) else 0
    if type(inputs) is np.ndarray:
        return inputs.dtype, inputs.shape, inputs.strides[first:]
    strides = inputs.stride()[first:]
    return inputs.dtype, inputs.shape, strides, inputs.device, inputs.is_neg()


@takes_common()
def prepare_sample(
    hidden: Array,
    weight: Weights,
    *,
    bias: Optional[Array] = None,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> PreparedCall:
    """Make a sample() ready, for a PreparedCall to run step after step.

    Inputs and parameters that are arrays are read in place by every call: what is written into them
    is seen by the next. So a parameter that is an array has the dtype of the library, float32,
    uint64 or int64 for seeds and positions, uint32 or int32 for first_sample, int32 for the rest,
    and no gaps. Numbers and lists are taken as they are now. Else as sample().
    """
    shared = of_logits(scale, softcap, vocab_size)
    hidden = taken("hidden", hidden)
    way_in, request = from_head(hidden, weight, bias, shared, common)
    check_in_place(request, common)
    return PreparedCall(_abi.lib.gumbel_sample, "hidden", hidden, way_in, request)


@takes_common()
def prepare_sample_logits(
    logits: Array,
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> PreparedCall:
    """Make a sample_logits() ready, as prepare_sample() does a sample()."""
    shared = of_logits(scale, softcap, vocab_size)
    logits = taken("logits", logits)
    way_in, request = from_logits(logits, shared, common)
    check_in_place(request, common)
    return PreparedCall(_abi.lib.gumbel_sample_logits, "logits", logits, way_in, request)


def check_in_place(request: Request, common: Any) -> None:
    """Refuse an array of which the library would read a copy."""
    places = {address(held) for held in request.held if hasattr(held, "dtype")}
    for name in ROW_PARAMETERS:
        value = common.get(name)
        if not isinstance(value, np.ndarray) and not is_tensor(value):
            continue
        if value.ndim > 0 and address(value) not in places:
            raise TypeError(
                f"{name}: a prepared call reads it in place, and this array would be copied; "
                f"expected the library's dtype and no gaps, got {value.dtype}"
            )

# SPDX-License-Identifier: Apache-2.0
"""Prepared calls, which build structs, results and workspace once for all steps."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from .. import _abi
from .._inputs.arguments import read_matrix
from .._inputs.arrays import Array, address_of, import_array, layout_of
from .._inputs.common import takes_common
from .._inputs.fresh_seeds import count_forks, fresh_seed
from .._inputs.parameters import Common
from .._inputs.programs import ROW_PARAMETERS as PROGRAM_PARAMETERS
from .._inputs.request import Request
from .._inputs.tensors import is_tensor
from .advance import Advance, advance_one
from .library_call import (
    Callee,
    LogitsSource,
    make_output,
    make_workspace,
    read_head,
    read_logit_options,
    read_logits,
    resolve_callee,
)
from .outputs import SampleOutput
from .screens import Weights

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Parameters with one value for each row.
ROW_PARAMETERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    *PROGRAM_PARAMETERS,
    "program",
    "seed",
    "position",
    "first_sample",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "given",
    "slots",
    "live_rows",
    "list_status",
)


class PreparedCall:
    """A prepared draw, returned by prepare_sample() and prepare_sample_logits().

    >>> call = gumbel.prepare_sample(hidden, weight, position=positions)
    >>> out = call()                # draws from the present values of `hidden` and `positions`
    >>> positions += 1
    >>> out = call(other_hidden)    # another array with equal shape, dtype and strides

    **Every call returns the same arrays, `output`, and overwrites them: copy what you keep.** Write
    inputs in place, or pass other arrays. Calls share results and workspace: make one call at a
    time, and on CUDA all calls on one stream. A call can be captured in a CUDA graph; the graph is
    valid while this object exists.

    **A seed that was passed does not change: advance `position` by one at every step, or every call
    draws the same tokens.** Pass `position` as an array and advance it in place, in a CUDA graph on
    the device: by `position += 1` or gumbel.advance(). Calls of Sampler.prepare_sample() advance
    it themselves. **Without a seed every call has its own**: preparation draws a seed from the
    operating system, and every call adds one to it, on the device and in captured graphs, too;
    `output.seed` is a 0-d array with the seed of the latest call. A child of fork() draws another
    seed at its first call.
    """

    output: SampleOutput  #: results of the latest call
    after_draw: Optional[Callable[[Optional[int]], None]] = (
        None  # called with the stream after a draw
    )

    def __init__(
        self,
        call: Any,
        name: str,
        inputs: Any,
        source: LogitsSource,
        request: Request,
        callee: Optional[Callee] = None,
        seed: Optional[int] = None,
    ) -> None:
        """`seed` is the first seed of a request without a seed; None: a fresh seed."""
        head, logits = source
        self._reseed = _make_seed_counter(request, seed)
        self.output, self._struct = make_output(request)
        scratch = make_workspace(source, request, self._struct, own=True, callee=callee)
        self._call, self._error = call, _abi.Error()
        self._handle = resolve_callee(request.arrays, callee).handle
        self._name, self._inputs, self._arrays = name, inputs, request.arrays
        self._type = type(inputs)
        self._kind, self._itemsize = _describe_inputs(inputs), layout_of(name, inputs).itemsize
        self._tensor = head.hidden if head else logits.logits  # type: ignore[union-attr]
        request.held = [held for held in request.held if held is not inputs]
        self._held = (source, request, scratch)
        structs = (head or logits, request.sampling, self._struct)
        self._arguments = (
            *map(ctypes.byref, structs),
            scratch.address,
            scratch.size,
            ctypes.byref(self._error),
        )

    def __call__(self, inputs: Optional[Array] = None) -> SampleOutput:
        """Draw; returns `output`.

        inputs       hidden states or logits for this and later calls, with the shape, dtype and
                     strides of preparation; otherwise ValueError. None: those of the last call;
                     ValueError after release_inputs().
        """
        self._use_inputs(inputs)
        stream = self._arrays.current_stream()
        if self._reseed is not None:
            self._reseed(stream)
        status = self._call(self._handle, stream, *self._arguments)
        if status:
            _abi.check_status(status, self._error)
        if self.after_draw is not None:
            self.after_draw(stream)
        return self.output

    def release_inputs(self) -> None:
        """Drop the reference to the inputs of the last call, so that their memory can be freed.

        The next call must be passed its inputs. A captured graph still reads the memory of the
        inputs with which it was captured.
        """
        self._inputs = None

    def _use_inputs(self, inputs: Any) -> None:
        """Read `inputs`; None: those of the last call."""
        if inputs is None:
            if self._inputs is None:
                raise ValueError(f"{self._name}: pass it, as release_inputs() dropped the last one")
            return
        known = type(inputs) is self._type
        if not known:
            inputs = import_array(self._name, inputs)
            known = type(inputs) is np.ndarray or is_tensor(inputs)
        if not known or _describe_inputs(inputs) != self._kind:
            raise ValueError(
                f"{self._name}: expected the kind, shape, dtype and strides that the call was "
                "prepared for"
            )
        place: Any = address_of(inputs)
        if place % self._itemsize:
            read_matrix(self._name, inputs)  # raises the error
        self._tensor.data, self._inputs = place, inputs


class _NextSeed:
    """Advances the seed of a prepared call; draws a fresh seed in a child of fork()."""

    def __init__(self, advance: Advance, seed: Any) -> None:
        self._advance, self._seed, self._forks = advance, seed, count_forks()

    def __call__(self, stream: Optional[int]) -> None:
        if self._forks != count_forks():
            self._seed[0], self._forks = fresh_seed(), count_forks()
        self._advance(stream)


def _make_seed_counter(
    request: Request, first: Optional[int]
) -> Optional[Callable[[Optional[int]], None]]:
    """The function that advances the seed before each call; None if the request has a seed."""
    if request.seed is not None or request.sampling.given.data:
        return None
    arrays = request.arrays
    data = arrays.to_device(np.array([fresh_seed() if first is None else first], np.uint64))
    request.sampling.seed = _abi.Rows(address_of(data), _abi.SAME)
    request.seed = arrays.to_unsigned(data).reshape(())
    request.held.append(data)
    advance = advance_one(arrays, data)
    # A child of fork() cannot use a GPU of its parent, so only the CPU needs _NextSeed.
    return _NextSeed(advance, data) if first is None and arrays.name == "cpu" else advance


def _describe_inputs(inputs: Any) -> Any:
    """The properties that all inputs of a prepared call share, except the stride of one row."""
    shape, is_numpy = inputs.shape, type(inputs) is np.ndarray
    strides = inputs.strides if is_numpy else inputs.stride()
    if shape and shape[0] == 1:
        strides = strides[1:]
    if is_numpy:
        return inputs.dtype, shape, strides
    return inputs.dtype, shape, strides, inputs.device, inputs.is_neg()


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
    """Prepare a call of sample() that runs step after step; returns a PreparedCall.

    **Write inputs in place: `hidden[:] = ...`. Every call returns the same arrays and overwrites
    them: copy what you keep.**

    Every call reads inputs and array parameters in place, so it sees what was written to them
    before. Array parameters must therefore be contiguous and have the library's dtype: uint64 or
    int64 for seeds and positions, uint32 or int32 for first_sample, float32 for other floats and
    int32 for other integers. Numbers and lists keep their values of preparation. Otherwise as
    sample().
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    hidden = import_array("hidden", hidden)
    source, request = read_head(hidden, weight, bias, shared, common)
    check_in_place(request, common)
    return PreparedCall(_abi.lib.gumbel_sample, "hidden", hidden, source, request)


@takes_common()
def prepare_sample_logits(
    logits: Array,
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    vocab_size: Optional[int] = None,
    **common: Unpack[Common],
) -> PreparedCall:
    """Prepare a call of sample_logits() on logits [B, V]; otherwise as prepare_sample().

    **Write `logits` in place. Every call returns the same arrays and overwrites them: copy what you
    keep.**
    """
    shared = read_logit_options(scale, softcap, vocab_size)
    logits = import_array("logits", logits)
    source, request = read_logits(logits, shared, common)
    check_in_place(request, common)
    return PreparedCall(_abi.lib.gumbel_sample_logits, "logits", logits, source, request)


def check_in_place(request: Request, common: Any) -> None:
    """Raise TypeError for a parameter array that would be copied instead of read in place."""
    places = {address_of(held) for held in request.held if hasattr(held, "dtype")}
    for name in ROW_PARAMETERS:
        value = common.get(name)
        if not isinstance(value, np.ndarray) and not is_tensor(value):
            continue
        if value.ndim > 0 and address_of(value) not in places:
            raise TypeError(
                f"{name}: a prepared call reads it in place, and this array would be copied; "
                f"expected a contiguous array of the library's dtype, got {value.dtype}"
            )

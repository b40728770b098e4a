# SPDX-License-Identifier: Apache-2.0
"""Calls of the library on rows of tensors, whose structs are made once for each shape and thread.

The calls of the package read whatever Python has; these take tensors and numbers alone, and change
nothing in their structs but addresses.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, NamedTuple, Optional, Union

import torch

from .. import _abi
from .._inputs.arrays import TorchArrays, workspace

DTYPES = {
    torch.float32: _abi.FLOAT32,
    torch.float16: _abi.FLOAT16,
    torch.bfloat16: _abi.BFLOAT16,
}
CALLS_MOST = 256  # that a thread keeps
CONSTANTS_MOST = 4096  # that a process keeps on its GPUs


class Parameter(NamedTuple):
    """A row parameter: where it lies, a value for all rows or one each, and what keeps it there."""

    address: int
    stride: int
    held: Any


Parameters = dict[str, Parameter]
_KINDS: dict[torch.dtype, Any] = {
    torch.float32: ctypes.c_float,
    torch.int32: ctypes.c_int32,
    torch.int64: ctypes.c_uint64,
}


# ------------------------------------------------------------------------------ numbers for rows

_constants: dict[tuple[Any, ...], torch.Tensor] = {}


def constant(value: Union[int, float], dtype: torch.dtype, place: torch.device) -> torch.Tensor:
    """One element on a GPU that holds `value`, kept for later calls of any stream."""
    key = (value, dtype, place)
    if key in _constants:
        return _constants[key]
    made = torch.full((1,), value, dtype=dtype, device=place)
    # What a graph is to hold is its own; nothing is dropped, since a stream may still read it.
    if not torch.cuda.is_current_stream_capturing() and len(_constants) < CONSTANTS_MOST:
        torch.cuda.current_stream(place).synchronize()
        _constants[key] = made
    return made


def number(
    value: Union[int, float], dtype: torch.dtype, place: torch.device, kept: bool = True
) -> Parameter:
    """A parameter that is one value for all rows; `kept`: it will be met again.

    Integers of 64 bits are unsigned.
    """
    if place.type == "cpu":
        cell = _KINDS[dtype](value)
        return Parameter(ctypes.addressof(cell), _abi.SAME, cell)
    if dtype is torch.int64 and value >= 2**63:
        value -= 2**64
    if kept:
        made = constant(value, dtype, place)
    else:
        made = torch.full((1,), value, dtype=dtype, device=place)
    return Parameter(made.data_ptr(), _abi.SAME, made)


def one_a_row(value: torch.Tensor, rows: int) -> Parameter:
    """A parameter that is a tensor [rows] or [1], of the library's dtype and without gaps.

    One for all rows is, as a seed, mixed with the number of the row.
    """
    return Parameter(value.data_ptr(), 0 if value.shape[0] == rows else _abi.SAME, value)


# ------------------------------------------------------------------------------------- the calls


class Call:
    """The structs of calls that differ in nothing but addresses."""

    def __init__(
        self, function: str, logits: torch.Tensor, options: tuple[int, int], given: Parameters
    ) -> None:
        rows, vocab = logits.shape
        self.logits = _abi.Logits()
        self.tensor = self.logits.logits
        self.tensor.data, self.tensor.dtype = logits.data_ptr(), DTYPES[logits.dtype]
        self.tensor.rows, self.tensor.cols = rows, vocab
        self.tensor.stride = logits.stride(0) if rows > 1 else 0
        order, ties = options
        self.sampling, truncation = _abi.Sampling(), _abi.Truncation(order=order, ties=ties)
        self.fields: dict[str, _abi.Rows] = {}
        for name, parameter in given.items():
            owner = self.sampling if hasattr(self.sampling, name) else truncation
            field = self.fields[name] = getattr(owner, name)
            field.data, field.stride = parameter.address, parameter.stride
            if owner is truncation:
                self.sampling.truncation = ctypes.pointer(truncation)
        self.output = _abi.Output()
        self.error = _abi.Error()
        self.function = getattr(_abi.lib, f"gumbel_{function}")
        self.arrays = TorchArrays(logits.device, None, None)
        self.device = self.arrays.device
        size = ctypes.c_size_t()
        drawn = function == "sample_logits"
        # Any address: what is asked for counts.
        self.output.tokens = self.output.status = ctypes.addressof(size)
        status = _abi.lib.gumbel_workspace_size(
            self.device,
            None,
            self.logits,
            self.sampling,
            self.output if drawn else None,
            size,
            self.error,
        )
        _abi.check(status, self.error)
        self.size = size.value
        self.before = (ctypes.byref(self.logits), ctypes.byref(self.sampling))
        self.into = (ctypes.byref(self.output),) if drawn else None

    def run(
        self,
        logits: torch.Tensor,
        given: Parameters,
        out: torch.Tensor,
        statuses: Optional[torch.Tensor] = None,
    ) -> None:
        """Call the library on these rows, for it to write `out`, and `statuses` of a draw."""
        self.tensor.data = logits.data_ptr()
        for name, field in self.fields.items():
            field.data = given[name].address
        scratch = workspace(self.arrays, self.size)
        if self.into is None:
            into: tuple[Any, ...] = (out.data_ptr(), 0)
        else:
            self.output.tokens = out.data_ptr()
            self.output.status = None if statuses is None else statuses.data_ptr()
            into = self.into
        status = self.function(
            self.device,
            self.arrays.current_stream(),
            *self.before,
            *into,
            scratch.address,
            scratch.size,
            self.error,
        )
        if status:
            _abi.check(status, self.error)


class _Kept(threading.local):
    def __init__(self) -> None:
        self.calls: dict[tuple[Any, ...], Call] = {}


_kept = _Kept()


def _forget() -> None:
    """After a fork the child opens devices of its own."""
    _kept.calls.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def call_of(
    function: str, logits: torch.Tensor, options: tuple[int, int], given: Parameters
) -> Call:
    """The thread's call of this kind."""
    key = (
        function,
        logits.shape,
        logits.stride(0),
        logits.dtype,
        logits.device,
        options,
        *((name, parameter.stride) for name, parameter in given.items()),
    )
    calls = _kept.calls
    if key not in calls:
        if len(calls) >= CALLS_MOST:
            calls.clear()
        calls[key] = Call(function, logits, options, given)
    return calls[key]


# -------------------------------------------------------------------------- what is asked of them


def rows_of(name: str, rows: Any) -> torch.Tensor:
    """`rows` [B, V] as the library reads them: nothing is copied where that can be."""
    if not isinstance(rows, torch.Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(rows).__name__}")
    if rows.dim() != 2:
        raise ValueError(f"{name}: expected the shape (batch, vocab), got {tuple(rows.shape)}")
    if rows.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name}: is on {rows.device}; expected cpu or cuda")
    if rows.dtype not in DTYPES:
        if not rows.dtype.is_floating_point:
            raise TypeError(f"{name}: expected floating-point numbers, got {rows.dtype}")
        rows = rows.float()
    if rows.stride(1) != 1 or rows.is_neg() or 0 <= rows.stride(0) < rows.shape[1]:
        rows = rows.resolve_neg().contiguous()
    read: torch.Tensor = rows
    return read


PLAIN = (_abi.ORDER_MIN_P_TOP_K_TOP_P, _abi.TIES_ALL)
JOINT = (_abi.ORDER_JOINT, _abi.TIES_ALL)


def drawn(
    logits: torch.Tensor, given: Parameters, options: tuple[int, int] = PLAIN
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token and a gumbel_row_status of each row, int32 [B].

    The token is -1 and the status is not 0 for rows that hold a NaN or +inf, or nothing to draw.
    """
    rows = logits.shape[0]
    tokens = torch.empty(rows, dtype=torch.int32, device=logits.device)
    statuses = torch.empty_like(tokens)
    if rows:
        call_of("sample_logits", logits, options, given).run(logits, given, tokens, statuses)
    return tokens, statuses


def transformed(
    function: str,
    logits: torch.Tensor,
    given: Parameters,
    options: tuple[int, int] = PLAIN,
    out: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """The rows that the library's "softmax" or "process_logits" makes, float32 [B, V]."""
    if out is None:
        out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    if out.shape[0]:
        call_of(function, logits, options, given).run(logits, given, out)
    return out

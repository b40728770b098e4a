# SPDX-License-Identifier: Apache-2.0
"""Calls of the library on rows of tensors, with structs that are built once per shape and thread.

They accept tensors and numbers only, and change only addresses in their structs, which makes them
faster than the package's other calls.
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
CALLS_MAX = 256  # cached calls of a thread
CONSTANTS_MAX = 4096  # cached constants of a process on its GPUs


class Parameter(NamedTuple):
    """A row parameter: its address, its stride, and the object that owns its memory."""

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
    """A tensor of one element on a GPU with this value, cached for calls on any stream."""
    key = (value, dtype, place)
    if key in _constants:
        return _constants[key]
    tensor = torch.full((1,), value, dtype=dtype, device=place)
    # A captured graph owns its constants. Cached ones are never dropped: a stream may read them.
    if not torch.cuda.is_current_stream_capturing() and len(_constants) < CONSTANTS_MAX:
        torch.cuda.current_stream(place).synchronize()
        _constants[key] = tensor
    return tensor


def scalar_parameter(
    value: Union[int, float], dtype: torch.dtype, place: torch.device, kept: bool = True
) -> Parameter:
    """A parameter with one value for all rows; `kept`: cache it for later calls.

    64-bit integers are unsigned.
    """
    if place.type == "cpu":
        cell = _KINDS[dtype](value)
        return Parameter(ctypes.addressof(cell), _abi.SAME, cell)
    if dtype is torch.int64 and value >= 2**63:
        value -= 2**64
    if kept:
        tensor = constant(value, dtype, place)
    else:
        tensor = torch.full((1,), value, dtype=dtype, device=place)
    return Parameter(tensor.data_ptr(), _abi.SAME, tensor)


def tensor_parameter(value: torch.Tensor, rows: int) -> Parameter:
    """A parameter from a contiguous tensor [rows] or [1] of the library's dtype.

    From one seed for all rows the library derives each row's seed.
    """
    return Parameter(value.data_ptr(), 0 if value.shape[0] == rows else _abi.SAME, value)


# ------------------------------------------------------------------------------------- the calls


class Call:
    """The structs of calls that differ only in addresses."""

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
        # The workspace depends on which outputs are requested, not on their addresses.
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
        """Call the library on these rows; it writes `out`, and for a draw `statuses`."""
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
    """In a child of fork(), which opens devices of its own."""
    _kept.calls.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def call_of(
    function: str, logits: torch.Tensor, options: tuple[int, int], given: Parameters
) -> Call:
    """The thread's cached call of this kind."""
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
        if len(calls) >= CALLS_MAX:
            calls.clear()
        calls[key] = Call(function, logits, options, given)
    return calls[key]


# ------------------------------------------------------------------------------ draws and rows


def rows_of(name: str, rows: Any) -> torch.Tensor:
    """`rows` [B, V] as the library reads them, copied only if necessary."""
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


def draw_tokens(
    logits: torch.Tensor, given: Parameters, options: tuple[int, int] = PLAIN
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token and a gumbel_row_status for each row, int32 [B].

    Rows with a NaN or +inf, or without a token to draw, have token -1 and a status that is not 0.
    """
    rows = logits.shape[0]
    tokens = torch.empty(rows, dtype=torch.int32, device=logits.device)
    statuses = torch.empty_like(tokens)
    if rows:
        call_of("sample_logits", logits, options, given).run(logits, given, tokens, statuses)
    return tokens, statuses


def transform_rows(
    function: str,
    logits: torch.Tensor,
    given: Parameters,
    options: tuple[int, int] = PLAIN,
    out: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """The result of the library's "softmax" or "process_logits", float32 [B, V]."""
    if out is None:
        out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    if out.shape[0]:
        call_of(function, logits, options, given).run(logits, given, out)
    return out

# SPDX-License-Identifier: Apache-2.0
"""The arrays that a call reads and makes: NumPy's, or torch's tensors on the CPU or on CUDA."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Optional, Tuple, Union

import numpy as np

from . import _abi
from ._device import open_device
from ._tensors import check_memory, check_numbers, is_tensor


@dataclass(frozen=True)
class Layout:
    """Where an array's elements lie; strides in bytes."""

    address: int
    dtype: str
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    itemsize: int


def layout(name: str, array: Any) -> Layout:
    """The layout of a NumPy array or a tensor; TypeError for anything else."""
    if is_tensor(array):
        check_memory(name, array)
        size = array.element_size()
        return Layout(
            array.data_ptr(),
            str(array.dtype).partition(".")[2],  # "torch.float32"
            tuple(array.shape),
            tuple(stride * size for stride in array.stride()),
            size,
        )
    if not isinstance(array, np.ndarray) or isinstance(array, np.ma.MaskedArray):
        found = type(array).__name__
        raise TypeError(f"{name}: expected a NumPy array or a torch tensor, got {found}")
    dtype = array.dtype.name if array.dtype.isnative else array.dtype.str
    return Layout(array.ctypes.data, dtype, array.shape, array.strides, array.itemsize)


class NumpyArrays:
    """Arrays of a call on NumPy arrays."""

    name = "cpu"  #: of the device
    stream: Optional[int] = None  #: to queue the call on

    def __init__(self, isa: Optional[str], threads: Optional[int]) -> None:
        self.device = open_device("cpu", isa, threads)

    def put(self, array: np.ndarray) -> Any:
        """`array` in memory that the library reads."""
        return array

    def adopt(self, name: str, value: Any, dtype: type) -> Any:
        """`value` in that memory and in `dtype` if it is on a GPU, as this call; else None."""
        return None

    def empty(self, shape: Tuple[int, ...], dtype: type) -> Any:
        return np.empty(shape, dtype=dtype)

    def zeros(self, shape: Tuple[int, ...], dtype: type) -> Any:
        return np.zeros(shape, dtype=dtype)

    def records(self, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """Structs, as bytes on a last axis of its own where there is no such dtype."""
        return np.empty(shape, dtype=dtype)


class TorchArrays(NumpyArrays):
    """Arrays of a call on tensors of one device; on CUDA it is queued on the current stream."""

    def __init__(self, place: Any, isa: Optional[str], threads: Optional[int]) -> None:
        self.torch, self.place = sys.modules["torch"], place
        if place.type == "cpu":
            super().__init__(isa, threads)
        else:
            self.name = f"cuda:{place.index}"
            self.device = open_device(self.name, isa, threads)
            self.stream = self.torch.cuda.current_stream(place).cuda_stream

    def _dtype(self, dtype: type) -> Any:
        # torch hardly knows these three; it is given their bits.
        bits = {"uint64": "int64", "uint32": "int32", "uint16": "int16"}
        name = np.dtype(dtype).name
        return getattr(self.torch, bits.get(name, name))

    def put(self, array: np.ndarray) -> Any:
        if self.place.type == "cpu":
            return array
        bits = {"uint64": np.int64, "uint32": np.int32}.get(array.dtype.name, array.dtype)
        # From pageable memory such a copy does not wait for the stream, and has read its source.
        return self.torch.tensor(array.view(bits)).to(self.place, non_blocking=True)

    def adopt(self, name: str, value: Any, dtype: type) -> Any:
        if self.place.type == "cpu" or not is_tensor(value) or not value.is_cuda:
            return None
        check_numbers(name, value)
        value, wanted = value.detach(), self._dtype(dtype)
        if str(value.dtype) == f"torch.{np.dtype(dtype).name}":
            value = value.view(wanted)
        return value.to(self.place, wanted).contiguous()

    def empty(self, shape: Tuple[int, ...], dtype: type) -> Any:
        return self.torch.empty(shape, dtype=self._dtype(dtype), device=self.place)

    def zeros(self, shape: Tuple[int, ...], dtype: type) -> Any:
        return self.torch.zeros(shape, dtype=self._dtype(dtype), device=self.place)

    def records(self, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        return self.empty((*shape, dtype.itemsize), np.uint8)


def arrays_of(
    inputs: dict[str, Any], isa: Optional[str], threads: Optional[int]
) -> Union[NumpyArrays, TorchArrays]:
    """The kind of a call's inputs, by name; all but the first may be None."""
    first = next(iter(inputs))
    given = {n: array for n, array in inputs.items() if n == first or array is not None}
    if not is_tensor(given[first]):
        for name, array in given.items():
            layout(name, array)
            if is_tensor(array):
                raise TypeError(f"{name}: is a torch.Tensor, {first} is not")
        return NumpyArrays(isa, threads)
    place = given[first].device
    for name, array in given.items():
        if not is_tensor(array):
            raise TypeError(f"{name}: expected a torch.Tensor, as {first} is")
        if array.device != place:
            raise ValueError(f"{name}: is on {array.device}, {first} is on {place}")
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"{first}: is on {place}; expected cpu or cuda")
    return TorchArrays(place, isa, threads)


def address(array: Any) -> Optional[int]:
    if array is None:
        return None
    return array.data_ptr() if is_tensor(array) else array.ctypes.data


def workspace(arrays: NumpyArrays, size: int) -> Any:
    """`size` bytes, starting on the alignment that the library asks for."""
    block = arrays.empty((size + _abi.WORKSPACE_ALIGNMENT,), np.uint8)
    start = -layout("workspace", block).address % _abi.WORKSPACE_ALIGNMENT
    return block[start : start + size]

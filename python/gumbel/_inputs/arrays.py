# SPDX-License-Identifier: Apache-2.0
"""Arrays of a call: NumPy arrays, or torch tensors on the CPU or on CUDA."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, Optional, Protocol, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .._device import open_device
from .fresh_seeds import fresh_seed
from .tensors import check_memory, check_numbers, is_tensor


class SupportsDLPack(Protocol):
    """A torch tensor, or an array of another library that supports DLPack."""

    @property
    def shape(self) -> Any: ...
    def __len__(self) -> int: ...
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> Any: ...


Array = Union[NDArray[Any], SupportsDLPack]


class Layout(NamedTuple):
    """Address, dtype, shape and strides (in bytes) of an array."""

    address: int
    dtype: str
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    itemsize: int


# A cache: NumPy takes 5 us to build the name of a dtype.
_NAMES: dict[Any, str] = {}


def _get_dtype_name(dtype: np.dtype[Any]) -> str:
    if dtype not in _NAMES:
        _NAMES[dtype] = dtype.name if dtype.isnative else dtype.str
    return _NAMES[dtype]


def layout_of(name: str, array: Any) -> Layout:
    """The layout of a NumPy array or a tensor; TypeError for anything else."""
    if type(array) is np.ndarray:
        return Layout(
            array.ctypes.data,
            _get_dtype_name(array.dtype),
            array.shape,
            array.strides,
            array.itemsize,
        )
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
    return Layout(
        array.ctypes.data, _get_dtype_name(array.dtype), array.shape, array.strides, array.itemsize
    )


DLPACK_CPU, DLPACK_CUDA_HOST = 1, 3  # device types of the DLPack specification


def import_array(name: str, value: Any) -> Any:
    """Import an array of another library by DLPack, without a copy; returns other values unchanged.

    The result is a NumPy array on the CPU, and a torch tensor on a GPU, which requires torch.
    Raises TypeError if the array cannot be imported.
    """
    if type(value) is np.ndarray or is_tensor(value) or not hasattr(value, "__dlpack__"):
        return value
    if isinstance(value, (np.ndarray, np.generic)):  # layout_of() raises their errors
        return value
    torch = sys.modules.get("torch")
    try:
        host = value.__dlpack_device__()[0] in (DLPACK_CPU, DLPACK_CUDA_HOST)
        dtype = str(getattr(value, "dtype", ""))
        if host and (torch is None or "bfloat16" not in dtype):
            return np.from_dlpack(value)
        if torch is not None:
            return torch.from_dlpack(value)
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as problem:
        raise TypeError(f"{name}: cannot be imported by DLPack: {problem}") from None
    kind = "bfloat16" if host else "on a GPU"
    raise TypeError(f"{name}: is {kind}, which requires torch; import torch first")


class NumpyArrays:
    """Memory, device and stream of a call on NumPy arrays."""

    name = "cpu"  #: name of the device
    stream: Optional[int] = None  #: the stream on which the call is queued

    def __init__(self, isa: Optional[str], threads: Optional[int]) -> None:
        self.device = open_device("cpu", isa, threads)

    def current_stream(self) -> Optional[int]:
        """The address of the current stream; None on the CPU."""
        return None

    def to_device(self, array: np.ndarray) -> Any:
        """`array` on the call's device."""
        return array

    def adopt_tensor(self, name: str, value: Any, dtype: type) -> Any:
        """`value` as a tensor of `dtype` if it is a tensor on the call's device; else None."""
        return None

    def copy_of(self, array: np.ndarray) -> Any:
        """A copy of `array` as an array or a tensor, which the caller of the package may keep."""
        return array.copy()

    def empty(self, shape: Tuple[int, ...], dtype: type) -> Any:
        return np.empty(shape, dtype=dtype)

    def zeros(self, shape: Tuple[int, ...], dtype: type) -> Any:
        return np.zeros(shape, dtype=dtype)

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured."""
        return False

    def fresh_seed(self) -> Tuple[Any, Any]:
        """A seed of 64 random bits from the operating system, and an array [1] with it."""
        seed = fresh_seed()
        return seed, self.to_device(np.array([seed], np.uint64))

    def to_unsigned(self, seeds: Any) -> Any:
        """`seeds` viewed as uint64."""
        return seeds

    def empty_records(self, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """An uninitialised array of structs; a tensor has their bytes as its last axis."""
        return np.empty(shape, dtype=dtype)


# torch has few operations on unsigned integers, so tensors are signed and hold the same bits.
_BITS: dict[Any, type] = {
    np.float32: np.float32,
    np.uint64: np.int64,
    np.int64: np.int64,
    np.uint32: np.int32,
    np.int32: np.int32,
    np.uint16: np.int16,
    np.uint8: np.uint8,
}


class TorchArrays(NumpyArrays):
    """Memory, device and stream of a call on tensors; on CUDA, torch's current stream."""

    def __init__(self, place: Any, isa: Optional[str], threads: Optional[int]) -> None:
        self.torch, self.place = sys.modules["torch"], place
        self.on_host = place.type == "cpu"
        if self.on_host:
            super().__init__(isa, threads)
        else:
            self.name = f"cuda:{place.index}"
            self.device = open_device(self.name, isa, threads)
            # Returns the address that torch.cuda.current_stream() has in an object, which takes
            # longer to make. torch's own compiler uses this function, too.
            self._raw_stream = getattr(self.torch._C, "_cuda_getCurrentRawStream", None)
            self.stream = self.current_stream()

    def current_stream(self) -> Optional[int]:
        if self.on_host:
            return None
        if self._raw_stream is not None:
            return int(self._raw_stream(self.place.index))
        return int(self.torch.cuda.current_stream(self.place).cuda_stream)

    def _torch_dtype(self, dtype: type) -> Any:
        return getattr(self.torch, _BITS[dtype].__name__)

    def to_device(self, array: np.ndarray) -> Any:
        if self.on_host:
            return array
        bits = {"uint64": np.int64, "uint32": np.int32}.get(array.dtype.name, array.dtype)
        # This copy from pageable memory reads its source before it returns, and does not wait.
        return self.torch.tensor(array.view(bits)).to(self.place, non_blocking=True)

    def copy_of(self, array: np.ndarray) -> Any:
        return self.torch.from_numpy(array.copy()) if self.on_host else self.to_device(array)

    def adopt_tensor(self, name: str, value: Any, dtype: type) -> Any:
        if not is_tensor(value):
            return None
        if self.on_host:
            return value if self._is_readable(name, value, dtype) else None
        if not value.is_cuda:
            return None
        check_numbers(name, value)
        value, wanted = value.detach(), self._torch_dtype(dtype)
        if str(value.dtype) == f"torch.{np.dtype(dtype).name}":
            value = value.view(wanted)
        return value.to(self.place, wanted).contiguous()

    @staticmethod
    def _is_readable(name: str, value: Any, dtype: type) -> bool:
        """Whether the library can read a tensor on the CPU without a copy."""
        kind = str(value.dtype)
        same = kind == f"torch.{dtype.__name__}"
        if not (same or kind == f"torch.{_BITS[dtype].__name__}") or value.device.type != "cpu":
            return False
        check_numbers(name, value)
        if not value.is_contiguous():
            return False
        return same or value.numel() == 0 or int(value.min()) >= 0

    def empty(self, shape: Tuple[int, ...], dtype: type) -> Any:
        if self.on_host:  # half the time of torch.empty()
            return self.torch.from_numpy(np.empty(shape, _BITS[dtype]))
        return self.torch.empty(shape, dtype=self._torch_dtype(dtype), device=self.place)

    def zeros(self, shape: Tuple[int, ...], dtype: type) -> Any:
        return self.torch.zeros(shape, dtype=self._torch_dtype(dtype), device=self.place)

    def is_capturing(self) -> bool:
        return not self.on_host and bool(self.torch.cuda.is_current_stream_capturing())

    def fresh_seed(self) -> Tuple[Any, Any]:
        """As NumpyArrays.fresh_seed(); during capture, from torch's generator of the device.

        A captured copy from the host would repeat its seed at every replay; the generator's kernel
        draws a new one.
        """
        if not self.is_capturing():
            return super().fresh_seed()
        int64 = self.torch.int64
        seed = self.torch.randint(-(2**63), 2**63 - 1, (1,), dtype=int64, device=self.place)
        return self.to_unsigned(seed[0]), seed

    def to_unsigned(self, seeds: Any) -> Any:
        """`seeds` viewed as uint64, or as int64 if this torch has no uint64."""
        if self.on_host:
            return seeds  # to_device() returns NumPy's uint64
        return seeds.view(getattr(self.torch, "uint64", self.torch.int64))

    def empty_records(self, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        return self.empty((*shape, dtype.itemsize), np.uint8)


def arrays_of(
    inputs: dict[str, Any], isa: Optional[str], threads: Optional[int]
) -> Union[NumpyArrays, TorchArrays]:
    """The arrays of a call on these inputs, {name: array}; all except the first may be None.

    Raises TypeError or ValueError if the inputs are of different kinds or on different devices.
    """
    first = next(iter(inputs))
    given = {n: array for n, array in inputs.items() if n == first or array is not None}
    if not is_tensor(given[first]):
        for name, array in given.items():
            if type(array) is not np.ndarray:
                layout_of(name, array)
            if is_tensor(array):
                raise TypeError(f"{name}: is a torch.Tensor, but {first} is not")
        return NumpyArrays(isa, threads)
    place = given[first].device
    for name, array in given.items():
        if not is_tensor(array):
            raise TypeError(f"{name}: expected a torch.Tensor, because {first} is one")
        if array.device != place:
            raise ValueError(f"{name}: is on {array.device}, but {first} is on {place}")
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"{first}: is on {place}; expected cpu or cuda")
    return TorchArrays(place, isa, threads)


def device_of(tensor: Any) -> str:
    """The name of a tensor's device in the library: "cpu" or "cuda:N"."""
    place = tensor.device
    return "cpu" if place.type == "cpu" else f"{place.type}:{place.index}"


def address_of(array: Any) -> Optional[int]:
    if type(array) is np.ndarray:
        return array.ctypes.data
    if array is None:
        return None
    return array.data_ptr() if is_tensor(array) else array.ctypes.data

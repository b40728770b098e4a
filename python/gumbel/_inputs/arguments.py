# SPDX-License-Identifier: Apache-2.0
"""Converts arrays and lists to C structs, without copying matrices. Errors name the argument.

The C structs hold addresses only: the caller must keep the arrays alive while the call runs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Tuple

import numpy as np

from .. import _abi
from .arrays import Layout, NumpyArrays, address_of, device_of, import_array, layout_of
from .numbers import (
    TEXTS,
    get_length,
    is_list,
    read_integer,
    read_number,
    read_scalar,
    read_scalars,
    reject_masked,
)
from .tensors import is_tensor, to_numpy

INT32_MAX = 2**31 - 1
Shape = Tuple[Optional[int], ...]


# uint16 holds the bits of bfloat16, which NumPy lacks.
_DTYPES = {
    "float32": _abi.FLOAT32,
    "float16": _abi.FLOAT16,
    "bfloat16": _abi.BFLOAT16,
    "uint16": _abi.BFLOAT16,
}


def _read_dtype(name: str, found: Layout, array: Any) -> int:
    if found.dtype not in _DTYPES:
        advice = ""
        if is_tensor(array):
            advice = f"; pass {name}.float()"
        elif array.dtype.kind in "fiu":
            advice = f"; pass {name}.astype(np.float32)"
        raise TypeError(
            f"{name}: dtype {found.dtype} is not float32, float16, bfloat16 or uint16 "
            f"(bfloat16 bits){advice}"
        )
    return _DTYPES[found.dtype]


def _read_layout(name: str, array: Any, axes: int) -> Layout:
    """The layout of an array whose last axis is contiguous."""
    found = layout_of(name, array)
    if len(found.shape) != axes:
        expected = "one axis" if axes == 1 else "two axes"
        one_row = axes == 2 and len(found.shape) == 1 and name in ("hidden", "logits")
        advice = f"; for one row pass {name}[None]" if one_row else ""
        raise ValueError(f"{name}: expected {expected}, got the shape {found.shape}{advice}")
    if found.address % found.itemsize:
        raise ValueError(
            f"{name}: the data is not aligned to its element size; copy the array first"
        )
    if 0 not in found.shape and found.shape[-1] > 1 and found.strides[-1] != found.itemsize:
        copy = f"{name}.contiguous()" if is_tensor(array) else f"np.ascontiguousarray({name})"
        raise ValueError(f"{name}: the last axis is not contiguous; pass {copy}")
    return found


def _row_stride(name: str, found: Layout) -> int:
    """The row stride of a matrix in elements, at least the number of columns."""
    rows, cols = found.shape
    stride, rest = divmod(found.strides[0], found.itemsize)
    if rows <= 1 or cols == 0:  # the stride is not used, so any value is valid
        return cols
    if rest or stride < cols:
        raise ValueError(
            f"{name}: the row stride of {found.strides[0]} bytes is negative, smaller than a row, "
            "or not a multiple of the element size; copy the array first"
        )
    return stride


def read_contiguous(name: str, array: Any) -> Layout:
    """The layout of a contiguous [rows, cols] array."""
    found = _read_layout(name, array, 2)
    if _row_stride(name, found) != found.shape[1]:
        raise ValueError(f"{name}: expected a contiguous array")
    return found


def read_matrix(name: str, array: Any) -> _abi.Tensor:
    """A [rows, cols] array with a contiguous last axis and any row stride >= cols."""
    found = _read_layout(name, array, 2)
    dtype = _read_dtype(name, found, array)
    if found.shape[1] == 0:  # without memory, the number of rows would not be bounded
        raise ValueError(f"{name}: the shape {found.shape} has no columns")
    return _abi.Tensor(found.address, dtype, *found.shape, _row_stride(name, found))


def do_overlap(one: _abi.Tensor, other: _abi.Tensor) -> bool:
    """Whether two matrices of read_matrix() may share memory.

    Matrices side by side, with the same row stride in bytes, do not.
    """
    first, second = sorted((_read_extent(one), _read_extent(other)))
    distance = second.address - first.address
    if distance >= first.size:
        return False
    if first.stride != second.stride or first.size <= first.width:
        return True
    column = distance % first.stride
    return column < first.width or column + second.width > first.stride


class _Extent(NamedTuple):
    """The memory of a matrix, in bytes."""

    address: int
    width: int  # of a row
    stride: int
    size: int  # from the first to the last element


def _read_extent(matrix: _abi.Tensor) -> _Extent:
    size = 4 if matrix.dtype == _abi.FLOAT32 else 2
    width, stride = size * matrix.cols, size * matrix.stride
    extent = (matrix.rows - 1) * stride + width if matrix.rows else 0
    return _Extent(matrix.data or 0, width, stride, extent)


def read_vector(name: str, array: Any) -> _abi.Tensor:
    """A contiguous [cols] array as a tensor of one row."""
    found = _read_layout(name, array, 1)
    return _abi.Tensor(found.address, _read_dtype(name, found, array), 1, found.shape[0], 0)


def read_bitmask(name: str, array: Any, batch: int, vocab: int) -> Tuple[int, int]:
    """The address and the row stride of a mask [words] or [B, words] of 32-bit words."""
    words = (vocab + 31) // 32
    found = _read_layout(name, array, 1 if len(layout_of(name, array).shape) == 1 else 2)
    if found.dtype not in ("int32", "uint32"):
        raise TypeError(f"{name}: dtype {found.dtype} is not int32")
    if found.shape not in ((words,), (batch, words)):
        raise ValueError(
            f"{name}: expected the shape ({words},) or ({batch}, {words}), got {found.shape}"
        )
    return found.address, _row_stride(name, found) if len(found.shape) == 2 else _abi.SAME


def read_row_floats(name: str, value: Any, batch: int, arrays: NumpyArrays) -> Tuple[Any, int]:
    """(array, stride) of one number or [B] numbers, as float32 on the call's device."""
    there = arrays.adopt_tensor(name, value, np.float32)
    if there is not None:
        return _add_stride(name, there, batch)
    rows, stride = _add_stride(
        name, _check_floats(name, _read_row_values(name, value, batch, "a number")), batch
    )
    return arrays.to_device(_to_float32(rows)), stride


def _check_floats(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
        real = array.dtype.kind in "fiu" or array.dtype.name == "bfloat16"
    except (TypeError, ValueError, OverflowError):  # a list with arrays or very large integers
        real = False
    if not real:
        raise TypeError(f"{name}: expected a number, or an array of one number for each row")
    return array


def _to_float32(numbers: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # large numbers become inf, for which the library has an error
        return np.ascontiguousarray(numbers, dtype=np.float32)


def read_one_number(name: str, value: Any, dtype: type) -> Tuple[np.ndarray, int]:
    """One int or float for all rows, in host memory, and its address; cached for later calls."""
    return _make_one_number(name, value, dtype, value == 0 and str(value))


@functools.lru_cache(maxsize=1024, typed=True)
def _make_one_number(name: str, value: Any, dtype: type, zero: Any) -> Tuple[np.ndarray, int]:
    """As read_one_number(). `zero` makes -0.0, which equals 0.0, a key of its own."""
    if dtype is np.float32:
        found = _to_float32(_check_floats(name, value).reshape(1))
    else:
        found = np.array([read_integer(name, value, 0, int(np.iinfo(dtype).max))], dtype)
    found.flags.writeable = False
    return found, found.ctypes.data


def read_row_integers(
    name: str, value: Any, batch: int, dtype: type, arrays: NumpyArrays, low: int = 0
) -> Tuple[Any, int]:
    """(array, stride) of one integer >= low or [B] of them, as `dtype` on the call's device."""
    there = arrays.adopt_tensor(name, value, dtype)
    if there is not None:
        if value.is_floating_point():
            raise TypeError(f"{name}: expected integers, got {value.dtype}")
        return _add_stride(name, there, batch)
    high = int(np.iinfo(dtype).max)
    value = _read_row_values(name, value, batch, "an integer")
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
        _add_stride(name, value, batch)
        bad = (value < low) | (value > high)
        if bad.any():
            row = int(np.argmax(bad))
            read_integer(f"{name}[{row}]", value[row], low, high)
        same = value.dtype.isnative and value.itemsize == np.dtype(dtype).itemsize
        numbers: Any = value.view(dtype) if same else value.astype(dtype)
    elif isinstance(value, list):
        numbers = np.array(
            [read_integer(f"{name}[{row}]", v, low, high) for row, v in enumerate(value)],
            dtype=dtype,
        )
    else:
        numbers = np.array(read_integer(name, value, low, high), dtype=dtype)
    rows, stride = _add_stride(name, numbers, batch)
    return arrays.to_device(np.ascontiguousarray(rows)), stride


def _read_row_values(name: str, value: Any, batch: int, wanted: str) -> Any:
    """A scalar, a list of B scalars, or an array."""
    value = to_numpy(name, value)
    if is_list(value):
        _check_rows(name, (get_length(value),), batch)
        return read_scalars(name, value, wanted)
    return read_scalar(name, value, wanted)


def _add_stride(name: str, array: Any, batch: int) -> Tuple[Any, int]:
    shape = tuple(array.shape)
    if shape == ():
        return array.reshape(1), _abi.SAME
    _check_rows(name, shape, batch)
    return array, 1


def _check_rows(name: str, shape: Tuple[Optional[int], ...], batch: int) -> None:
    if shape != (batch,):
        raise ValueError(f"{name}: expected one value or the shape ({batch},), got {shape}")


def read_row_tokens(name: str, value: Any, shapes: Sequence[Shape], arrays: NumpyArrays) -> Any:
    """Token ids as int32 in one of these shapes; None in a shape matches any number of samples.

    An id of -1 stands for no token.
    """
    there = arrays.adopt_tensor(name, value, np.int32)
    if there is not None and value.is_floating_point():
        raise TypeError(f"{name}: expected integers, got {value.dtype}")
    if there is None:
        there = _token_array(name, to_numpy(name, value))
        if there.size and there.dtype.kind not in "iu":
            raise TypeError(f"{name}: expected token ids, all integers")
    if not any(_matches_shape(tuple(there.shape), shape) for shape in shapes):
        wanted = " or ".join(str(shape).replace("None", "num_samples") for shape in shapes)
        raise ValueError(f"{name}: expected the shape {wanted}, got {tuple(there.shape)}")
    if isinstance(there, np.ndarray):
        if there.size and not -1 <= there.min() <= there.max() <= INT32_MAX:
            raise ValueError(f"{name}: token ids must be in [0, {INT32_MAX}], or -1 for no token")
        there = arrays.to_device(np.require(there, np.int32, ["C", "ALIGNED"]))
    return there


def read_token_table(name: str, value: Any, vocab: int, arrays: NumpyArrays) -> Any:
    """The id of the token of each of `vocab` rows of a head: int32 [vocab], on the call's device.

    Ids of a CUDA tensor are not checked.
    """
    if arrays.adopt_tensor(name, value, np.int32) is None:
        ids = read_ids(name, value)
        if ids.size and ids.max() == INT32_MAX:
            raise ValueError(f"{name}: {INT32_MAX} is not a token id in [0, {INT32_MAX - 1}]")
        value = to_numpy(name, value) if hasattr(value, "ndim") else ids
    return read_row_tokens(name, value, ((vocab,),), arrays)


def read_row_float32(name: str, value: Any, shapes: Sequence[Shape], arrays: NumpyArrays) -> Any:
    """float32 results of another call, in one of these shapes, on the call's device."""
    value = import_array(name, value)
    reject_masked(name, value)
    found = layout_of(name, value)
    if found.dtype != "float32":
        raise TypeError(f"{name}: expected float32, got {found.dtype}")
    if found.shape not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f"{name}: expected the shape {wanted}, got {found.shape}")
    there = arrays.adopt_tensor(name, value, np.float32)
    if there is None:
        there = arrays.to_device(np.require(to_numpy(name, value), np.float32, ["C", "ALIGNED"]))
    return there


def _matches_shape(found: Tuple[int, ...], wanted: Shape) -> bool:
    samples = range(1, _abi.SAMPLES_MAX + 1)
    return len(found) == len(wanted) and all(
        size in samples if expected is None else size == expected
        for size, expected in zip(found, wanted)
    )


def _token_array(name: str, value: Any) -> np.ndarray:
    """Token ids of an array, a list, or a list of lists, as an array."""
    reject_masked(name, value)
    if isinstance(value, np.ndarray):
        return value
    if not is_list(value):  # a set has no order
        raise TypeError(f"{name}: expected token ids, got {type(value).__name__}")
    rows = _check_iterable(name, value, "token ids")
    if any(is_list(row) or getattr(row, "ndim", 0) for row in rows):
        rows = [_token_array(f"{name}[{b}]", to_numpy(name, row)) for b, row in enumerate(rows)]
    else:
        rows = read_scalars(name, rows, "a token id")
    try:
        return np.asarray(rows)
    except (TypeError, ValueError, OverflowError):  # rows of several lengths, very large integers
        return np.array(None)


class TokenTensors(NamedTuple):
    """Token lists in the library's format: tensors on the call's device, which are not copied."""

    offsets: Any  # int64 [B + 1]
    ids: Any  # int32
    values: Any = None  # float32, one for each id

    def to_struct(self, name: str, batch: int, arrays: NumpyArrays) -> _abi.TokenLists:
        for part, wanted in (("offsets", "int64"), ("ids", "int32"), ("values", "float32")):
            tensor = getattr(self, part)
            if tensor is None:
                continue
            found = _read_layout(f"{name}_{part}", tensor, 1)
            if found.dtype != wanted:
                raise TypeError(f"{name}_{part}: expected {wanted}, got {found.dtype}")
            if arrays.name != device_of(tensor):
                raise ValueError(f"{name}_{part}: must be on {arrays.name}, the call's device")
        if len(self.offsets) != batch + 1:
            raise ValueError(
                f"{name}_offsets: expected {batch + 1} entries, got {len(self.offsets)}"
            )
        if self.values is not None and len(self.values) != len(self.ids):
            raise ValueError(
                f"{name}_values: expected {len(self.ids)} entries, got {len(self.values)}"
            )
        return _abi.TokenLists(*(address_of(part) for part in self))


def read_token_lists(
    name: str, value: Any, batch: int, arrays: NumpyArrays, end: Optional[int] = None
) -> Tuple[_abi.TokenLists, list[Any]]:
    """(struct, arrays) of one list of token ids for all rows, or one list for each row.

    `end` is the size of the vocabulary: ids >= end raise ValueError. None: unknown. The caller must
    keep the arrays alive.
    """
    if isinstance(value, TokenTensors):
        return value.to_struct(name, batch, arrays), list(value)
    value = to_numpy(name, value)
    reject_masked(name, value)
    if isinstance(value, np.ndarray) and (value.dtype.kind != "O" or value.ndim == 0):
        return _make_lists(_read_id_array(name, np.asarray(value), batch, end), None, arrays)
    rows = list(_check_iterable(name, value, "token ids, or one list of them for each row"))
    if any(isinstance(row, Iterable) and getattr(row, "ndim", 1) for row in rows):
        rows = _check_list_count(name, rows, batch)
        rows = [read_ids(f"{name}[{b}]", row, end) for b, row in enumerate(rows)]
    else:
        rows = [read_ids(name, rows, end)] * batch
    return _make_lists(rows, None, arrays)


def _check_iterable(name: str, value: Any, wanted: str) -> Iterable[Any]:
    """`value` if it is an iterable of token ids, such as a list or a set."""
    if isinstance(value, (*TEXTS, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(f"{name}: expected {wanted}, got {type(value).__name__}")
    entries = get_length(value)
    if entries is not None and entries > INT32_MAX:  # a range can be longer than memory
        raise ValueError(f"{name}: has {entries} entries; at most {INT32_MAX} are supported")
    return value


def _read_id_array(name: str, ids: np.ndarray, batch: int, end: Optional[int]) -> list[np.ndarray]:
    """Token ids of one array [n] or [B, n], as one array for each row."""
    if ids.ndim != 2:
        return [read_ids(name, ids, end)] * batch
    return [
        read_ids(f"{name}[{b}]", row, end)
        for b, row in enumerate(_check_list_count(name, ids, batch))
    ]


def read_token_values(
    name: str, value: Any, batch: int, arrays: NumpyArrays, end: Optional[int] = None
) -> Tuple[_abi.TokenLists, list[Any]]:
    """(struct, arrays) of one {id: value} for all rows, or one for each row.

    `end` as in read_token_lists().
    """
    if isinstance(value, TokenTensors):
        if value.values is None:
            raise ValueError(f"{name}_values: expected a value for each of {name}_ids")
        return value.to_struct(name, batch, arrays), list(value)
    if isinstance(value, Mapping):
        rows: Sequence[Any] = [value] * batch
    elif isinstance(value, (list, tuple)) and all(isinstance(row, Mapping) for row in value):
        rows = _check_list_count(name, value, batch)
    else:
        raise TypeError(f"{name}: expected {{id: value}}, or a list with one for each row")
    ids = [read_ids(name, list(row), end) for row in rows]
    values = [read_number(f"{name}[{i}]", v) for row in rows for i, v in row.items()]
    return _make_lists(ids, values, arrays)


def _check_list_count(name: str, rows: Sequence[Any], batch: int) -> Sequence[Any]:
    if len(rows) != batch:
        raise ValueError(f"{name}: expected {batch} lists, one for each row, got {len(rows)}")
    return rows


def read_ids(name: str, ids: Any, end: Optional[int] = None) -> np.ndarray:
    """The token ids of a list or an array, as int32."""
    ids = to_numpy(name, ids)
    reject_masked(name, ids)
    ids = _check_iterable(name, ids, "token ids")
    if not isinstance(ids, np.ndarray):
        ids = read_scalars(name, ids, "a token id")
    try:
        found = np.asarray(ids)
    except (TypeError, ValueError, OverflowError):  # a list with arrays or very large integers
        found = np.array(None)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise TypeError(f"{name}: expected token ids, all integers")
    bad = (found < 0) | (found > INT32_MAX)
    if bad.any():
        raise ValueError(f"{name}: {found[bad][0]} is not a token id in [0, {INT32_MAX}]")
    if end is not None and found.size and found.max() >= end:
        raise ValueError(
            f"{name}: {found[found >= end][0]} is not in the vocabulary of {end} tokens, "
            f"0 to {end - 1}"
        )
    return found.astype(np.int32)


def _make_lists(
    rows: Sequence[np.ndarray], values: Optional[list[float]], arrays: NumpyArrays
) -> Tuple[_abi.TokenLists, list[Any]]:
    lengths = [len(row) for row in rows]
    offsets = np.cumsum([0] + lengths, dtype=np.int64)
    held = [
        arrays.to_device(offsets),
        arrays.to_device(np.concatenate([np.empty(0, np.int32), *rows])),
    ]
    if values is not None:
        held.append(arrays.to_device(np.array(values, dtype=np.float32)))
    lists = _abi.TokenLists(*(address_of(array) for array in held))
    if lengths and min(lengths) > 0:
        lists.longest = max(lengths)
    return lists, held

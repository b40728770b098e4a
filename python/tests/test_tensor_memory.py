# SPDX-License-Identifier: Apache-2.0
"""Tensors with unusual memory, by a stand-in for torch, which need not be installed."""

import importlib
import sys
from types import SimpleNamespace

import gumbel
import numpy as np
import pytest
from gumbel._inputs.arrays import TorchArrays

LOGITS = np.zeros((2, 40), np.float32)


class Tensor:
    """A stand-in with the attributes of a torch.Tensor that the package reads first."""

    def __init__(self, array=LOGITS, dtype="float32", kind="cpu", **odd):
        self.array, self.dtype, self.shape = array, f"torch.{dtype}", array.shape
        self.device = SimpleNamespace(type=kind, index=0)
        self.is_cuda = kind == "cuda"
        self.layout = odd.get("layout", "torch.strided")
        self.is_nested, self.is_meta = odd.get("nested", False), odd.get("meta", False)
        self.is_neg, self.is_conj = lambda: odd.get("neg", False), lambda: odd.get("conj", False)

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self.array

    def element_size(self):
        return 4

    def data_ptr(self):
        return self.array.ctypes.data

    def stride(self):
        return (40, 1)

    def to(self, place, dtype):
        return SimpleNamespace(contiguous=lambda: self.array)


ODD = {
    "negative": ({"neg": True}, "has a pending negation"),
    "conjugate": ({"conj": True, "dtype": "complex64"}, "has a pending conjugation"),
    "sparse": ({"layout": "torch.sparse_coo"}, "is not dense"),
    "compressed": ({"layout": "torch.sparse_csr"}, "is not dense"),
    "nested": ({"nested": True}, "is not dense"),
    "meta": ({"meta": True}, "is on the meta device"),
}
NO_NUMBERS = ("bool", "complex64", "quint8", "float8_e4m3fn", "bits8")


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    torch = SimpleNamespace(Tensor=Tensor, float32="f4", int32="i4", int64="i8")
    monkeypatch.setitem(sys.modules, "torch", torch)


@pytest.mark.parametrize("odd, text", ODD.values(), ids=ODD)
def test_unsupported_memory_is_named(odd, text):
    with pytest.raises(TypeError, match=f"^logits: the tensor {text}"):
        gumbel.sample_logits(Tensor(**odd))
    for name in ("temperature", "seed", "banned", "num_samples"):
        with pytest.raises(TypeError, match=f"^{name}: the tensor {text}"):
            gumbel.sample_logits(LOGITS, **{name: Tensor(np.ones(2), **odd)})
    with pytest.raises(TypeError, match=rf"^banned\[1\]: the tensor {text}"):
        gumbel.sample_logits(LOGITS, banned=[[1], Tensor(np.ones(2), **odd)])
    with pytest.raises(TypeError, match=rf"^seed\[1\]: the tensor {text}"):
        gumbel.sample_logits(LOGITS, seed=[1, Tensor(np.array(1), **odd)])
    with pytest.raises(TypeError, match=f"^key: the tensor {text}"):
        gumbel.philox4x32([0] * 4, Tensor(np.ones(2), **odd))


@pytest.mark.parametrize("dtype", NO_NUMBERS)
def test_unsupported_dtypes_are_named(dtype):
    for name in ("temperature", "seed", "banned", "num_samples"):
        with pytest.raises(TypeError, match=f"^{name}: expected numbers, got torch.{dtype}"):
            gumbel.sample_logits(LOGITS, **{name: Tensor(np.ones(2, int), dtype)})
    with pytest.raises(TypeError, match="^logits: dtype "):
        gumbel.sample_logits(Tensor(dtype=dtype))


def test_gpu_parameters_are_not_copied():
    """Parameters on the right device are not copied; no other test would detect a copy."""
    arrays = object.__new__(TorchArrays)
    arrays.torch, arrays.place = sys.modules["torch"], SimpleNamespace(type="cuda", index=0)
    arrays.on_host = False
    assert arrays.adopt_tensor("seed", Tensor(kind="cuda", dtype="int64"), np.uint64) is LOGITS
    for dtype in NO_NUMBERS:
        with pytest.raises(TypeError, match=f"^seed: expected numbers, got torch.{dtype}"):
            arrays.adopt_tensor("seed", Tensor(kind="cuda", dtype=dtype), np.uint64)
    for odd, text in ODD.values():
        with pytest.raises(TypeError, match=f"^seed: the tensor {text}"):
            arrays.adopt_tensor("seed", Tensor(kind="cuda", **odd), np.uint64)


def test_missing_torch_error_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "gumbel.torch", raising=False)
    with pytest.raises(ImportError, match="gumbel.torch requires PyTorch: pip install"):
        importlib.import_module("gumbel.torch")

# SPDX-License-Identifier: Apache-2.0
"""Workspaces of calls: memory of the call's own, or memory that many calls share."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, ContextManager, NamedTuple, Optional

import numpy as np

from .. import _abi
from .arrays import NumpyArrays, address_of

MAX_REUSED_BYTES = 64 << 20  # size of the largest workspace that a thread reuses


class Workspace(NamedTuple):
    """Aligned memory; `address` and `size`, in bytes, are numbers of ctypes; `block` owns it."""

    address: ctypes.c_void_p
    size: ctypes.c_size_t
    block: Any


def allocate_workspace(arrays: NumpyArrays, size: int) -> Workspace:
    """At least `size` aligned bytes of a call's own."""
    block = arrays.empty((size + _abi.WORKSPACE_ALIGNMENT,), np.uint8)
    start: Any = address_of(block)
    gap = -start % _abi.WORKSPACE_ALIGNMENT
    return Workspace(ctypes.c_void_p(start + gap), ctypes.c_size_t(len(block) - gap), block)


class SharedWorkspace:
    """A workspace of many calls on one device, which run one after another on one stream.

    The workspace grows to the largest size that a call reserves, and the prepared calls that use it
    follow. A captured graph does not follow: reserve the largest size before the capture.
    """

    def __init__(self) -> None:
        self._workspace = Workspace(ctypes.c_void_p(), ctypes.c_size_t(), self)
        self._block: Any = None

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._workspace.size.value

    def reserve(self, arrays: NumpyArrays, size: int) -> Workspace:
        """The workspace, with at least `size` bytes."""
        shared = self._workspace
        if shared.size.value < size:
            shared.size.value, self._block = 0, None  # frees the old memory first
            own = allocate_workspace(arrays, size)
            self._block = own.block
            shared.address.value, shared.size.value = own.address.value, own.size.value
        return shared


class _OfThread(threading.local):
    shared: Optional[SharedWorkspace] = None  # of the innermost use_workspace()
    kept: Optional[SharedWorkspace] = None  # of this thread's calls on the CPU


_of_thread = _OfThread()


class _SharedUse:
    """The context of use_workspace(); a class takes half the host time of a generator."""

    def __init__(self, shared: SharedWorkspace) -> None:
        self._shared = shared

    def __enter__(self) -> None:
        self._before, _of_thread.shared = _of_thread.shared, self._shared

    def __exit__(self, *_: Any) -> None:
        _of_thread.shared = self._before


def use_workspace(shared: SharedWorkspace) -> ContextManager[None]:
    """Context in which all calls of this thread use `shared`, and prepared calls keep it."""
    return _SharedUse(shared)


def get_workspace(arrays: NumpyArrays, size: int, own: bool = False) -> Workspace:
    """At least `size` aligned bytes: of use_workspace(), else of the thread if they are few.

    own          whether the caller keeps the memory, so that the thread's cannot serve.
    """
    if _of_thread.shared is not None:
        return _of_thread.shared.reserve(arrays, size)
    if own or arrays.name != "cpu" or size > MAX_REUSED_BYTES:
        return allocate_workspace(arrays, size)
    if _of_thread.kept is None:
        _of_thread.kept = SharedWorkspace()
    return _of_thread.kept.reserve(arrays, size)

# SPDX-License-Identifier: Apache-2.0
"""The C ABI of libgumbel_dist, as include/gumbel/dist.h declares it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p

from .. import _abi

WHY_BYTES = 128
NCCL_ID_BYTES = 128
PEERS = ("off", "allow", "require")  # gumbel_peer_memory
GATHER = ctypes.CFUNCTYPE(
    c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_int64, c_void_p
)


class Transport(_abi.Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("ranks", c_int32),
        ("all_gather", GATHER),
        ("destroy", c_void_p),
        ("context", c_void_p),
        ("stream_all_gather", c_void_p),
        ("wait", c_void_p),
        ("blocking_all_gather", c_void_p),
    ]


class Options(_abi.Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("first_token", c_int64),
        ("rows", c_int64),
        ("timeout_ms", c_int64),
        ("frame_bytes", c_size_t),
        ("peer_memory", c_int),
        ("reserved", c_int32),
        ("peer_bytes", c_size_t),
        ("peer_buffers", c_void_p),
    ]


class Traffic(_abi.Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        *((name, c_int64) for name in ("calls", "exchanges", "bytes", "rows", "rows_by_rows")),
    ]


# Calls of a group have the signatures of the library's calls, with a group in place of the device.
_CALLS = (
    "workspace_size",
    "sample",
    "sample_logits",
    "verify",
    "verify_logits",
    "verify_workspace_size",
)


def _load_library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_abi.find_file("libgumbel_dist.so")))
    for name in _CALLS:
        function, own = (
            getattr(where, prefix + name)
            for where, prefix in ((library, "gumbel_group_"), (_abi.lib, "gumbel_"))
        )
        function.restype, function.argtypes = own.restype, own.argtypes
    library.gumbel_group_open.restype = c_int
    library.gumbel_group_open.argtypes = [
        POINTER(Transport),
        c_void_p,
        POINTER(Options),
        POINTER(c_void_p),
        POINTER(_abi.Error),
    ]
    library.gumbel_group_wait.restype = c_int
    library.gumbel_group_wait.argtypes = [c_void_p, c_void_p, POINTER(_abi.Error)]
    library.gumbel_nccl_id.restype = c_int
    library.gumbel_nccl_id.argtypes = [c_char_p, POINTER(_abi.Error)]
    library.gumbel_nccl_transport.restype = c_int
    library.gumbel_nccl_transport.argtypes = [
        c_void_p,
        c_char_p,
        c_int32,
        c_int32,
        c_int32,
        POINTER(Transport),
        POINTER(_abi.Error),
    ]
    library.gumbel_group_traffic.restype = c_int
    library.gumbel_group_traffic.argtypes = [c_void_p, POINTER(Traffic)]
    library.gumbel_group_has_peer_memory.restype = c_int
    library.gumbel_group_has_peer_memory.argtypes = [c_void_p]
    library.gumbel_group_close.restype = None
    library.gumbel_group_close.argtypes = [c_void_p]
    return library


lib = _load_library()

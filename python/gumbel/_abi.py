# SPDX-License-Identifier: Apache-2.0
"""The C ABI of libgumbel: structs and prototypes, as the headers in include/gumbel declare them.

`lib` is a ctypes.CDLL, so every call into it releases the global interpreter lock.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

from ._names import use_python_names, get_parameter_name

FLOAT32, FLOAT16, BFLOAT16 = 1, 2, 3

OK, ERROR_ARGUMENT, ERROR_WORKSPACE = 0, 10, 20
ERROR_UNSUPPORTED, ERROR_MEMORY, ERROR_DEVICE, ERROR_GROUP = 30, 40, 50, 60

ORDER_MIN_P_TOP_K_TOP_P, ORDER_JOINT, ORDER_BEFORE_TEMPERATURE = 0, 1, 2
ORDER_TOP_K_TOP_P_MIN_P, ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE, ORDER_JOINT_TEMPERATURE = 3, 4, 5
TIES_ALL, TIES_EXACT = 0, 1
PROCESSED, RAW = 0, 1
RULE_COUPLED, RULE_REJECTION, RULE_BLOCK = 0, 1, 2
DOMAIN_DRAFT = 1

WORKSPACE_ALIGNMENT = 64
NODES_MAX = 1024
SAMPLES_MAX, PARTS_MAX, THREADS_MAX = 65536, 65536, 1024
SAME = -1  #: the stride of a row parameter with one value for all rows


class Sized(Structure):
    """A struct whose first field, `struct_size`, is set by the constructor."""

    def __init__(self, **fields) -> None:
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


class Error(Structure):
    _fields_ = [("field", c_char * 48), ("message", c_char * 208)]


class DeviceOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", c_char_p),
        ("isa", c_int),
        ("threads", c_int32),
        ("tile", c_int32),
        ("parallel_for", c_void_p),
        ("parallel_context", c_void_p),
        ("rungs", c_char_p),
    ]


class DeviceInfo(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("isa", c_int),
        ("threads", c_int32),
        ("tile", c_int32),
        ("name", c_char * 64),
        ("description", c_char * 128),
    ]


class Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int),
        ("rows", c_int64),
        ("cols", c_int64),
        ("stride", c_int64),
        ("reserved", c_int64 * 2),
    ]


class Rows(Structure):
    """A row parameter: gumbel_row_f32, gumbel_row_i32, gumbel_row_u32, gumbel_row_u64."""

    _fields_ = [("data", c_void_p), ("stride", c_int64)]


class Slots(Structure):
    _fields_ = [("of_row", c_void_p), ("count", c_int64)]


class Limits(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("batch", c_int64),
        ("vocab_size", c_int64),
        ("hidden_size", c_int64),
        ("num_samples", c_int32),
        ("requests", c_int32),
        ("screens", c_int32),
        ("reserved", c_int32),
    ]


class ScreenMemory(Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_size_t)]


# Values of gumbel_screen_certificate.
CERTIFICATES = {"probable": 0, "certain": 1}


class ScreenOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("certificate", c_int32),
        ("reserved", c_int32),
        ("seed", POINTER(c_uint64)),
    ]


class Head(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("hidden", Tensor),
        ("weight", Tensor),
        ("bias", Tensor),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("first_token", c_int64),
        ("vocab_size", c_int64),
        ("screen", ScreenMemory),
    ]


class Logits(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("logits", Tensor),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("first_token", c_int64),
        ("vocab_size", c_int64),
    ]


class TokenLists(Structure):
    _fields_ = [
        ("offsets", c_void_p),
        ("ids", c_void_p),
        ("values", c_void_p),
        ("reserved", c_int64),
    ]


class Transforms(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("mask", Rows),
        ("allowed", TokenLists),
        ("banned", TokenLists),
        ("bias", TokenLists),
        ("repetition", Rows),
        ("frequency", Rows),
        ("presence", Rows),
        ("history", c_void_p),
        ("prompt_tokens", TokenLists),
        ("output_tokens", TokenLists),
    ]


class Truncation(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("min_p", Rows),
        ("top_k", Rows),
        ("top_p", Rows),
        ("order", c_int),
        ("ties", c_int),
    ]


class History(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("vocab_size", c_int64),
        ("prompt", c_void_p),
        ("output", c_void_p),
        ("counts", c_void_p),
        ("count_bits", c_int32),
        ("reserved", c_int32),
    ]


class Sampling(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("temperature", Rows),
        ("seed", Rows),
        ("position", Rows),
        ("first_sample", Rows),
        ("num_samples", c_int32),
        ("reserved", c_int32),
        ("transforms", POINTER(Transforms)),
        ("truncation", POINTER(Truncation)),
        ("slots", Slots),
        ("live_rows", c_void_p),
        ("given", Rows),
        ("noise", c_void_p),
        ("noise_stride", c_int64),
        ("domain", c_uint32),
        ("reserved2", c_int32),
    ]


class Output(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tokens", c_void_p),
        ("logprobs", c_void_p),
        ("scores", c_void_p),
        ("lse", c_void_p),
        ("status", c_void_p),
        ("ranks", c_void_p),
        ("kept", c_void_p),
        ("top_ids", c_void_p),
        ("top_logprobs", c_void_p),
        ("num_top", c_int32),
        ("logprobs_of", c_int),
        ("top_logits", c_void_p),
        ("best_ids", c_void_p),
        ("best_scores", c_void_p),
        ("num_best", c_int32),
    ]


class Summary(Structure):
    _fields_ = [
        ("best_score", c_float),
        ("best_z", c_float),
        ("best_id", c_int32),
        ("max_z", c_float),
        ("mass", c_uint64 * 3),
        ("mass_exponent", c_int32),
        ("flags", c_uint32),
    ]


class Draft(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("requests", c_int64),
        ("max_nodes", c_int32),
        ("rule", c_int),
        ("tokens", c_void_p),
        ("offsets", c_void_p),
        ("nodes", c_void_p),
        ("parents", c_void_p),
        ("limit", c_void_p),
        ("stop", TokenLists),
        ("head", POINTER(Head)),
        ("logits", POINTER(Logits)),
        ("sampling", POINTER(Sampling)),
        ("lse", c_void_p),
        ("logprobs", c_void_p),
    ]


class Verified(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tokens", c_void_p),
        ("emitted", c_void_p),
        ("accepted", c_void_p),
        ("path", c_void_p),
        ("last_row", c_void_p),
        ("position", c_void_p),
        ("finished", c_void_p),
        ("status", c_void_p),
        ("logprobs", c_void_p),
        ("scores", c_void_p),
        ("histogram", c_void_p),
        ("rows", POINTER(Output)),
    ]


class Step(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("batch", c_int64),
        ("num_samples", c_int32),
        ("reserved", c_int32),
        ("tokens", c_void_p),
        ("position", c_void_p),
        ("position_stride", c_int64),
        ("ring", c_void_p),
        ("ring_length", c_int64),
        ("slots", Slots),
        ("live_rows", c_void_p),
    ]


# Arguments of a call that transforms rows [B, V] of logits: device, stream, ...
_TRANSFORM_ARGUMENTS = [
    c_void_p,
    c_void_p,
    POINTER(Logits),
    POINTER(Sampling),
    c_void_p,
    c_int64,
    c_void_p,
    c_size_t,
    POINTER(Error),
]


def _summary_arguments(source: type) -> list[Any]:
    """Arguments of a call that computes summaries from `source`: Head or Logits."""
    sampling, workspace = POINTER(Sampling), [c_void_p, c_size_t]
    return [c_void_p, c_void_p, POINTER(source), sampling, c_void_p, *workspace, POINTER(Error)]


def _verify_arguments(source: type) -> list[Any]:
    """Arguments of a call that verifies drafts by `source`: Head or Logits."""
    structs = [POINTER(source), POINTER(Sampling), POINTER(Draft), POINTER(Verified)]
    return [c_void_p, c_void_p, *structs, c_void_p, c_size_t, POINTER(Error)]


# Name: (result, arguments). Devices are opaque, hence void pointers.
_PROTOTYPES = {
    "gumbel_version_string": (c_char_p, []),
    "gumbel_status_string": (c_char_p, [c_int]),
    "gumbel_isa_name": (c_char_p, [c_int]),
    "gumbel_isa_available": (c_int, [c_int]),
    "gumbel_cuda_architectures": (c_char_p, []),
    "gumbel_open": (c_int, [POINTER(DeviceOptions), POINTER(c_void_p), POINTER(Error)]),
    "gumbel_describe": (c_int, [c_void_p, POINTER(DeviceInfo)]),
    "gumbel_workspace_size": (
        c_int,
        [
            c_void_p,
            POINTER(Head),
            POINTER(Logits),
            POINTER(Sampling),
            POINTER(Output),
            POINTER(c_size_t),
            POINTER(Error),
        ],
    ),
    "gumbel_workspace_most": (
        c_int,
        [c_void_p, POINTER(Limits), POINTER(c_size_t), POINTER(Error)],
    ),
    "gumbel_screen_size": (
        c_int,
        [c_void_p, POINTER(Tensor), POINTER(c_size_t), POINTER(Error)],
    ),
    "gumbel_screen_prepare": (
        c_int,
        [
            c_void_p,
            c_void_p,
            POINTER(Tensor),
            POINTER(ScreenOptions),
            POINTER(ScreenMemory),
            POINTER(Error),
        ],
    ),
    "gumbel_screen_verify": (
        c_int,
        [c_void_p, c_void_p, POINTER(Tensor), POINTER(ScreenMemory), POINTER(Error)],
    ),
    "gumbel_explain": (
        c_int,
        [
            c_void_p,
            POINTER(Head),
            POINTER(Logits),
            POINTER(Sampling),
            POINTER(Output),
            c_char_p,
            c_size_t,
            POINTER(Error),
        ],
    ),
    "gumbel_sample": (
        c_int,
        [
            c_void_p,
            c_void_p,
            POINTER(Head),
            POINTER(Sampling),
            POINTER(Output),
            c_void_p,
            c_size_t,
            POINTER(Error),
        ],
    ),
    "gumbel_sample_logits": (
        c_int,
        [
            c_void_p,
            c_void_p,
            POINTER(Logits),
            POINTER(Sampling),
            POINTER(Output),
            c_void_p,
            c_size_t,
            POINTER(Error),
        ],
    ),
    "gumbel_verify": (c_int, _verify_arguments(Head)),
    "gumbel_verify_logits": (c_int, _verify_arguments(Logits)),
    "gumbel_verify_workspace_size": (
        c_int,
        [
            c_void_p,
            POINTER(Head),
            POINTER(Logits),
            POINTER(Sampling),
            POINTER(Draft),
            POINTER(Verified),
            POINTER(c_size_t),
            POINTER(Error),
        ],
    ),
    "gumbel_process_logits": (c_int, _TRANSFORM_ARGUMENTS),
    "gumbel_softmax": (c_int, _TRANSFORM_ARGUMENTS),
    "gumbel_partial": (c_int, _summary_arguments(Head)),
    "gumbel_partial_logits": (c_int, _summary_arguments(Logits)),
    "gumbel_merge": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_int64, POINTER(Error)]),
    "gumbel_finish": (
        c_int,
        [
            c_void_p,
            c_void_p,
            c_void_p,
            c_int32,
            c_int64,
            c_int32,
            POINTER(Output),
            POINTER(Error),
        ],
    ),
    "gumbel_advance": (c_int, [c_void_p, c_void_p, POINTER(Step), POINTER(Error)]),
    "gumbel_row_seed": (c_uint64, [c_uint64, c_uint64]),
    "gumbel_history_start": (
        c_int,
        [
            c_void_p,
            c_void_p,
            POINTER(History),
            c_int64,
            POINTER(Slots),
            POINTER(TokenLists),
            POINTER(TokenLists),
            POINTER(Error),
        ],
    ),
    "gumbel_history_update": (
        c_int,
        [
            c_void_p,
            c_void_p,
            POINTER(History),
            c_int64,
            POINTER(Slots),
            c_void_p,
            c_int64,
            c_void_p,
            POINTER(Error),
        ],
    ),
    "gumbel_philox4x32": (
        c_int,
        [POINTER(c_uint32), POINTER(c_uint32), c_int, POINTER(c_uint32)],
    ),
    "gumbel_noise": (
        c_int,
        [c_uint64, c_uint64, c_uint32, c_uint32, c_int64, c_int64, c_void_p, POINTER(Error)],
    ),
}


def find_file(name: str) -> Path:
    """The path of a library or header in the package; ImportError if it is missing."""
    # An editable install has two folders: the sources, and the results of the build.
    folders = [Path(folder) for folder in sys.modules[__package__].__path__]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise ImportError(
        f"{name} is not in the package (looked in {', '.join(map(str, folders))}); "
        "`pip install .` at the root of the source tree builds and installs both"
    )


def _load_library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(find_file("libgumbel.so")))
    for function, (result, arguments) in _PROTOTYPES.items():
        getattr(library, function).restype = result
        getattr(library, function).argtypes = arguments
    return library


lib = _load_library()


def decode_text(found: bytes) -> str:
    """A text of the library as str; it may quote arbitrary bytes of the environment."""
    return found.decode(errors="surrogateescape")


def check_status(
    status: int, error: Error | None = None, renamed: dict[str, str] | None = None
) -> None:
    """Raise the exception of a status that is not OK, with the message "argument: text".

    ValueError: an argument is invalid. RuntimeError: the device or build does not support the call,
    or the driver failed. MemoryError: out of memory.
    `renamed` maps names of arguments to the names that the caller uses.
    """
    if status == OK:
        return
    if error is not None and error.message:
        name, message = get_parameter_name(decode_text(error.field)), decode_text(error.message)
        if status == ERROR_ARGUMENT:
            message = use_python_names(message)
        message = f"{(renamed or {}).get(name, name)}: {message}"
    else:
        message = decode_text(lib.gumbel_status_string(status))
    kinds = {ERROR_MEMORY: MemoryError}
    kinds.update(dict.fromkeys((ERROR_UNSUPPORTED, ERROR_DEVICE, ERROR_GROUP), RuntimeError))
    raise kinds.get(status, ValueError)(message)

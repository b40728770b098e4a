# SPDX-License-Identifier: Apache-2.0
"""The constants and structs that the headers in include/gumbel declare."""

from __future__ import annotations

import ctypes
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

FLOAT32, FLOAT16, BFLOAT16 = 1, 2, 3

OK, ERROR_ARGUMENT, ERROR_WORKSPACE = 0, 10, 20
ERROR_UNSUPPORTED, ERROR_MEMORY, ERROR_DEVICE, ERROR_GROUP = 30, 40, 50, 60

ORDER_MIN_P_TOP_K_TOP_P, ORDER_JOINT, ORDER_BEFORE_TEMPERATURE = 0, 1, 2
ORDER_TOP_K_TOP_P_MIN_P, ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE, ORDER_JOINT_TEMPERATURE = 3, 4, 5
TIES_ALL, TIES_EXACT = 0, 1
PROGRAM_LENGTH, PROGRAMS_MAX = 16, 16
# Values of gumbel_program_rule; 0 ends a program.
PROGRAM_RULES = {
    "temperature": 1,
    "min_p": 2,
    "top_k": 3,
    "top_p": 4,
    "typical_p": 5,
    "top_n_sigma": 6,
    "epsilon": 7,
    "eta": 8,
    "top_a": 9,
    "p_less": 10,
    "surprise": 11,
    "xtc": 12,
    "smoothing": 13,
    "adaptive_p": 14,
}
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
        ("max_nodes", c_int32),
        ("token_ids", c_int32),
        ("reserved", c_int32),
    ]


class ScreenMemory(Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_size_t), ("format", c_int32)]


# Values of gumbel_screen_certificate.
CERTIFICATES = {"probable": 0, "certain": 1}
# Values of gumbel_screen_format.
SCREEN_FORMATS = {"bytes": 0, "nibbles": 1}


class ScreenOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("certificate", c_int32),
        ("format", c_int32),
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
    longest = 0  # ids of the longest list, if the host knows them and no list is empty

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
        ("late_bias", TokenLists),
        ("list_status", c_void_p),
        ("max_allowed", c_int64),
    ]


class Programs(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("rules", c_void_p),
        ("count", c_int32),
        ("reserved", c_int32),
        ("program", Rows),
        ("min_keep", Rows),
        ("temperature_range", Rows),
        ("temperature_exponent", Rows),
        ("typical_p", Rows),
        ("top_n_sigma", Rows),
        ("epsilon", Rows),
        ("eta", Rows),
        ("top_a", Rows),
        ("surprise", Rows),
        ("xtc_probability", Rows),
        ("xtc_threshold", Rows),
        ("xtc_keep", TokenLists),
        ("smoothing_factor", Rows),
        ("smoothing_curve", Rows),
        ("adaptive_target", Rows),
    ]


class RuleUpdates(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("batch", c_int64),
        ("tokens", c_void_p),
        ("token_stride", c_int64),
        ("logprobs", c_void_p),
        ("slots", Slots),
        ("live_rows", c_void_p),
        ("surprise", c_void_p),
        ("surprise_stride", c_int64),
        ("surprise_target", Rows),
        ("surprise_rate", Rows),
        ("top_p", c_void_p),
        ("top_p_stride", c_int64),
        ("top_p_first", Rows),
        ("top_p_decay", Rows),
        ("top_p_min", Rows),
        ("top_p_reset", Rows),
        ("adaptive_target", c_void_p),
        ("adaptive_target_stride", c_int64),
        ("adaptive_sum", c_void_p),
        ("adaptive_sum_stride", c_int64),
        ("adaptive_weight", c_void_p),
        ("adaptive_weight_stride", c_int64),
        ("adaptive_goal", Rows),
        ("adaptive_decay", Rows),
    ]


class Truncation(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("min_p", Rows),
        ("top_k", Rows),
        ("top_p", Rows),
        ("order", c_int),
        ("ties", c_int),
        ("programs", POINTER(Programs)),
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
        ("token_ids", c_void_p),
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
        ("kept_capacity", c_int32),
        ("kept_ids", c_void_p),
        ("kept_logprobs", c_void_p),
        ("entropy", c_void_p),
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
        ("node_position", c_void_p),
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

# SPDX-License-Identifier: Apache-2.0
"""Results and arguments of the functions that the headers in include/gumbel declare."""

from __future__ import annotations

from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from .ring_structs import ListRules, Recent, RowLists
from .structs import (
    DeviceInfo,
    DeviceOptions,
    Draft,
    Error,
    Head,
    History,
    Limits,
    Logits,
    Output,
    RuleUpdates,
    Sampling,
    ScreenMemory,
    ScreenOptions,
    Slots,
    Step,
    Tensor,
    TokenLists,
    Verified,
)
from .watermark_structs import Detection, Detector, Watermark, WatermarkDraws

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


def _start_arguments(kept: type) -> list[Any]:
    """Arguments of a call that starts rows of `kept`: History or Recent."""
    rows, lists = [c_int64, POINTER(Slots)], [POINTER(TokenLists)] * 2
    return [c_void_p, c_void_p, POINTER(kept), *rows, *lists, POINTER(Error)]


def _update_arguments(kept: type) -> list[Any]:
    """Arguments of a call that adds tokens to rows of `kept`: History or Recent."""
    rows, tokens = [c_int64, POINTER(Slots)], [c_void_p, c_int64, c_void_p]
    return [c_void_p, c_void_p, POINTER(kept), *rows, *tokens, POINTER(Error)]


# Name: (result, arguments). Devices are opaque, hence void pointers.
PROTOTYPES = {
    "gumbel_version_string": (c_char_p, []),
    "gumbel_status_string": (c_char_p, [c_int]),
    "gumbel_isa_name": (c_char_p, [c_int]),
    "gumbel_isa_available": (c_int, [c_int]),
    "gumbel_cuda_architectures": (c_char_p, []),
    "gumbel_cuda_architecture": (c_char_p, [c_char_p, c_int32]),
    "gumbel_device_capability": (c_int32, [c_void_p]),
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
    "gumbel_process_logits_into": (
        c_int,
        [*_TRANSFORM_ARGUMENTS[:5], c_int, *_TRANSFORM_ARGUMENTS[5:]],
    ),
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
    "gumbel_history_start": (c_int, _start_arguments(History)),
    "gumbel_history_update": (c_int, _update_arguments(History)),
    "gumbel_recent_start": (c_int, _start_arguments(Recent)),
    "gumbel_recent_append": (c_int, _update_arguments(Recent)),
    "gumbel_make_lists": (
        c_int,
        [
            c_void_p,
            c_void_p,
            POINTER(ListRules),
            POINTER(Recent),
            c_int64,
            POINTER(Slots),
            POINTER(RowLists),
            POINTER(Error),
        ],
    ),
    "gumbel_update_rules": (c_int, [c_void_p, c_void_p, POINTER(RuleUpdates), POINTER(Error)]),
    "gumbel_watermark_rows": (
        c_int,
        [
            c_void_p,
            c_void_p,
            POINTER(Watermark),
            POINTER(Recent),
            c_int64,
            POINTER(WatermarkDraws),
            POINTER(Error),
        ],
    ),
    "gumbel_watermark_nodes": (
        c_int,
        [
            c_void_p,
            c_void_p,
            POINTER(Watermark),
            POINTER(Recent),
            POINTER(Draft),
            c_int64,
            POINTER(WatermarkDraws),
            POINTER(Error),
        ],
    ),
    "gumbel_detect_watermark": (
        c_int,
        [POINTER(Detector), c_void_p, c_int64, c_void_p, POINTER(Detection), POINTER(Error)],
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

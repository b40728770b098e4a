# SPDX-License-Identifier: Apache-2.0
"""The constants and structs of watermarks, which include/gumbel/watermark.h declares."""

from __future__ import annotations

from ctypes import c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

from .structs import Rows, Sized, Slots

CONTEXT_MAX, CONTEXT_DEFAULT, DETECT_MAX = 16, 4, 2**30


class Watermark(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("key", c_void_p),
        ("key_stride", c_int64),
        ("context", Rows),
        ("text_start", Rows),
        ("seed", Rows),
        ("position", Rows),
        ("slots", Slots),
        ("live_rows", c_void_p),
        ("drafts", c_void_p),
        ("draft_stride", c_int64),
        ("num_drafts", c_int32),
        ("reserved", c_int32),
    ]


class WatermarkDraws(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("seed", c_void_p),
        ("position", c_void_p),
        ("watermarked", c_void_p),
    ]


class Detector(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("key", c_uint64 * 2),
        ("context", c_int32),
        ("sample", c_uint32),
        ("domain", c_uint32),
        ("reserved", c_int32),
        ("first", c_int64),
    ]


class Detection(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("scored", c_int64),
        ("statistic", c_double),
        ("p_value", c_double),
        ("log10_p", c_double),
    ]

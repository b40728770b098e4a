# SPDX-License-Identifier: Apache-2.0
"""The constants and structs of rings of recent tokens, which include/gumbel/recent.h declares."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_int64, c_size_t, c_void_p

from .structs import History, Rows, Sized, TokenLists

RECENT_MAX, LIST_MAX = 2**30, 2048


class Recent(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("capacity", c_int64),
        ("tokens", c_void_p),
        ("count", c_void_p),
        ("history", POINTER(History)),
        ("window", Rows),
    ]


class Sequences(Structure):
    _fields_ = [
        ("offsets", c_void_p),
        ("ids", c_void_p),
        ("count", c_int64),
        ("of_row", c_void_p),
        ("reserved", c_int64),
    ]


class ListRules(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dry_multiplier", Rows),
        ("dry_base", Rows),
        ("dry_allowed_length", Rows),
        ("dry_last_n", Rows),
        ("dry_breakers", Sequences),
        ("ngram_size", Rows),
        ("ngram_window", Rows),
        ("ngram_keep", TokenLists),
        ("bad_words", Sequences),
        ("position", Rows),
        ("min_position", Rows),
        ("stop_tokens", TokenLists),
    ]


class RowLists(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("capacity", c_int64),
        ("offsets", c_void_p),
        ("banned", c_void_p),
        ("late_ids", c_void_p),
        ("late_values", c_void_p),
        ("status", c_void_p),
    ]

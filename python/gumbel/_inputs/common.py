# SPDX-License-Identifier: Apache-2.0
"""Reads the parameters of every call into structs of the C ABI."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Callable, Optional

import numpy as np

from .. import _abi
from .arguments import (
    INT32_MAX,
    read_bitmask,
    read_row_integers,
    read_row_tokens,
    read_token_table,
)
from .arrays import NumpyArrays, address_of
from .history import History
from .keywords import Function, take_keywords
from .numbers import read_choice, read_flag, read_integer
from .parameters import Bias, Common, Orders, RowFloats, RowIntegers, Tokens
from .programs import list_program_parameters
from .request import Request
from .row_lists import RowLists
from .transforms import set_transforms
from .truncation import set_truncation

DISTRIBUTIONS = {None: _abi.PROCESSED, "processed": _abi.PROCESSED, "raw": _abi.RAW}


def read_common(
    arrays: NumpyArrays,
    batch: int,
    vocab: int,
    masked: Optional[int] = None,
    tokens_end: Optional[int] = None,
    *,
    temperature: RowFloats = 1.0,
    top_k: RowIntegers = 0,
    top_p: RowFloats = 1.0,
    min_p: RowFloats = 0.0,
    order: Orders = "min_p,top_k,top_p",
    ties: str = "all",
    mask: Optional[Any] = None,
    allowed: Optional[Tokens] = None,
    max_allowed: int = 0,
    banned: Optional[Tokens] = None,
    logit_bias: Optional[Bias] = None,
    late_bias: Optional[Bias] = None,
    lists: Optional[RowLists] = None,
    list_status: Optional[Any] = None,
    prompt_tokens: Optional[Tokens] = None,
    output_tokens: Optional[Tokens] = None,
    history: Optional[History] = None,
    repetition_penalty: RowFloats = 1.0,
    frequency_penalty: RowFloats = 0.0,
    presence_penalty: RowFloats = 0.0,
    seed: Optional[RowIntegers] = None,
    position: RowIntegers = 0,
    first_sample: RowIntegers = 0,
    domain: int = 0,
    num_samples: int = 1,
    given: Optional[Any] = None,
    token_ids: Optional[Any] = None,
    slots: Optional[Any] = None,
    num_slots: Optional[int] = None,
    live_rows: Optional[Any] = None,
    logprobs: Optional[str] = "processed",
    top_logprobs: int = 0,
    ranks: bool = False,
    kept: bool = False,
    kept_ids: int = 0,
    num_best: int = 0,
    entropy: bool = False,
    **programs: Any,
) -> Request:
    """The request of a call on `batch` rows of `vocab` tokens; parameters that are off stay unset.

    masked       number of mask rows: one for each node when drafts are verified. None: as many as
                 row parameters.
    tokens_end   size of the whole vocabulary; None: unknown.
    programs     parameters of programs (list_program_parameters).
    """
    request = Request(arrays, batch, batch, seed=seed, tokens_end=tokens_end)
    sampling = request.sampling
    sampling.num_samples = read_integer("num_samples", num_samples, 1, 2**31 - 1)
    sampling.domain = read_integer("domain", domain, 0, 2**32 - 1)
    _set_slots(request, slots, num_slots, live_rows)
    if given is not None:
        shape = (batch, sampling.num_samples)
        tokens = read_row_tokens("given", given, (shape, shape[1:]), arrays)
        request.set_given(tokens, 0 if len(tokens.shape) == 2 else _abi.SAME)
    if token_ids is not None:
        request.set_token_ids(read_token_table("token_ids", token_ids, vocab, arrays))
    request.set_row_parameter(sampling, "temperature", "temperature", temperature, 1.0, np.float32)
    if seed is not None:
        request.set_row_parameter(sampling, "seed", "seed", seed, 0, np.uint64)
    request.set_row_parameter(sampling, "position", "position", position, 0, np.uint64)
    request.set_row_parameter(sampling, "first_sample", "first_sample", first_sample, 0, np.uint32)
    edits = {"allowed": allowed, "banned": banned, "bias": logit_bias, "late_bias": late_bias}
    counted = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    penalties = (repetition_penalty, frequency_penalty, presence_penalty)
    row_lists = (lists, list_status)
    if mask is not None:
        rows = request.places if masked is None else masked
        mask = _abi.Rows(*read_bitmask("mask", mask, rows, vocab))
    max_allowed = read_integer("max_allowed", max_allowed, 0, 2**63 - 1)
    set_transforms(request, mask, edits, max_allowed, row_lists, counted, history, penalties)
    set_truncation(request, min_p, top_k, top_p, order, ties, programs)
    read_choice("logprobs", logprobs, DISTRIBUTIONS)
    request.logprobs = logprobs
    request.top_logprobs = read_integer("top_logprobs", top_logprobs, 0, 128)
    request.ranks, request.kept = read_flag("ranks", ranks), read_flag("kept", kept)
    request.kept_ids = read_integer("kept_ids", kept_ids, 0, INT32_MAX)
    request.num_best = read_integer("num_best", num_best, 0, 16)
    request.entropy = read_flag("entropy", entropy)
    return request


def _set_slots(
    request: Request, slots: Optional[Any], num_slots: Optional[int], live_rows: Optional[Any]
) -> None:
    """Set the slots and the number of live rows."""
    arrays = request.arrays
    if (slots is None) != (num_slots is None):
        if slots is None:
            raise ValueError("num_slots: requires slots, the slot of each row")
        raise ValueError("slots: requires num_slots, the number of all slots")
    if slots is not None:
        count = read_integer("num_slots", num_slots, 1, 2**31 - 1)
        of_row, stride = read_row_integers("slots", slots, request.batch, np.int32, arrays)
        if stride == _abi.SAME and request.batch != 1:
            raise ValueError(f"slots: expected the shape ({request.batch},), one slot for each row")
        request.places = count
        request.sampling.slots = _abi.Slots(address_of(of_row), count)
        request.held.append(of_row)
    if live_rows is not None:
        live, _ = read_row_integers("live_rows", live_rows, 1, np.int32, arrays)
        request.sampling.live_rows = address_of(live)
        request.held.append(live)


def takes_common(
    *excluded: str, reasons: Optional[Mapping[str, str]] = None
) -> Callable[[Function], Function]:
    """Decorator: list the parameters of **common in a function's signature and docstring.

    Parameters named in `excluded` are errors, with a text in `reasons` if there is one.
    """
    common = [
        p for p in inspect.signature(read_common).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    common += list_program_parameters()
    common += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in (("isa", "Optional[str]"), ("threads", "Optional[int]"))
    ]
    return take_keywords(common, inspect.getdoc(Common) or "", excluded, reasons or {})

# SPDX-License-Identifier: Apache-2.0
"""The parameters that every call takes, from Python to the structs of the C ABI."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, TypedDict, Union

import numpy as np
from numpy.typing import NDArray

from .. import _abi
from .arguments import (
    read_bitmask,
    read_one_number,
    read_row_floats,
    read_row_integers,
    read_row_tokens,
    read_token_lists,
    read_token_values,
)
from .arrays import NumpyArrays, address
from .history import History
from .keywords import Function, take_keywords
from .numbers import format_value, read_integer

RowFloats = Union[float, Sequence[float], NDArray[Any], Any]
RowIntegers = Union[int, Sequence[int], NDArray[Any], Any]
Tokens = Union[Iterable[int], Sequence[Iterable[int]], NDArray[Any], Any]
Bias = Union[Mapping[int, float], Sequence[Mapping[int, float]]]

ORDERS = {
    "min_p,top_k,top_p": _abi.ORDER_MIN_P_TOP_K_TOP_P,
    "joint": _abi.ORDER_JOINT,
    "before_temperature": _abi.ORDER_BEFORE_TEMPERATURE,
    "top_k,top_p,min_p": _abi.ORDER_TOP_K_TOP_P_MIN_P,
    "top_k,top_p,min_p,temperature": _abi.ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE,
    "joint,temperature": _abi.ORDER_JOINT_TEMPERATURE,
    # Engines, by the order that they go in.
    "vllm": _abi.ORDER_MIN_P_TOP_K_TOP_P,
    "hf": _abi.ORDER_TOP_K_TOP_P_MIN_P,
    "llama.cpp": _abi.ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE,
    "sglang": _abi.ORDER_JOINT,
    "mlx": _abi.ORDER_JOINT_TEMPERATURE,
}
TIES = {"all": _abi.TIES_ALL, "exact": _abi.TIES_EXACT}
# Fields of the C struct: the parameter, and what turns it off.
PENALTIES = {
    "repetition": ("repetition_penalty", 1.0),
    "frequency": ("frequency_penalty", 0.0),
    "presence": ("presence_penalty", 0.0),
}
DISTRIBUTIONS = {None: _abi.PROCESSED, "processed": _abi.PROCESSED, "raw": _abi.RAW}


class Common(TypedDict, total=False):
    """Parameters of every call; those that are "one or [B]" are a value for all rows, or one a row.

    temperature  >= 0, one or [B]; 0 is greedy. Rounded to float32. Default 1.
    top_k        one or [B]: draw from the k likeliest alone; 0: off.
    top_p        in (0, 1], one or [B]: from the likeliest that hold this share; 1: off.
    min_p        in [0, 1], one or [B]: from those at least so likely as this share of the likeliest
                 one's likelihood; 0: off.
    order        how these three combine, which an engine's name says, too: "min_p,top_k,top_p"
                 ("vllm") and "top_k,top_p,min_p" ("hf"), each on what the one before it left;
                 "joint" ("sglang"), each on the whole distribution. On the distribution at
                 temperature 1: "before_temperature", as the first; "top_k,top_p,min_p,temperature"
                 ("llama.cpp"), "joint,temperature" ("mlx").
    ties         at a cut: "all" of equal likelihood stay, or "exact": lower ids first.
    mask         int32 [B, ceil(V / 32)], or one row for all: bit t & 31 of word t >> 5 allows t.
    allowed      the only token ids that may be drawn, as `banned`; an empty list allows all.
    banned       token ids never drawn: one list, or a list of lists, one a row. An id that is no
                 token of the vocabulary is an error, here, in `allowed` and in `logit_bias`.
    logit_bias   {id: value} added to the logits, or a list of such, one a row; -inf bans.
    prompt_tokens, output_tokens
                 what the penalties count: token ids, one list a row. Ids beyond the vocabulary are
                 not counted.
    history      what they count instead: a History, kept from one step to the next.
    repetition_penalty
                 > 0, one or [B], for tokens of prompt and output: divides positive logits,
                 multiplies others; 1: off.
    frequency_penalty, presence_penalty
                 one or [B], for tokens of the output: taken off the logit for each time that the
                 token is there, and once; 0: off.
    seed         < 2**64. None, the default: every call draws a fresh seed from the operating
                 system, and `seed` of the output is it. An array [B] gives each row its own seed;
                 one seed for the batch is mixed with the row number (gumbel_row_seed), and row 0
                 uses it as it is. **Equal seed and position give equal tokens. Advance `position`
                 by one at every step**, or let a gumbel.Sampler do so.
    position     < 2**64, one or [B]: the step in the row's sequence. Default 0.
    first_sample < 2**32, one or [B]: the sample counter of the row's first draw; draw j has
                 first_sample + j (mod 2**32). Rows with equal seed and position and different
                 counters draw independently, as the samples of one row do. Default 0.
    domain       < 2**32, which noise is drawn with: 0, that of a text; draft_domain(), that of
                 drafts. Default 0.
    num_samples  independent draws a row, 1 to 65536. Default 1.
    given        int32 [B, num_samples], or [num_samples] for every row: tokens to score instead of
                 drawing. The results are those of a draw that they won, without [B, V] for any B:
                 log-probabilities and ranks of prompts, of other models' tokens; -1 is no token.
    slots        int32 [B]: the row parameters, the mask and the history have a row for each slot,
                 and row b's are those of slots[b]. What is "[B]" above is then [num_slots], but not
                 lists of tokens.
    num_slots    how many slots there are; with `slots` alone.
    live_rows    rows from here on are not drawn, and get token -1 and status 6: a number, or on
                 CUDA an int32 tensor of one element, which is read when the call runs. None: all.
    logprobs     of what distribution `logprobs`, `lse` and `top_logprobs` are: "processed", the one
                 that is drawn from; "raw", the softmax of the logits as they are; None: `logprobs`
                 and `lse` are None and their time is saved.
    top_logprobs how many of the likeliest tokens to give, 0 to 128. Default 0.
    ranks        True: give `ranks`.
    kept         True: give `kept`.
    num_best     how many of the best scores of the draw to give, 0 to 16, with num_samples 1: as
                 many draws without replacement. Default 0.
    isa          None, "reference", "avx2", "avx512" or "neon"; all give the same bits.
    threads      None: the CPUs this process may use. The result is the same for every count.
    """

    temperature: RowFloats
    top_k: RowIntegers
    top_p: RowFloats
    min_p: RowFloats
    order: str
    ties: str
    mask: Optional[Any]
    allowed: Optional[Tokens]
    banned: Optional[Tokens]
    logit_bias: Optional[Bias]
    prompt_tokens: Optional[Tokens]
    output_tokens: Optional[Tokens]
    history: Optional[History]
    repetition_penalty: RowFloats
    frequency_penalty: RowFloats
    presence_penalty: RowFloats
    seed: Optional[RowIntegers]
    position: RowIntegers
    first_sample: RowIntegers
    domain: int
    num_samples: int
    given: Optional[Any]
    slots: Optional[Any]
    num_slots: Optional[int]
    live_rows: Optional[Any]
    logprobs: Optional[str]
    top_logprobs: int
    ranks: bool
    kept: bool
    num_best: int
    isa: Optional[str]
    threads: Optional[int]


# What one_number() takes for a dtype of row parameters.
_NUMBERS_FOR = {np.float32: (int, float), np.int32: (int,), np.uint32: (int,), np.uint64: (int,)}


# Lists whose ids must be tokens; those that are only counted may hold others.
_OF_THE_VOCABULARY = ("allowed", "banned", "logit_bias")


def _is_off(value: Any, off: Any) -> bool:
    """Whether a parameter is the number that turns it off."""
    return type(value) in ((int,) if type(off) is int else (int, float)) and value == off


@dataclass
class Request:
    """What `sampling` points to lives in `held`, as long as this."""

    arrays: NumpyArrays
    batch: int
    places: int  # rows of row parameters: slots, where there are any
    sampling: _abi.Sampling = field(default_factory=_abi.Sampling)
    held: list[Any] = field(default_factory=list)
    logprobs: Optional[str] = None
    top_logprobs: int = 0
    ranks: bool = False
    kept: bool = False
    num_best: int = 0
    seed: Any = None  # what was passed or drawn
    tokens_end: Optional[int] = None  # tokens of the whole vocabulary, None: unknown

    def draw_seed(self) -> None:
        """Give a draw that has no seed a fresh one."""
        if self.seed is None and not self.sampling.given.data:
            self.seed, data = self.arrays.fresh_seed()
            self.sampling.seed = _abi.Rows(address(data), _abi.SAME)
            self.held.append(data)

    def rows(
        self, struct: ctypes.Structure, field: str, name: str, value: Any, off: Any, dtype: type
    ) -> bool:
        """Set a row parameter of `struct`; False, and nothing is copied, where it is just `off`."""
        if _is_off(value, off):
            return False
        if type(value) in _NUMBERS_FOR[dtype] and self.arrays.name == "cpu":
            data, place = read_one_number(name, value, dtype)
            setattr(struct, field, _abi.Rows(place, _abi.SAME))
        else:
            if dtype is np.float32:
                data, stride = read_row_floats(name, value, self.places, self.arrays)
            else:
                data, stride = read_row_integers(name, value, self.places, dtype, self.arrays)
            setattr(struct, field, _abi.Rows(address(data), stride))
        self.held.append(data)
        return True

    def lists(self, struct: ctypes.Structure, field: str, name: str, read: Any, value: Any) -> bool:
        """Set lists of `struct` to what read() makes of `value`; False where there are none."""
        if value is None:
            return False
        end = self.tokens_end if name in _OF_THE_VOCABULARY else None
        lists, held = read(name, value, self.batch, self.arrays, end)
        setattr(struct, field, lists)
        self.held += held
        return True

    def give(self, tokens: Any, stride: int) -> None:
        """Score these tokens instead of drawing."""
        self.sampling.given = _abi.Rows(address(tokens), stride)
        self.held.append(tokens)


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
    order: str = "min_p,top_k,top_p",
    ties: str = "all",
    mask: Optional[Any] = None,
    allowed: Optional[Tokens] = None,
    banned: Optional[Tokens] = None,
    logit_bias: Optional[Bias] = None,
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
    slots: Optional[Any] = None,
    num_slots: Optional[int] = None,
    live_rows: Optional[Any] = None,
    logprobs: Optional[str] = "processed",
    top_logprobs: int = 0,
    ranks: bool = False,
    kept: bool = False,
    num_best: int = 0,
) -> Request:
    """The request of a call on `batch` rows of `vocab` tokens; what is off is left out of it.

    Masks are of `masked` rows, a row a node where drafts are verified; None: as row parameters.
    `tokens_end` is the size of the whole vocabulary; None: unknown.
    """
    request = Request(arrays, batch, batch, seed=seed, tokens_end=tokens_end)
    sampling = request.sampling
    sampling.num_samples = read_integer("num_samples", num_samples, 1, 2**31 - 1)
    sampling.domain = read_integer("domain", domain, 0, 2**32 - 1)
    _place(request, slots, num_slots, live_rows)
    if given is not None:
        shape = (batch, sampling.num_samples)
        tokens = read_row_tokens("given", given, (shape, shape[1:]), arrays)
        request.give(tokens, 0 if len(tokens.shape) == 2 else _abi.SAME)
    request.rows(sampling, "temperature", "temperature", temperature, 1.0, np.float32)
    if seed is not None:
        request.rows(sampling, "seed", "seed", seed, 0, np.uint64)
    request.rows(sampling, "position", "position", position, 0, np.uint64)
    request.rows(sampling, "first_sample", "first_sample", first_sample, 0, np.uint32)
    edits = {"allowed": allowed, "banned": banned, "bias": logit_bias}
    counted = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    penalties = (repetition_penalty, frequency_penalty, presence_penalty)
    if mask is not None:
        rows = request.places if masked is None else masked
        mask = _abi.Rows(*read_bitmask("mask", mask, rows, vocab))
    _transform(request, mask, edits, counted, history, penalties)
    _truncate(request, min_p, top_k, top_p, order, ties)
    read_choice("logprobs", logprobs, DISTRIBUTIONS)
    request.logprobs = logprobs
    request.top_logprobs = read_integer("top_logprobs", top_logprobs, 0, 128)
    request.ranks, request.kept = read_flag("ranks", ranks), read_flag("kept", kept)
    request.num_best = read_integer("num_best", num_best, 0, 16)
    return request


def _place(
    request: Request, slots: Optional[Any], num_slots: Optional[int], live_rows: Optional[Any]
) -> None:
    """Where rows find their parameters, and how many rows are drawn."""
    arrays = request.arrays
    if (slots is None) != (num_slots is None):
        if slots is None:
            raise ValueError("num_slots: it needs slots=[...], the slot of each row")
        raise ValueError("slots: it needs num_slots, the number of all slots")
    if slots is not None:
        count = read_integer("num_slots", num_slots, 1, 2**31 - 1)
        of_row, stride = read_row_integers("slots", slots, request.batch, np.int32, arrays)
        if stride == _abi.SAME and request.batch != 1:
            raise ValueError(f"slots: expected the shape ({request.batch},), one a row")
        request.places = count
        request.sampling.slots = _abi.Slots(address(of_row), count)
        request.held.append(of_row)
    if live_rows is not None:
        live, _ = read_row_integers("live_rows", live_rows, 1, np.int32, arrays)
        request.sampling.live_rows = address(live)
        request.held.append(live)


def _transform(
    request: Request,
    mask: Optional[_abi.Rows],
    edits: dict[str, Any],
    counted: dict[str, Any],
    history: Optional[History],
    penalties: tuple[RowFloats, RowFloats, RowFloats],
) -> None:
    """Point the request to its transforms, if there are any."""
    offs = (off for _, off in PENALTIES.values())
    given = [mask, history, *edits.values(), *counted.values()]
    if all(x is None for x in given) and all(map(_is_off, penalties, offs)):
        return
    transforms = _abi.Transforms()
    listed = [
        request.lists(transforms, "allowed", "allowed", read_token_lists, edits["allowed"]),
        request.lists(transforms, "banned", "banned", read_token_lists, edits["banned"]),
        request.lists(transforms, "bias", "logit_bias", read_token_values, edits["bias"]),
        *(
            request.lists(transforms, name, name, read_token_lists, counted[name])
            for name in counted
        ),
    ]
    penalised = [
        request.rows(transforms, field, name, value, off, np.float32)
        for (field, (name, off)), value in zip(PENALTIES.items(), penalties)
    ]
    if any(penalised) and history is None and all(lists is None for lists in counted.values()):
        name, _ = list(PENALTIES.values())[penalised.index(True)]
        raise ValueError(f"{name}: needs prompt_tokens or output_tokens or a history to count")
    if history is not None:
        transforms.history = _history(request, history)
    if mask is not None:
        transforms.mask = mask
    if any(listed) or any(penalised) or history is not None or mask is not None:
        request.sampling.transforms = ctypes.pointer(transforms)


def _history(request: Request, history: History) -> int:
    """The address of a history's struct, after a look at whether it serves the request."""
    if not isinstance(history, History):
        raise TypeError(f"history: expected a gumbel.History, got {type(history).__name__}")
    if history.device != request.arrays.name:
        raise ValueError(f"history: is on {history.device}, the call on {request.arrays.name}")
    if history.num_slots < request.places:
        wanted = "rows" if not request.sampling.slots.count else "slots"
        raise ValueError(
            f"history: has {history.num_slots} slots, the call has {request.places} {wanted}"
        )
    struct = history.struct()
    request.held += [history, struct]
    return ctypes.addressof(struct)


def _truncate(
    request: Request,
    min_p: RowFloats,
    top_k: RowIntegers,
    top_p: RowFloats,
    order: str,
    ties: str,
) -> None:
    """Point the request to its truncation, if there is any."""
    picked = read_choice("order", order, ORDERS), read_choice("ties", ties, TIES)
    if _is_off(min_p, 0.0) and _is_off(top_k, 0) and _is_off(top_p, 1.0):
        return
    truncation = _abi.Truncation(order=picked[0], ties=picked[1])
    used = [
        request.rows(truncation, "min_p", "min_p", min_p, 0.0, np.float32),
        request.rows(truncation, "top_k", "top_k", top_k, 0, np.int32),
        request.rows(truncation, "top_p", "top_p", top_p, 1.0, np.float32),
    ]
    if any(used):
        request.sampling.truncation = ctypes.pointer(truncation)


def read_choice(name: str, value: Any, names: Mapping[Any, int]) -> int:
    if not isinstance(value, (str, type(None))) or value not in names:
        expected = ", ".join(map(repr, names))
        raise ValueError(f"{name}: {format_value(value)} is none of {expected}")
    return names[value]


def read_flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected True or False, got {type(value).__name__}")
    return bool(value)


def takes_common(
    *but: str, reasons: Optional[Mapping[str, str]] = None
) -> Callable[[Function], Function]:
    """Show what stands behind **common in a function's signature and documentation.

    Parameters named in `but` are refused, with the reason in `reasons` where there is one.
    """
    common = [
        p for p in inspect.signature(read_common).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    common += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in (("isa", "Optional[str]"), ("threads", "Optional[int]"))
    ]
    return take_keywords(common, inspect.getdoc(Common) or "", but, reasons or {})

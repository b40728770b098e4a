# SPDX-License-Identifier: Apache-2.0
"""The parameters of every call, and their conversion to structs of the C ABI."""

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
from .arrays import NumpyArrays, address_of
from .history import History
from .keywords import Function, take_keywords
from .numbers import format_value, is_off, read_flag, read_integer
from .programs import (
    ORDERS,
    ROW_PARAMETERS,
    Order,
    RuleParameter,
    check_listed,
    check_temperature_range,
    encode_programs,
    list_program_parameters,
    read_orders,
    read_rules,
)

RowFloats = Union[float, Sequence[float], NDArray[Any], Any]
RowIntegers = Union[int, Sequence[int], NDArray[Any], Any]
Tokens = Union[Iterable[int], Sequence[Iterable[int]], NDArray[Any], Any]
Orders = Union[str, Sequence[str], Sequence[Union[str, Sequence[str]]]]
Bias = Union[Mapping[int, float], Sequence[Mapping[int, float]]]

TIES = {"all": _abi.TIES_ALL, "exact": _abi.TIES_EXACT}
# Field of the C struct: (parameter, the value that turns it off).
PENALTIES = {
    "repetition": ("repetition_penalty", 1.0),
    "frequency": ("frequency_penalty", 0.0),
    "presence": ("presence_penalty", 0.0),
}
DISTRIBUTIONS = {None: _abi.PROCESSED, "processed": _abi.PROCESSED, "raw": _abi.RAW}


class Common(TypedDict, total=False):
    """Parameters of every call. "one or [B]" is one value for all rows, or one for each row.

    temperature  >= 0, one or [B]; 0 is greedy. Rounded to float32. Default 1.
    top_k        one or [B]: keep the k likeliest tokens; 0: off.
    top_p        in (0, 1], one or [B]: keep the smallest set of likeliest tokens whose probability
                 is at least top_p; 1: off.
    min_p        in [0, 1], one or [B]: keep tokens whose probability is at least min_p times that
                 of the likeliest token; 0: off.
    order        the sequence of the rules, each on the renormalised kept set of the one before.
                 A string such as "top_k,typical_p,min_p,temperature", or a list of rules, of:
                 temperature, min_p, top_k, top_p, typical_p, top_n_sigma, epsilon, eta, top_a,
                 p_less, surprise, xtc, smoothing. The temperature is first if it is not listed.
                 An engine's name selects its order: "vllm", "hf" or "transformers", "llama.cpp",
                 "exllamav3", "text-generation-webui"; and "sglang" and "mlx", whose orders are
                 joint. "joint": top_k, top_p and min_p each on the whole distribution;
                 "joint,temperature": also at temperature 1. "before_temperature" is
                 "min_p,top_k,top_p,temperature". The default is "min_p,top_k,top_p", as "vllm".
                 A parameter whose rule is not in the order is an error.
    program      int, one or [B], with a list of orders as `order`: the index of each row's order.
    typical_p    in (0, 1], one or [B]: keep tokens whose -ln p is closest to the entropy, up to
                 this probability; 1: off.
    top_n_sigma  >= 0, one or [B]: keep tokens whose logit is at most top_n_sigma standard
                 deviations below the largest one; 0: off.
    epsilon, eta in [0, 1), one or [B]: keep tokens of at least this probability; with `eta` of at
                 least min(eta, sqrt(eta) * exp(-entropy)); 0: off.
    top_a        in [0, 1], one or [B]: keep tokens whose probability is at least top_a times the
                 square of that of the likeliest token; 0: off.
    p_less       True: keep tokens whose probability is at least the sum of squared probabilities,
                 where the order lists p_less.
    surprise     in bits, >= 0, one or [B]: keep tokens with -log2 p <= surprise; inf: off.
    xtc_probability, xtc_threshold
                 one or [B]: with this probability, in [0, 1], remove all tokens but the least
                 likely one of those with a probability of at least xtc_threshold, in (0, 1]; 0:
                 off. Default threshold 0.1. Log-probabilities are those of the average over this
                 choice.
    xtc_keep     token ids, as lists like `banned`: a row in which one of them would be removed
                 skips xtc.
    smoothing_factor, smoothing_curve
                 >= 0, and in [1, 3], one or [B]: the rule smoothing lowers logits by the square and
                 the cube of their distance to the largest one; factor 0: off. Default curve 1.
    temperature_range, temperature_exponent
                 >= 0, one or [B]: the temperature is between temperature - range and
                 temperature + range, by the entropy, divided by its largest value, to the power of
                 the exponent; range 0: off. Default exponent 1.
    min_keep     >= 1, one or [B]: no rule but top_k keeps fewer tokens. Default 1.
    ties         tokens as likely as the last kept token: "all" keeps them all; "exact" keeps only
                 as many as needed, lower ids first.
    mask         int32 [B, ceil(V / 32)], or one row for all: bit t & 31 of word t >> 5 allows t.
    allowed      the only token ids that may be drawn, as lists like `banned`. An empty list allows
                 all tokens.
    banned       token ids that are never drawn: one list for all rows, or one list for each row. An
                 id outside the vocabulary is an error, also in `allowed` and `logit_bias`.
    logit_bias   {id: value} to add to the logits, one for all rows or one for each; -inf bans.
    prompt_tokens, output_tokens
                 the tokens that penalties count: one list of ids for each row. Ids outside the
                 vocabulary are not counted.
    history      a History, which penalties count instead of these two lists.
    repetition_penalty
                 > 0, one or [B], for tokens of prompt and output: divides positive logits,
                 multiplies other ones; 1: off.
    frequency_penalty, presence_penalty
                 one or [B], for tokens of the output: subtracted from the logit once for each
                 occurrence of the token, and once if it occurs at all; 0: off.
    seed         < 2**64. None, the default: every call draws a fresh seed from the operating
                 system and returns it as `seed` of the output. An array [B] sets each row's own
                 seed. From one seed for the batch each row's seed is derived by its row number
                 (gumbel_row_seed); row 0 uses the seed unchanged. **Equal seed and position give
                 equal tokens. Advance `position` by one at every step**, or use a gumbel.Sampler.
    position     < 2**64, one or [B]: the step in the row's sequence. Default 0.
    first_sample < 2**32, one or [B]: the sample counter of the row's first draw; draw j has
                 first_sample + j (mod 2**32). Rows with equal seed and position and different
                 counters draw independently, as the samples of one row do. Default 0.
    domain       < 2**32, the random stream: 0 for texts, draft_domain() for drafts. Default 0.
    num_samples  independent draws for each row, 1 to 65536. Default 1.
    given        int32 [B, num_samples], or [num_samples] for all rows: tokens to score instead of
                 drawing. Outputs are those of a draw of these tokens, such as log-probabilities and
                 ranks of a prompt, without a [B, V] array; -1 is no token.
    slots        int32 [B]: row parameters, mask and history have an entry for each slot, and row b
                 uses entry slots[b]. "[B]" above then means [num_slots], except for lists of
                 tokens.
    num_slots    the number of slots; required with `slots`.
    live_rows    number of rows to draw: an int, or on CUDA an int32 tensor of one element, which is
                 read when the call runs. Later rows get token -1 and status 6. None: all rows.
    logprobs     the distribution of `logprobs`, `lse` and `top_logprobs`: "processed", the
                 distribution of the draw; "raw", the softmax of the unmodified logits. None: do not
                 compute `logprobs` and `lse`, which saves time.
    top_logprobs number of likeliest tokens to return, 0 to 128. Default 0.
    ranks        True: return `ranks`.
    kept         True: return `kept`.
    num_best     number of best scores of the draw to return, 0 to 16, with num_samples 1: draws
                 without replacement. Default 0.
    isa          None, "reference", "avx2", "avx512" or "neon"; all give the same bits.
    threads      None: the CPUs that this process may use. All counts give the same bits.
    """

    temperature: RowFloats
    top_k: RowIntegers
    top_p: RowFloats
    min_p: RowFloats
    order: Orders
    program: RowIntegers
    typical_p: RowFloats
    top_n_sigma: RowFloats
    epsilon: RowFloats
    eta: RowFloats
    top_a: RowFloats
    p_less: bool
    surprise: RowFloats
    xtc_probability: RowFloats
    xtc_threshold: RowFloats
    xtc_keep: Optional[Tokens]
    smoothing_factor: RowFloats
    smoothing_curve: RowFloats
    temperature_range: RowFloats
    temperature_exponent: RowFloats
    min_keep: RowIntegers
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


# Types that read_one_number() accepts for a dtype of row parameters.
_NUMBERS_FOR = {np.float32: (int, float), np.int32: (int,), np.uint32: (int,), np.uint64: (int,)}


# Lists whose ids must be in the vocabulary; lists that are only counted may hold other ids.
_VOCABULARY_LISTS = ("allowed", "banned", "logit_bias", "xtc_keep")


@dataclass
class Request:
    """The common parameters of a call; `held` owns the memory that `sampling` points to."""

    arrays: NumpyArrays
    batch: int
    places: int  # entries of row parameters: the number of slots if there are slots, else batch
    sampling: _abi.Sampling = field(default_factory=_abi.Sampling)
    held: list[Any] = field(default_factory=list)
    logprobs: Optional[str] = None
    top_logprobs: int = 0
    ranks: bool = False
    kept: bool = False
    num_best: int = 0
    seed: Any = None  # passed or fresh
    tokens_end: Optional[int] = None  # size of the whole vocabulary; None: unknown

    def draw_seed(self) -> None:
        """Draw a fresh seed if the call has none."""
        if self.seed is None and not self.sampling.given.data:
            self.seed, data = self.arrays.fresh_seed()
            self.sampling.seed = _abi.Rows(address_of(data), _abi.SAME)
            self.held.append(data)

    def set_row_parameter(
        self, struct: ctypes.Structure, field: str, name: str, value: Any, off: Any, dtype: type
    ) -> bool:
        """Set a row parameter of `struct`; if the value is `off`, set nothing and return False."""
        if is_off(value, off):
            return False
        if type(value) in _NUMBERS_FOR[dtype] and self.arrays.name == "cpu":
            data, place = read_one_number(name, value, dtype)
            setattr(struct, field, _abi.Rows(place, _abi.SAME))
        else:
            if dtype is np.float32:
                data, stride = read_row_floats(name, value, self.places, self.arrays)
            else:
                data, stride = read_row_integers(name, value, self.places, dtype, self.arrays)
            setattr(struct, field, _abi.Rows(address_of(data), stride))
        self.held.append(data)
        return True

    def set_token_lists(
        self, struct: ctypes.Structure, field: str, name: str, read: Any, value: Any
    ) -> bool:
        """Set lists of `struct` by read(); if `value` is None, set nothing and return False."""
        if value is None:
            return False
        end = self.tokens_end if name in _VOCABULARY_LISTS else None
        lists, held = read(name, value, self.batch, self.arrays, end)
        setattr(struct, field, lists)
        self.held += held
        return True

    def set_given(self, tokens: Any, stride: int) -> None:
        """Score these tokens instead of drawing."""
        self.sampling.given = _abi.Rows(address_of(tokens), stride)
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
    order: Orders = "min_p,top_k,top_p",
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
    request.set_row_parameter(sampling, "temperature", "temperature", temperature, 1.0, np.float32)
    if seed is not None:
        request.set_row_parameter(sampling, "seed", "seed", seed, 0, np.uint64)
    request.set_row_parameter(sampling, "position", "position", position, 0, np.uint64)
    request.set_row_parameter(sampling, "first_sample", "first_sample", first_sample, 0, np.uint32)
    edits = {"allowed": allowed, "banned": banned, "bias": logit_bias}
    counted = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    penalties = (repetition_penalty, frequency_penalty, presence_penalty)
    if mask is not None:
        rows = request.places if masked is None else masked
        mask = _abi.Rows(*read_bitmask("mask", mask, rows, vocab))
    _set_transforms(request, mask, edits, counted, history, penalties)
    _set_truncation(request, min_p, top_k, top_p, order, ties, programs)
    read_choice("logprobs", logprobs, DISTRIBUTIONS)
    request.logprobs = logprobs
    request.top_logprobs = read_integer("top_logprobs", top_logprobs, 0, 128)
    request.ranks, request.kept = read_flag("ranks", ranks), read_flag("kept", kept)
    request.num_best = read_integer("num_best", num_best, 0, 16)
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


def _set_transforms(
    request: Request,
    mask: Optional[_abi.Rows],
    edits: dict[str, Any],
    counted: dict[str, Any],
    history: Optional[History],
    penalties: tuple[RowFloats, RowFloats, RowFloats],
) -> None:
    """Set the transforms of the request, if there are any."""
    offs = (off for _, off in PENALTIES.values())
    given = [mask, history, *edits.values(), *counted.values()]
    if all(x is None for x in given) and all(map(is_off, penalties, offs)):
        return
    transforms = _abi.Transforms()
    listed = [
        request.set_token_lists(
            transforms, "allowed", "allowed", read_token_lists, edits["allowed"]
        ),
        request.set_token_lists(transforms, "banned", "banned", read_token_lists, edits["banned"]),
        request.set_token_lists(transforms, "bias", "logit_bias", read_token_values, edits["bias"]),
        *(
            request.set_token_lists(transforms, name, name, read_token_lists, counted[name])
            for name in counted
        ),
    ]
    penalised = [
        request.set_row_parameter(transforms, field, name, value, off, np.float32)
        for (field, (name, off)), value in zip(PENALTIES.items(), penalties)
    ]
    if any(penalised) and history is None and all(lists is None for lists in counted.values()):
        name, _ = list(PENALTIES.values())[penalised.index(True)]
        raise ValueError(f"{name}: requires prompt_tokens, output_tokens or a history")
    if history is not None:
        transforms.history = _check_history(request, history)
    if mask is not None:
        transforms.mask = mask
    if any(listed) or any(penalised) or history is not None or mask is not None:
        request.sampling.transforms = ctypes.pointer(transforms)


def _check_history(request: Request, history: History) -> int:
    """The address of a history's struct; raises an error if it does not fit the request."""
    if not isinstance(history, History):
        raise TypeError(f"history: expected a gumbel.History, got {type(history).__name__}")
    if history.device != request.arrays.name:
        raise ValueError(f"history: is on {history.device}, the call on {request.arrays.name}")
    if history.num_slots < request.places:
        wanted = "rows" if not request.sampling.slots.count else "slots"
        raise ValueError(
            f"history: has {history.num_slots} slots, the call has {request.places} {wanted}"
        )
    struct = history.to_struct()
    request.held += [history, struct]
    return ctypes.addressof(struct)


def _set_truncation(
    request: Request,
    min_p: RowFloats,
    top_k: RowIntegers,
    top_p: RowFloats,
    order: Orders,
    ties: str,
    programs: dict[str, Any],
) -> None:
    """Set the truncation of the request, if there is any."""
    known = ORDERS.get(order) if type(order) is str and not programs else None
    orders = (known,) if known else read_orders(order, programs.get("program") is not None)
    tie_rule = read_choice("ties", ties, TIES)
    rules = read_rules(orders, programs) if programs else {}
    if not rules and is_off(min_p, 0.0) and is_off(top_k, 0) and is_off(top_p, 1.0):
        return
    truncation = _abi.Truncation(ties=tie_rule)
    limits = {
        "min_p": request.set_row_parameter(truncation, "min_p", "min_p", min_p, 0.0, np.float32),
        "top_k": request.set_row_parameter(truncation, "top_k", "top_k", top_k, 0, np.int32),
        "top_p": request.set_row_parameter(truncation, "top_p", "top_p", top_p, 1.0, np.float32),
    }
    request.sampling.truncation = ctypes.pointer(truncation)
    if known is not None:
        truncation.order = known.value
    else:
        _set_orders(request, truncation, orders, limits, rules, programs)


def _set_orders(
    request: Request,
    truncation: _abi.Truncation,
    orders: tuple[Order, ...],
    limits: dict[str, bool],
    rules: dict[str, RuleParameter],
    programs: dict[str, Any],
) -> None:
    """Set the order of a truncation, or its programs; `limits` has the fields that are set."""
    if not rules and programs.get("program") is None and orders[0].value is not None:
        truncation.order = orders[0].value
        return
    given = [name for name, is_set in limits.items() if is_set]
    for name in given:
        check_listed(orders, name, name)
    _set_programs(request, truncation, orders, given, rules, programs)


def _set_programs(
    request: Request,
    truncation: _abi.Truncation,
    orders: tuple[Order, ...],
    limits: list[str],
    rules: dict[str, RuleParameter],
    values: dict[str, Any],
) -> None:
    """Set the programs of a truncation: orders of the rules in `limits` and `rules`."""
    on = frozenset(kind.rule for kind in rules.values() if kind.turns_on and kind.rule)
    if "temperature_range" in rules and "xtc" in on:
        check_temperature_range(orders)
    encoded = encode_programs(orders, on.union(limits))
    structs = _abi.Programs(rules=ctypes.addressof(encoded), count=len(orders))
    request.held.append(encoded)
    for name, kind in rules.items():
        if name in ROW_PARAMETERS:
            request.set_row_parameter(structs, name, name, values[name], kind.off, kind.dtype)
    request.set_token_lists(
        structs, "xtc_keep", "xtc_keep", read_token_lists, values.get("xtc_keep")
    )
    if values.get("program") is not None:
        request.set_row_parameter(structs, "program", "program", values["program"], None, np.int32)
    truncation.programs = ctypes.pointer(structs)


def read_choice(name: str, value: Any, names: Mapping[Any, int]) -> int:
    if not isinstance(value, (str, type(None))) or value not in names:
        expected = ", ".join(map(repr, names))
        raise ValueError(f"{name}: {format_value(value)} is none of {expected}")
    return names[value]


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

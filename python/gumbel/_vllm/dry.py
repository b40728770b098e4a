# SPDX-License-Identifier: Apache-2.0
"""DRY among the rules of requests: its keys, its breakers, and the checks where requests arrive."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from .._inputs.numbers import format_value, is_list
from .._inputs.recent import Recent
from .._inputs.sequences import SequenceArrays

NUMBERS = {
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_last_n": -1,
}
BREAKERS = "dry_breakers"
KEYS = (*NUMBERS, BREAKERS)
# The names of llama.cpp's server and of koboldcpp.
OTHER_NAMES = {"dry_penalty_last_n": "dry_last_n", "dry_sequence_breakers": BREAKERS}
STRINGS_MAX, LENGTH_MAX = 64, 64  # strings of a request, characters of a string


@dataclass(frozen=True)
class Dry:
    """DRY of a request."""

    numbers: dict[str, Any]  # NUMBERS
    breakers: SequenceArrays


def rename_keys(given: dict[str, Any]) -> dict[str, Any]:
    """`given` with the library's keys in place of other engines' names; ValueError for both."""
    for name, ours in OTHER_NAMES.items():
        if name in given and ours in given:
            raise ValueError(f"{name}: is another name of {ours}; pass one of them")
    return {OTHER_NAMES.get(name, name): value for name, value in given.items()}


def take_dry(values: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """Remove the keys of DRY from `values`; return them checked, or nothing if DRY is off.

    tokenizer    of the model, for breakers that are strings; None: there is none.

    Raises TypeError or ValueError naming the key.
    """
    given = {name: values.pop(name) for name in KEYS if name in values}
    for name, value in given.items():
        if name != BREAKERS and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise ValueError(f"{name}: is {format_value(value)}, expected a number")
    if given and "dry_multiplier" not in given:
        raise ValueError(f"{next(iter(given))}: requires dry_multiplier")
    if not given:
        return {}
    breakers = _read_breakers(given.pop(BREAKERS, []), tokenizer)
    multiplier = given["dry_multiplier"] or 1.0  # the other values are checked even if DRY is off
    try:
        Recent(1, 1).make_lists(**{**given, "dry_multiplier": multiplier}, dry_breakers=breakers)
    except ValueError as fault:
        raise ValueError(str(fault).replace("[0]: is ", ": is ", 1)) from None  # of one row
    return {**NUMBERS, **given, BREAKERS: breakers} if given["dry_multiplier"] else {}


def read_dry(values: dict[str, Any]) -> Optional[Dry]:
    """DRY of an admitted request; None: it is off."""
    if not values.get("dry_multiplier"):
        return None
    breakers = sorted(values[BREAKERS])
    lengths = [len(ids) for ids in breakers]
    return Dry(
        {name: values[name] for name in NUMBERS},
        SequenceArrays(
            np.cumsum([0, *lengths], dtype=np.int64),
            np.array([token for ids in breakers for token in ids], np.int32),
        ),
    )


# ------------------------------------------------------------------------------- breakers ----


def _read_breakers(given: Any, tokenizer: Any) -> list[list[int]]:
    """Breakers as sequences of token ids; strings become all sequences that may spell them."""
    if not is_list(given):
        raise ValueError(
            f"{BREAKERS}: is a {type(given).__name__}, expected a list of strings and of lists of "
            "token ids"
        )
    strings = sum(isinstance(each, str) for each in given)
    if strings > STRINGS_MAX:
        raise ValueError(f"{BREAKERS}: has {strings} strings, expected at most {STRINGS_MAX}")
    found: dict[tuple[int, ...], None] = {}
    for place, each in enumerate(given):
        name = f"{BREAKERS}[{place}]"
        if isinstance(each, str):
            found.update(dict.fromkeys(_spell_string(name, each, tokenizer)))
        elif is_list(each) and each and all(type(token) is int for token in each):
            found[tuple(each)] = None
        else:
            raise ValueError(
                f"{name}: is {format_value(each)}, expected a string or a list of token ids"
            )
    return list(map(list, found))


def _spell_string(name: str, text: str, tokenizer: Any) -> Sequence[tuple[int, ...]]:
    if not 1 <= len(text) <= LENGTH_MAX:
        raise ValueError(f"{name}: has {len(text)} characters, expected 1 to {LENGTH_MAX}")
    if tokenizer is None:
        raise ValueError(f"{name}: is a string, but the engine has no tokenizer; pass token ids")
    return _spell_by(tokenizer, text)


@functools.lru_cache(maxsize=256)
def _spell_by(tokenizer: Any, text: str) -> tuple[tuple[int, ...], ...]:
    def encode(rest: str) -> list[int]:
        return list(tokenizer.encode(rest, add_special_tokens=False))

    return tuple(find_spellings(text, _vocabulary(tokenizer), encode))


@functools.lru_cache(maxsize=4)
def _vocabulary(tokenizer: Any) -> list[str]:
    """The text of each token."""
    return [tokenizer.decode([token]) for token in range(len(tokenizer))]


def find_spellings(
    text: str, vocabulary: Iterable[str], encode: Callable[[str], list[int]]
) -> list[tuple[int, ...]]:
    """The sequences of tokens in which a breaker's text may appear, as llama.cpp finds them.

    A token that contains the text is a sequence of its own. A token that ends in the beginning of
    the text is followed by the tokens of the rest.
    """
    beginnings = [text[:length] for length in range(1, len(text))]
    known: dict[str, tuple[int, ...]] = {}
    found: dict[tuple[int, ...], None] = {}
    for token, word in enumerate(vocabulary):
        if text in word:
            found[(token,)] = None
            continue
        for beginning in beginnings:
            if not word.endswith(beginning):
                continue
            if beginning not in known:
                known[beginning] = tuple(encode(text[len(beginning) :]))
            found[(token, *known[beginning])] = None
    return list(found)

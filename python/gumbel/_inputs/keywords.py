# SPDX-License-Identifier: Apache-2.0
"""Shared keyword arguments: their signature and documentation, and errors for unknown names."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Optional, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

_ONE_TOKEN = "a call draws one token for each row; the caller writes the loop over tokens"
_LISTS = "gumbel.Recent.make_lists() makes them"
# {argument of other libraries: (argument of this package or None, note)}.
_OTHER_LIBRARIES: dict[str, tuple[Optional[str], str]] = {
    "generator": ("seed", "gumbel.Sampler counts positions"),
    "rng": ("seed", "gumbel.Sampler counts positions"),
    "random_state": ("seed", "gumbel.Sampler counts positions"),
    "greedy": ("temperature", "temperature=0 is greedy"),
    "do_sample": ("temperature", "temperature=0 is greedy"),
    "k": ("top_k", ""),
    "p": ("top_p", ""),
    "n": ("num_samples", ""),
    "num_return_sequences": ("num_samples", ""),
    "repeat_penalty": ("repetition_penalty", ""),
    "allowed_token_ids": ("allowed", ""),
    "bad_words_ids": ("banned", "which bans single tokens; gumbel.Recent bans sequences"),
    "no_repeat_ngram_size": ("lists", _LISTS),
    "ngram_size": ("lists", _LISTS),
    "dry_multiplier": ("lists", _LISTS),
    "min_new_tokens": ("lists", _LISTS),
    "repeat_last_n": ("history", "gumbel.Recent(window=...) counts the last tokens"),
    "max_tokens": (None, _ONE_TOKEN),
    "max_new_tokens": (None, _ONE_TOKEN),
    "max_length": (None, _ONE_TOKEN),
}


def take_keywords(
    shared: Sequence[inspect.Parameter],
    documentation: str,
    excluded: Sequence[str],
    reasons: Mapping[str, str],
) -> Callable[[Function], Function]:
    """Decorator: replace **keywords in signature and docstring by `shared`, without `excluded`."""

    def decorate(function: Function) -> Function:
        found = inspect.signature(function)
        own = [p for p in found.parameters.values() if p.kind is not p.VAR_KEYWORD]
        signature = found.replace(parameters=own + [p for p in shared if p.name not in excluded])
        known = frozenset(signature.parameters)
        call = _Untraced(function)

        @functools.wraps(function)
        def wrapper(*args: Any, **keywords: Any) -> Any:
            if not keywords.keys() <= known:
                _reject_unknown(function, known, excluded, reasons, keywords)
            try:
                return call.choose()(*args, **keywords)
            except ValueError as error:
                _name_scalar(error, keywords)
                raise

        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__doc__ = (
            f"{inspect.getdoc(function)}\n\n{_remove_entries(documentation, excluded)}"
        )
        decorated: Any = wrapper
        return decorated

    return decorate


class _Untraced:
    """Calls a function outside torch.compile, because PyTorch 2.11 cannot trace ctypes structs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.disabled: Optional[Callable[..., Any]] = None

    def choose(self) -> Callable[..., Any]:
        """The function to call: unchanged if torch._dynamo is not imported."""
        if self.disabled is None:
            disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
            if disable is None:
                return self.function
            self.disabled = disable(self.function)
        return self.disabled


def _name_scalar(error: ValueError, given: Mapping[str, Any]) -> None:
    """Remove the index from the error "top_p[0]: ..." if `top_p` is one number for all rows."""
    text = str(error)
    name, index, rest = text.partition("[0]: ")
    if index and isinstance(given.get(name), (int, float, np.generic)):
        error.args = (f"{name}: {rest}",)


def _remove_entries(documentation: str, excluded: Sequence[str]) -> str:
    """The documentation of arguments without the entries of those in `excluded`.

    A blank line ends the heading. An entry starts with its names in the first column of a line.
    """
    heading, blank, entries = documentation.partition("\n\n")
    kept = []
    for entry in re.split(r"\n(?=\w)", entries):
        names = re.match(r"\w+(?:, \w+)*", entry)
        if names is None or not set(names[0].split(", ")) <= set(excluded):
            kept.append(entry)
    return heading + blank + "\n".join(kept)


def _reject_unknown(
    function: Callable[..., Any],
    known: Iterable[str],
    excluded: Sequence[str],
    reasons: Mapping[str, str],
    given: Iterable[str],
) -> None:
    """Raise a TypeError for an argument that a function does not have."""
    name = next(name for name in given if name not in known)
    if name in excluded:
        reason = f": {reasons[name]}" if name in reasons else ""
        raise TypeError(f"{function.__qualname__}() takes no argument {name!r}{reason}")
    advice = _suggest_argument(name, sorted(known), reasons)
    raise TypeError(f"{function.__qualname__}() has no argument {name!r}{advice}")


def _suggest_argument(name: str, known: Sequence[str], reasons: Mapping[str, str]) -> str:
    """The end of the error message, which suggests an argument."""
    argument, note = _OTHER_LIBRARIES.get(name, (None, ""))
    if name not in _OTHER_LIBRARIES:
        argument = _find_nearest(name, known)
    elif argument is not None and argument in reasons:
        return f": {reasons[argument]}"
    elif argument is not None and argument not in known:
        return ""
    question = f"; did you mean {argument!r}?" if argument else ""
    if not note:
        return question
    return f"{question} ({note})" if question else f": {note}"


def _find_nearest(name: str, known: Sequence[str]) -> Optional[str]:
    """The known argument with equal letters, one that begins with `name`, or a similar one."""
    plain = name.replace("_", "").lower()
    letters = {each.replace("_", ""): each for each in known}
    longer = (letters[each] for each in letters if len(plain) > 2 and each.startswith(plain))
    close = difflib.get_close_matches(plain, letters, 1)
    return letters.get(plain) or next(longer, None) or (letters[close[0]] if close else None)

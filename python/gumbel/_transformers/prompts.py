# SPDX-License-Identifier: Apache-2.0
"""Checks the prompts of a batch in the caller's thread, before another thread reads them."""

from __future__ import annotations

from numbers import Integral
from typing import Any

EXPECTED = "expected a list of token ids for each prompt: tokenizer(prompts).input_ids"


def check_prompts(inputs: Any, vocab: int) -> list[list[int]]:
    """The prompts as lists of ids in [0, vocab).

    Raises TypeError if `inputs` is not a list of lists of integers, and ValueError for an empty
    prompt or an id outside the vocabulary.
    """
    if not isinstance(inputs, (list, tuple)):
        raise TypeError(f"inputs: got {_describe_type(inputs)}; {EXPECTED}")
    return [_check_prompt(f"inputs[{at}]", prompt, vocab) for at, prompt in enumerate(inputs)]


def _check_prompt(name: str, prompt: Any, vocab: int) -> list[int]:
    if not isinstance(prompt, (list, tuple)):
        raise TypeError(f"{name}: got {_describe_type(prompt)}; {EXPECTED}")
    is_plain = set(map(type, prompt)) == {int} and min(prompt) >= 0 and max(prompt) < vocab
    for at, token in enumerate(() if is_plain else prompt):
        if not isinstance(token, Integral) or isinstance(token, bool):
            raise TypeError(f"{name}[{at}]: got {_describe_type(token)}; {EXPECTED}")
        if not 0 <= token < vocab:
            raise ValueError(f"{name}[{at}]: token {token} is not in [0, {vocab})")
    if not prompt:
        raise ValueError(f"{name}: the prompt has no tokens; a text starts from at least one")
    return [int(token) for token in prompt]


def _describe_type(value: Any) -> str:
    """The type of a value, with its article, for an error message."""
    if value is None:
        return "None"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"

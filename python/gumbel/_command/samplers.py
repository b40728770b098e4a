# SPDX-License-Identifier: Apache-2.0
"""The option --samplers: an order of rules in llama.cpp's words."""

from __future__ import annotations

from typing import List

from .. import _abi
from .._inputs.numbers import format_value

# llama.cpp's other spellings of rules.
SPELLINGS = {
    "temp": "temperature",
    "min-p": "min_p",
    "top-k": "top_k",
    "top-p": "top_p",
    "nucleus": "top_p",
    "typ_p": "typical_p",
    "typical-p": "typical_p",
    "typical": "typical_p",
    "typ-p": "typical_p",
    "typ": "typical_p",
    "top-n-sigma": "top_n_sigma",
    "adaptive-p": "adaptive_p",
}
# Words of llama.cpp for changes of logits that come before all rules, in this order.
EARLY = ("penalties", "dry")


def read_samplers(text: str) -> str:
    """The `order` of explain_draw() for a list of llama.cpp's words, separated by semicolons.

    Penalties and dry have no options here and are off, so their words are only checked.
    """
    words = text.split(";")
    for word in EARLY:
        if words[0] == word and len(words) > 1:
            words.pop(0)
    rules: List[str] = []
    for word in words:
        rule = SPELLINGS.get(word, word)
        if word in EARLY:
            raise ValueError(
                f"--samplers: lists {word} after other words; penalties, then dry, must be first"
            )
        if rule not in _abi.PROGRAM_RULES:
            known = ", ".join((*EARLY, *_abi.PROGRAM_RULES))
            raise ValueError(f"--samplers: {format_value(word)} is none of {known}")
        rules.append(rule)
    if "temperature" not in rules:
        raise ValueError(
            "--samplers: lists no temperature; name the place where it is applied"
        )
    return ",".join(rules)

# SPDX-License-Identifier: Apache-2.0
"""Multipliers and soft-caps of logits, by their names in models of transformers."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Any

# Multipliers or divisors of logits; the probe of a head determines which (probe.py).
SCALES = (
    "logit_scale",  # Cohere
    "logits_scaling",  # Granite and MiniCPM3 divide by it, HyperCLOVA X multiplies
    "lm_head_multiplier",  # Falcon-H1
    "output_multiplier",  # Muse Glimmer
    "logits_mup_width_multiplier",  # Inkling
)
# A cap c: the logits are c * tanh(logits / c).
SOFTCAPS = (
    "final_logit_softcapping",  # Gemma, NanoChat, Muse Glimmer
    "logits_soft_cap",  # RecurrentGemma
    "output_logit_soft_cap",  # xLSTM
)

Values = tuple[tuple[str, float], ...]


def read_factors(config: Any, *modules: Any) -> Values:
    """(name, value) of each of SCALES and SOFTCAPS that the config or a module sets, not 0."""
    found: dict[tuple[str, float], None] = {}
    text = config.get_text_config()
    readers = [partial(getattr, each) for each in ([config] if text is config else [config, text])]
    for read in (*readers, *(vars(module).get for module in modules)):
        for name in (*SCALES, *SOFTCAPS):
            value = read(name, None)
            if isinstance(value, (int, float)) and value and math.isfinite(value):
                found[name, float(value)] = None
    return tuple(found)


def list_candidates(values: Values) -> list[tuple[float, float]]:
    """Pairs of a scale and a soft-cap (0: none) that are possible with these values."""
    scales, caps = {1.0: None}, {0.0: None}
    for name, value in values:
        if name in SCALES:
            scales.update({value: None, 1 / value: None})
        elif value > 0:
            caps[value] = None
    return list(product(scales, caps))

# SPDX-License-Identifier: Apache-2.0
"""Screens of heads on CPUs, where the engine's configuration asks for them."""

from __future__ import annotations

import time
import weakref
from typing import Any, Optional

from .._calls.screens import Screen
from .counts import logger
from .threads import threads_for

ROWS_MOST = 8  # that are drawn faster by a screen than by vLLM's product and a draw from logits

_asked = {"screen": False}
_screens: weakref.WeakKeyDictionary[Any, Screen] = weakref.WeakKeyDictionary()


def ask(config: Any) -> None:
    """Have heads of this process drawn by screens if this configuration of vLLM says so."""
    more = getattr(config, "additional_config", None)
    mine = more.get("gumbel", {}) if isinstance(more, dict) else {}
    _asked["screen"] = bool(isinstance(mine, dict) and mine.get("screen", False))


def screen_of(lm_head: Any, weight: Any) -> Optional[Screen]:
    """The screen of a head that is whole and on a CPU, made once; None where none is asked for."""
    if not _asked["screen"] or not weight.is_cpu or lm_head.tp_size != 1:
        return None
    if lm_head not in _screens:
        start = time.monotonic()
        made = _screens[lm_head] = Screen(weight, **threads_for(weight))
        logger.info(
            "gumbel: a screen of the head takes %.0f MiB beside its %.0f, and was made in %.1f s; "
            "weights that change from now on are drawn from wrongly",
            made.nbytes / 2**20,
            weight.nbytes / 2**20,
            time.monotonic() - start,
        )
    return _screens[lm_head]

# SPDX-License-Identifier: Apache-2.0
"""Screens of heads on CPUs, where the engine's configuration asks for them."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import Any, Optional

from .._calls.screens import Screen
from .counts import logger
from .threads import threads_for
from .weights import count_events, place_of, release, version_of

ROWS_MOST = 8  # that are drawn faster by a screen than by vLLM's product and a draw from logits


@dataclass
class _Kept:
    """A head's screen, and the state of its weights at the last check."""

    screen: Screen
    place: Any  # of the weights, with the identity of their tensor
    version: int
    events: int


_asked = {"screen": False}
_kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()


def ask(config: Any) -> None:
    """Have heads of this process drawn by screens if this configuration of vLLM says so."""
    more = getattr(config, "additional_config", None)
    mine = more.get("gumbel", {}) if isinstance(more, dict) else {}
    _asked["screen"] = bool(isinstance(mine, dict) and mine.get("screen", False))


def screen_of(lm_head: Any, weight: Any) -> Optional[Screen]:
    """The screen of a head that is whole and on a CPU; None where none is asked for.

    `weight` is the head's, detached. A screen is made at the first draw, and again after the
    weights have changed (weights.py says how that is detected).
    """
    if not _asked["screen"] or not weight.is_cpu or lm_head.tp_size != 1:
        return None
    events, version = count_events(), version_of(lm_head.weight)
    place = id(lm_head.weight), place_of(weight)
    kept = _kept.get(lm_head)
    if kept is not None and kept.place == place:
        if (kept.version, kept.events) == (version, events):
            return kept.screen
        if _matches(kept.screen):
            kept.version, kept.events = version, events
            return kept.screen
    made = "made" if kept is None else "made again, as the weights have changed,"
    kept = None  # the old screen goes first: two would take their memory twice
    _kept.pop(lm_head, None)
    release()
    screen = _make(weight, made)
    _kept[lm_head] = _Kept(screen, place, version, events)
    return screen


def _matches(screen: Screen) -> bool:
    """Whether a screen is still that of its weights."""
    try:
        screen.verify()
    except ValueError:
        return False
    return True


def _make(weight: Any, made: str) -> Screen:
    start = time.monotonic()
    screen = Screen(weight, **threads_for(weight))
    logger.info(
        "gumbel: a screen of the head takes %.0f MiB beside its %.0f, and was %s in %.1f s",
        screen.nbytes / 2**20,
        weight.nbytes / 2**20,
        made,
        time.monotonic() - start,
    )
    return screen

# SPDX-License-Identifier: Apache-2.0
"""Screens of heads on CPUs, if the engine's configuration enables them."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import Any, Optional

from .._calls.screens import Screen
from .counts import logger
from .threads import threads_for
from .weights import count_events, place_of, release, version_of

# Larger steps use vLLM's product. The limit is a choice, not a measured crossover: a screen is 4.3
# times as fast as PyTorch's product at 1 row, 1.8 at 8 and 1.5 at 16; vLLM's own product was not
# compared (findings/engines_vllm.md).
SCREEN_ROWS_MAX = 8


@dataclass
class _HeadScreen:
    """A head's screen, and the state of its weights at the last check."""

    screen: Screen
    place: Any  # identity, address and layout of the weight tensor
    version: int
    events: int


_options = {"screen": False}
_screens: weakref.WeakKeyDictionary[Any, _HeadScreen] = weakref.WeakKeyDictionary()


def configure(config: Any) -> None:
    """Enable screens in this process if `additional_config` of vLLM's configuration requests it."""
    additional = getattr(config, "additional_config", None)
    options = additional.get("gumbel", {}) if isinstance(additional, dict) else {}
    _options["screen"] = bool(isinstance(options, dict) and options.get("screen", False))


def screen_of(lm_head: Any, weight: Any) -> Optional[Screen]:
    """The screen of an unsharded head on a CPU; None if screens are not enabled.

    `weight` is the head's, detached. The screen is built at the first draw, and again after the
    weights have changed (weights.py documents how that is detected).
    """
    if not _options["screen"] or not weight.is_cpu or lm_head.tp_size != 1:
        return None
    events, version = count_events(), version_of(lm_head.weight)
    place = id(lm_head.weight), place_of(weight)
    found = _screens.get(lm_head)
    if found is not None and found.place == place:
        if (found.version, found.events) == (version, events):
            return found.screen
        if _matches_weights(found.screen):
            found.version, found.events = version, events
            return found.screen
    action = "made" if found is None else "made again, as the weights have changed,"
    found = None  # frees the old screen before the new one is made
    _screens.pop(lm_head, None)
    release()
    screen = _build_screen(weight, action)
    _screens[lm_head] = _HeadScreen(screen, place, version, events)
    return screen


def _matches_weights(screen: Screen) -> bool:
    """Whether a screen still matches its weights."""
    try:
        screen.verify()
    except ValueError:
        return False
    return True


def _build_screen(weight: Any, action: str) -> Screen:
    start = time.monotonic()
    screen = Screen(weight, **threads_for(weight))
    logger.info(
        "gumbel: a screen of the head takes %.0f MiB beside its %.0f, and was %s in %.1f s",
        screen.nbytes / 2**20,
        weight.nbytes / 2**20,
        action,
        time.monotonic() - start,
    )
    return screen

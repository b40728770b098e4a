# SPDX-License-Identifier: Apache-2.0
"""Finds how a model computes logits from hidden states, and finds it again after changes."""

from __future__ import annotations

import logging
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch
from transformers.generation import CompileConfig

from .._calls.screens import Weights
from .head.compiled import CompiledDecoder
from .head.head_parts import HeadParts, UnsupportedHead, find_parts
from .head.cached_screens import CachedScreen
from .head.probe import check_forward, find_factors

log = logging.getLogger("gumbel.transformers")


@dataclass(frozen=True)
class Head:
    """How a model computes logits from the last hidden state of its decoder."""

    decoder: Any  # the decoder, which returns hidden states
    weight: torch.Tensor  # [V, D]
    bias: Optional[torch.Tensor]  # [V]
    scale: float
    softcap: float
    compiled: CompiledDecoder = field(repr=False)
    _screens: list[CachedScreen] = field(default_factory=list, repr=False)  # one at most

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of a call of the library, without the weight."""
        return {"bias": self.bias, "scale": self.scale, "softcap": self.softcap}

    def weights(self, screen: bool) -> Weights:
        """The weights, or with `screen` their up-to-date screen."""
        if not screen:
            return self.weight
        if not self._screens:
            self._screens.append(CachedScreen(self.weight))
        return self._screens[0].refresh()

    def refresh_screen(self) -> None:
        """Rebuild the screen if the version counter of the weights has advanced."""
        for screen in self._screens:
            screen.refresh(compare=False)

    def get_compiled_call(self, config: Optional[CompileConfig]) -> Callable[..., Any]:
        """The decoder's forward, compiled once.

        A decoder's own get_compiled_call() reads a generation_config, which decoders do not have.
        """
        return self.compiled.get_call(config)


@dataclass(frozen=True)
class HeadResult:
    """The result of find_head(): a head, or the reason why the library cannot use the model's."""

    parts: Any  # HeadParts or UnsupportedHead
    head: Optional[Head]
    reason: str
    running: bool  # whether the model was running, so that its decoder was not probed

    def is_valid_for(self, parts: Any) -> bool:
        """Whether this result is still valid for a model with these parts."""
        if isinstance(parts, UnsupportedHead) or isinstance(self.parts, UnsupportedHead):
            return bool(parts == self.parts)
        return self.parts.is_same(parts)


_probing = threading.Lock()  # a probe replaces the forward of a model's decoder
_results: weakref.WeakKeyDictionary[Any, HeadResult] = weakref.WeakKeyDictionary()


def get_head(model: Any) -> Optional[Head]:
    """The current head of a model; None if the library cannot compute its logits."""
    return find_head(model).head


@torch.no_grad()
def find_head(model: Any) -> HeadResult:
    """Find the current head of a model. Takes 0.1 ms if nothing has changed."""
    parts, before = find_parts(model), _results.get(model)
    if before is not None and not before.running and before.is_valid_for(parts):
        if before.head is not None:
            before.head.compiled.check_hooks()
        return before
    return _store_result(model, before, _search_head(model, parts, before, False))


@torch.no_grad()
def follow_head(model: Any, before: HeadResult) -> HeadResult:
    """find_head() for a model that is running, whose decoder cannot be probed."""
    parts = find_parts(model)
    if before.is_valid_for(parts):
        return before
    return _store_result(model, before, _search_head(model, parts, before, True))


def _store_result(model: Any, before: Optional[HeadResult], found: HeadResult) -> HeadResult:
    _results[model] = found
    if found.reason and (before is None or before.reason != found.reason):
        log.warning(
            "%s: tokens are drawn from its logits, as %s", type(model).__name__, found.reason
        )
    return found


def forget(model: Any) -> None:
    """Drop the cached head of a model and its screen, and free their memory.

    The next call builds them again. Calls detect by themselves that a parameter, module or hook of
    the head was replaced. They rebuild a screen (`screen=True`) if the version counter of the
    weight has advanced, or if one of 4096 weights spread over it differs. Call forget() after other
    changes: a few weights written through `.data` or from outside PyTorch.
    """
    _results.pop(model, None)


def _search_head(model: Any, parts: Any, before: Optional[HeadResult], running: bool) -> HeadResult:
    if isinstance(parts, UnsupportedHead):
        return HeadResult(parts, None, parts.reason, False)
    old = None if before is None else before.head
    same_decoder = before is not None and old is not None and parts.has_same_decoder(before.parts)
    if running and not same_decoder:
        return HeadResult(parts, None, "its decoder or head was replaced in a run", True)
    try:
        with _probing, torch.compiler.set_stance("force_eager"):
            decoder, factors, reason = _try_decoders(model, parts, not running)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        decoder, factors, reason = None, None, f"its head failed: {type(error).__name__}: {error}"
    if factors is None:
        return HeadResult(parts, None, reason, False)
    compiled = old.compiled if old and old.decoder is decoder else CompiledDecoder(decoder)
    compiled.check_hooks()
    weight, bias = parts.weight[: factors.vocab], parts.bias
    bias = None if bias is None else bias[: factors.vocab]
    head = Head(decoder, weight, bias, factors.scale, factors.softcap, compiled)
    return HeadResult(parts, head, "", False)


def _try_decoders(model: Any, parts: HeadParts, forward: bool) -> tuple[Any, Any, str]:
    """The decoder whose states the head reads, and the factors of the logits; or None and a reason.

    `forward`: also compare the decoder's own hidden states.
    """
    reasons = []
    for decoder in parts.decoders:
        factors, reason = find_factors(model, parts, decoder)
        if factors and forward:
            reason = check_forward(model, parts, decoder, factors)
        if not reason:
            return decoder, factors, ""
        reasons.append(reason)
    return None, None, "; ".join(reasons)

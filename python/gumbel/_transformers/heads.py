# SPDX-License-Identifier: Apache-2.0
"""Finds how a model computes logits from hidden states: once, and again after changes."""

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
from .head.head_parts import Parts, Unfit, find_parts
from .head.kept_screens import KeptScreen
from .head.probe import check_forward, find_factors

log = logging.getLogger("gumbel.transformers")


@dataclass(frozen=True)
class Head:
    """How a model computes logits from the last hidden state of its decoder."""

    base: Any  # the decoder, which returns hidden states
    weight: torch.Tensor  # [V, D]
    bias: Optional[torch.Tensor]  # [V]
    scale: float
    softcap: float
    compiled: CompiledDecoder = field(repr=False)
    _screens: list[KeptScreen] = field(default_factory=list, repr=False)  # one at most

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of a call of the library, without the weight."""
        return {"bias": self.bias, "scale": self.scale, "softcap": self.softcap}

    def weights(self, screen: bool) -> Weights:
        """The weights, or with `screen` their up-to-date screen."""
        if not screen:
            return self.weight
        if not self._screens:
            self._screens.append(KeptScreen(self.weight))
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
class Found:
    """The result of find_head(): a head, or the reason why the library cannot use the model's."""

    parts: Any  # Parts or Unfit
    head: Optional[Head]
    reason: str
    running: bool  # the model was running, so its decoder was not probed

    def holds(self, parts: Any) -> bool:
        """Whether this result is valid for these parts."""
        if isinstance(parts, Unfit) or isinstance(self.parts, Unfit):
            return bool(parts == self.parts)
        return self.parts.is_same(parts)


_probing = threading.Lock()  # a probe replaces the forward of a model's decoder
_found: weakref.WeakKeyDictionary[Any, Found] = weakref.WeakKeyDictionary()


def head_of(model: Any) -> Optional[Head]:
    """The present head of a model; None: its logits are more than the library computes."""
    return find_head(model).head


@torch.no_grad()
def find_head(model: Any) -> Found:
    """The present head of a model, as Found. Takes 0.1 ms if nothing has changed."""
    parts, before = find_parts(model), _found.get(model)
    if before is not None and not before.running and before.holds(parts):
        if before.head is not None:
            before.head.compiled.check_hooks()
        return before
    return _keep(model, before, _find(model, parts, before, False))


@torch.no_grad()
def follow_head(model: Any, before: Found) -> Found:
    """As find_head(), for a model that is running, so that its decoder cannot be probed."""
    parts = find_parts(model)
    if before.holds(parts):
        return before
    return _keep(model, before, _find(model, parts, before, True))


def _keep(model: Any, before: Optional[Found], found: Found) -> Found:
    _found[model] = found
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
    _found.pop(model, None)


def _find(model: Any, parts: Any, before: Optional[Found], running: bool) -> Found:
    if isinstance(parts, Unfit):
        return Found(parts, None, parts.reason, False)
    old = None if before is None else before.head
    same_decoder = before is not None and old is not None and parts.has_same_decoder(before.parts)
    if running and not same_decoder:
        return Found(parts, None, "its decoder or head was replaced in a run", True)
    try:
        with _probing, torch.compiler.set_stance("force_eager"):
            base, factors, reason = _try_decoders(model, parts, not running)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        base, factors, reason = None, None, f"its head failed: {type(error).__name__}: {error}"
    if factors is None:
        return Found(parts, None, reason, False)
    compiled = old.compiled if old and old.base is base else CompiledDecoder(base)
    compiled.check_hooks()
    weight, bias = parts.weight[: factors.vocab], parts.bias
    bias = None if bias is None else bias[: factors.vocab]
    head = Head(base, weight, bias, factors.scale, factors.softcap, compiled)
    return Found(parts, head, "", False)


def _try_decoders(model: Any, parts: Parts, forward: bool) -> tuple[Any, Any, str]:
    """The decoder whose states the head reads, and the factors of the logits; or None and a reason.

    `forward`: also compare the decoder's own hidden states.
    """
    reasons = []
    for base in parts.bases:
        factors, reason = find_factors(model, parts, base)
        if factors and forward:
            reason = check_forward(model, parts, base, factors)
        if not reason:
            return base, factors, ""
        reasons.append(reason)
    return None, None, "; ".join(reasons)

# SPDX-License-Identifier: Apache-2.0
"""Heads: how a model's logits come from hidden states. Found once, and again where it changed."""

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
    """How a model's logits come from the last hidden state of its decoder."""

    base: Any  # the decoder, which gives hidden states
    weight: torch.Tensor  # [V, D]
    bias: Optional[torch.Tensor]  # [V]
    scale: float
    softcap: float
    compiled: CompiledDecoder = field(repr=False)
    _screens: list[KeptScreen] = field(default_factory=list, repr=False)  # one at most

    def arguments(self) -> dict[str, Any]:
        """What a call of the library takes of it, beside the weight."""
        return {"bias": self.bias, "scale": self.scale, "softcap": self.softcap}

    def weights(self, screen: bool) -> Weights:
        """What a call takes for weights: them, or their screen, which is as they are now."""
        if not screen:
            return self.weight
        if not self._screens:
            self._screens.append(KeptScreen(self.weight))
        return self._screens[0].refresh()

    def refresh_screen(self) -> None:
        """Make the screen again where the version counter of the weights has moved."""
        for screen in self._screens:
            screen.refresh(compare=False)

    def get_compiled_call(self, config: Optional[CompileConfig]) -> Callable[..., Any]:
        """The decoder's forward, compiled once.

        A decoder's own get_compiled_call() looks into a generation_config that it does not have.
        """
        return self.compiled.get_call(config)


@dataclass(frozen=True)
class Found:
    """What was found of a model: its head, or why there is none that the library can use."""

    parts: Any  # Parts or Unfit
    head: Optional[Head]
    reason: str
    running: bool  # whether the decoder could not be tried

    def holds(self, parts: Any) -> bool:
        """Whether this is what would be found of these parts."""
        if isinstance(parts, Unfit) or isinstance(self.parts, Unfit):
            return bool(parts == self.parts)
        return self.parts.is_same(parts)


_probing = threading.Lock()  # a probe stands in for the decoder of a model
_found: weakref.WeakKeyDictionary[Any, Found] = weakref.WeakKeyDictionary()


def head_of(model: Any) -> Optional[Head]:
    """The head of a model as it is now; None: its logits are more than the library computes."""
    return find_head(model).head


@torch.no_grad()
def find_head(model: Any) -> Found:
    """What is found of a model as it is now. Costs 0.1 ms where that is known."""
    parts, before = find_parts(model), _found.get(model)
    if before is not None and not before.running and before.holds(parts):
        if before.head is not None:
            before.head.compiled.check_hooks()
        return before
    return _keep(model, before, _find(model, parts, before, False))


@torch.no_grad()
def follow_head(model: Any, before: Found) -> Found:
    """The same of a model that is run step after step, so that its decoder cannot be tried."""
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
    """Forget what is kept of a model: its head and the screen of it.

    The next call finds them anew, as each call does by itself where a parameter, a module or a hook
    of the head was replaced. A screen (`screen=True`) is made again where the version counter of
    the weight has moved or one of 4096 weights spread over it differs. forget() is for the rest:
    a screen whose weight was written through `.data` or from outside PyTorch in a few places.
    It also frees their memory.
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
    """The decoder whose states the head is given and the factors of logits; else None, and why.

    `forward` says whether to compare the decoder's own hidden states, too.
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

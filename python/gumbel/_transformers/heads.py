# SPDX-License-Identifier: Apache-2.0
"""Heads: how a model's logits come from hidden states, found and tried once a model."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch
from transformers.generation import CompileConfig

from .._calls.screens import Screen, Weights

TOLERANCE = 0.02  # of the largest logit: what two products of a bfloat16 head may differ by


@dataclass(frozen=True)
class Head:
    """How a model's logits come from the last hidden state of its decoder."""

    base: Any  # the decoder, which gives hidden states
    weight: torch.Tensor  # [V, D]
    bias: Optional[torch.Tensor]  # [V]
    scale: float
    softcap: float
    _compiled: list[Any] = field(default_factory=list, repr=False)  # a config, and what it made
    _screens: list[Screen] = field(default_factory=list, repr=False)  # one at most

    def arguments(self) -> dict[str, Any]:
        """What a call of the library takes of it, beside the weight."""
        return {"bias": self.bias, "scale": self.scale, "softcap": self.softcap}

    def weights(self, screen: bool) -> Weights:
        """What a call takes for weights: them, or their screen, which is made once."""
        if not screen:
            return self.weight
        if not self._screens:
            self._screens.append(Screen(self.weight))
        return self._screens[0]

    def get_compiled_call(self, config: Optional[CompileConfig]) -> Callable[..., Any]:
        """The decoder's forward, compiled once.

        A decoder's own get_compiled_call() looks into a generation_config that it does not have.
        """
        if "llama4" in self.base.config.model_type:  # which transformers does not compile, either
            return self.base
        config = config or CompileConfig()
        if not self._compiled or self._compiled[0] != config:
            made = torch.compile(self.base.__call__, **config.to_dict())
            self._compiled[:] = [config, made]
        return self._compiled[1]


_heads: weakref.WeakKeyDictionary[Any, Optional[Head]] = weakref.WeakKeyDictionary()


def head_of(model: Any) -> Optional[Head]:
    """The head of a model, tried on a few tokens once; None: its logits are more than a product."""
    if model not in _heads:
        _heads[model] = _find_head(model, torch.arange(1, 4, device=model.device)[None])
    return _heads[model]


def forget(model: Any) -> None:
    """Try the head again: it was changed."""
    _heads.pop(model, None)


def _find_head(model: Any, ids: torch.Tensor) -> Optional[Head]:
    linear, base = model.get_output_embeddings(), model.base_model
    if type(linear) is not torch.nn.Linear or base is model or linear.weight.is_meta:
        return None
    config = model.config.get_text_config()
    head = Head(
        base,
        linear.weight.detach(),
        None if linear.bias is None else linear.bias.detach(),
        getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1),
        getattr(config, "final_logit_softcapping", None) or 0.0,
    )
    found = model(input_ids=ids, use_cache=False).logits[0, -1].float()
    hidden = base(input_ids=ids, use_cache=False).last_hidden_state[0, -1]
    logits = torch.nn.functional.linear(hidden, head.weight, head.bias).float() * head.scale
    if head.softcap:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    alike = found.shape == logits.shape and torch.allclose(
        found, logits, rtol=0, atol=TOLERANCE * float(found.abs().max())
    )
    return head if alike else None

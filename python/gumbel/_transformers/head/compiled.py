# SPDX-License-Identifier: Apache-2.0
"""Decoders with a compiled forward()."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Callable, Optional

import torch
from transformers.generation import CompileConfig

log = logging.getLogger("gumbel.transformers")

# The hooks of each decoder when it was first compiled.
_hooks: weakref.WeakKeyDictionary[Any, tuple[int, ...]] = weakref.WeakKeyDictionary()


class CompiledDecoder:
    """A decoder, and its forward() compiled with the latest CompileConfig."""

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self.config: Optional[CompileConfig] = None
        self.call: Callable[..., Any] = decoder
        self.is_stale = False

    def check_hooks(self) -> None:
        """Set `is_stale` if hooks of the decoder have changed since it was compiled.

        torch.compile() guards parameters and modules, but not hooks (skip_nnmodule_hook_guards).
        """
        if self.decoder not in _hooks:
            return
        was_stale, self.is_stale = self.is_stale, _list_hooks(self.decoder) != _hooks[self.decoder]
        if self.is_stale and not was_stale:
            log.warning(
                "%s: its steps are not compiled, as its hooks have changed since compilation",
                type(self.decoder).__name__,
            )

    def get_call(self, config: Optional[CompileConfig]) -> Callable[..., Any]:
        """The compiled forward(); the decoder itself if it cannot be compiled, or is stale."""
        if self.is_stale or "llama4" in self.decoder.config.model_type:
            return self.decoder  # transformers does not compile llama4, either
        config = config or CompileConfig()
        if self.config != config:
            _hooks.setdefault(self.decoder, _list_hooks(self.decoder))
            self.config = config
            self.call = torch.compile(self.decoder.__call__, **config.to_dict())
        return self.call


def _list_hooks(decoder: Any) -> tuple[int, ...]:
    """The ids of all forward hooks in a module; torch gives each hook a unique id."""
    return tuple(
        number
        for module in decoder.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
        for number in hooks
    )

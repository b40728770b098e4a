# SPDX-License-Identifier: Apache-2.0
"""Arguments of generate() that transformers does not hand to a decoding method from outside.

GenerationMixin.generate() takes `tokenizer`, `streamer`, `assistant_model` and `synced_gpus`, and
drops them where `custom_generate` is a function: stop_strings find no tokenizer, and a streamer
waits for ever behind the prompt. For methods that are marked here it keeps them.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, TypeVar

from transformers.generation.utils import GenerationMixin

Method = TypeVar("Method", bound=Callable[..., Any])

_MARK = "_gumbel_takes_mode_arguments"
_stock_extract = GenerationMixin._extract_generation_mode_kwargs


def takes_mode_arguments(method: Method) -> Method:
    """Mark a method that takes `tokenizer`, `streamer`, `draft_model` and `synced_gpus`."""
    setattr(method, _MARK, True)
    return method


def _is_marked(method: Any) -> bool:
    while isinstance(method, functools.partial):
        method = method.func
    return hasattr(method, _MARK)


def _extract(
    self: Any,
    custom_generate: Any,
    kwargs: dict[str, Any],
    synced_gpus: Any,
    assistant_model: Any,
    streamer: Any,
) -> Any:
    if not _is_marked(custom_generate):
        return _stock_extract(self, custom_generate, kwargs, synced_gpus, assistant_model, streamer)
    given = {"tokenizer": kwargs.get("tokenizer"), "draft_model": assistant_model}
    given = {name: value for name, value in given.items() if value is not None}
    # What it makes for its own methods: whether GPUs have to step together, for one.
    usual = _stock_extract(self, None, dict(kwargs), synced_gpus, None, streamer)
    own = _stock_extract(self, custom_generate, kwargs, synced_gpus, None, streamer)
    kept = {name: usual[name] for name in ("streamer", "synced_gpus") if name in usual}
    return {**kept, **given, **own}


GenerationMixin._extract_generation_mode_kwargs = _extract

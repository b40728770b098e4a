# SPDX-License-Identifier: Apache-2.0
"""Passes arguments of generate() to a custom decoding method.

GenerationMixin.generate() drops `tokenizer`, `streamer`, `assistant_model` and `synced_gpus` if
`custom_generate` is a function, so that stop_strings have no tokenizer and a streamer never ends.
The patch in this module keeps them for methods marked by takes_mode_arguments().
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


def _extract_arguments(
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
    # Values that generate() computes for its own methods, such as synced_gpus.
    usual = _stock_extract(self, None, dict(kwargs), synced_gpus, None, streamer)
    own = _stock_extract(self, custom_generate, kwargs, synced_gpus, None, streamer)
    kept = {name: usual[name] for name in ("streamer", "synced_gpus") if name in usual}
    return {**kept, **given, **own}


GenerationMixin._extract_generation_mode_kwargs = _extract_arguments

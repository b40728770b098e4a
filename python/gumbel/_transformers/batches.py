# SPDX-License-Identifier: Apache-2.0
"""Texts of many prompts by continuous batching, with a seed a prompt."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Optional, Sequence, Union

import torch
from transformers.generation.continuous_batching.utils import WorkloadHints

from .batching import check_psutil, find_head_of_paged, give
from .prompts import check_prompts
from .requests import CHILD
from .texts import seeds_of

STOP_SECONDS = 5.0  # that a manager has to end


class BatchError(RuntimeError):
    """A batch of which a text failed. `outputs` has the texts that were finished, by their ids."""

    def __init__(self, message: str, outputs: dict[str, Any]) -> None:
        super().__init__(message)
        self.outputs = outputs


@torch.no_grad()
def generate_batch(
    model: Any,
    inputs: Sequence[Sequence[int]],
    generation_config: Any = None,
    continuous_batching_config: Any = None,
    *,
    seed: Union[None, int, Sequence[int]] = None,
    max_new_tokens: Optional[int] = None,
    record_timestamps: bool = False,
    warmup: bool = True,
    screen: bool = False,
) -> dict[str, Any]:
    """generate_batch() of a model by the library, with a seed a prompt; no logits are formed.

    inputs       a list of token ids for each prompt, as tokenizer(prompts).input_ids has them;
                 the lists have any lengths.
    seed         an int, or one for each prompt, in [0, 2**64); None: drawn by torch's generator.
                 Text s of num_return_sequences is sample s of its prompt's seed.
    screen       draw by a screen of the head, as generate() says.
    max_new_tokens
                 None: that of the config; without one a text ends at eos_token_id alone.

    The others are generate_batch()'s own. The temperature, top_k, top_p and min_p are fused with
    the head; other processors that continuous batching has are given logits.

    Returns a GenerationOutput for each text by its request's id, those of a prompt together, in the
    order of `inputs`. Raises TypeError for prompts that are not lists of token ids, ValueError for
    ids that the model does not have, for a bad seed, for stop_strings and for texts that have no
    end, ImportError where psutil
    is needed (on a CPU), and BatchError, a RuntimeError, where a text or the manager failed; its
    `outputs` has the texts that were finished.
    """
    prompts = check_prompts(inputs, model.get_input_embeddings().weight.shape[0])
    if not prompts:
        return {}
    seeds = seeds_of(seed, len(prompts))
    check_psutil(model)
    config = model.generation_config if generation_config is None else generation_config
    if config.stop_strings is not None:
        raise ValueError(
            "generation_config.stop_strings: continuous batching does not stop at strings; "
            "set it to None and cut the texts, or call generate()"
        )
    copies = config.num_return_sequences or 1
    most = config.max_new_tokens if max_new_tokens is None else max_new_tokens
    if most is None and config.eos_token_id is None:
        raise ValueError(
            "max_new_tokens: it is not set and neither is eos_token_id, so that no text would end; "
            "pass generation_config=GenerationConfig(max_new_tokens=...)"
        )
    hints = WorkloadHints(
        max_prompt_length=max(len(prompt) for prompt in prompts),
        max_generated_length=most or 0,
        num_requests=len(prompts) * copies,
    )
    with _manager(model, config, continuous_batching_config, hints, screen) as manager:
        if warmup:
            manager.warmup()
        manager.start()
        # Prompts that begin alike come one behind the other, and share blocks of the cache.
        for at in sorted(range(len(prompts)), key=lambda at: prompts[at], reverse=True):
            manager.add_request(
                prompts[at],
                request_id=f"req_{at}",
                max_new_tokens=most,
                record_timestamps=record_timestamps,
                seed=seeds[at],
            )
        found = _results(manager, len(prompts) * copies)
    ends = ["", *(f"{CHILD}{child}" for child in range(copies - 1))]
    names = [f"req_{at}{end}" for at in range(len(prompts)) for end in ends]
    return {name: found[name] for name in names}


@contextmanager
def _manager(model: Any, config: Any, batching: Any, hints: Any, screen: bool) -> Iterator[Any]:
    """A manager that draws by the library, and has ended behind it. One that fails before it starts
    would leave the model with paged attention."""
    attention = model.config._attn_implementation
    found, manager = find_head_of_paged(model), None
    try:
        manager = model.init_continuous_batching(config, batching, hints)
        give(manager, found, screen)
        yield manager
    finally:
        if manager is not None:
            manager.stop(block=True, timeout=STOP_SECONDS)
            manager.destroy()
        if model.config._attn_implementation != attention:
            model.set_attn_implementation(attention)


def _results(manager: Any, count: int) -> dict[str, Any]:
    """The texts of `count` requests by id. Raises BatchError where one fails."""
    found: dict[str, Any] = {}
    while len(found) < count:
        output = manager.get_result(timeout=1)
        if output is None and not manager.is_running():
            ended = f"continuous batching ended with {len(found)} of {count} texts"
            raise BatchError(ended + _read_cause(manager), found)
        if output is not None and output.error is not None:
            raise BatchError(f"{output.request_id}: {output.error}", found)
        if output is not None and output.is_finished():
            found[output.request_id] = output
    return found


def _read_cause(manager: Any) -> str:
    """The error that ended a manager's thread. transformers 5.16 keeps it in another place."""
    status = getattr(manager, "background_thread_status", manager)
    error = getattr(status, "fatal_error", None)
    return "" if error is None else f": {type(error).__name__}: {error}"

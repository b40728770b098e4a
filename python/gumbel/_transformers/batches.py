# SPDX-License-Identifier: Apache-2.0
"""generate_batch(): generates from many prompts by continuous batching, with a seed per prompt."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator, Optional, Sequence, Union

import torch
from transformers.generation.continuous_batching.utils import WorkloadHints

from .batching import check_psutil, find_head_of_paged, set_draw
from .prompts import check_prompts
from .requests import CHILD
from .texts import read_seeds

STOP_SECONDS = 5.0  # how long to wait for a manager's thread to end


class BatchError(RuntimeError):
    """A text of a batch failed. `outputs` has the finished texts by request id."""

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
    """Generate texts of many prompts by continuous batching, with fused draws.

    inputs       one list of token ids for each prompt, such as tokenizer(prompts).input_ids; the
                 lists may have different lengths.
    seed         an int in [0, 2**64), or one for each prompt. None draws seeds from torch's
                 generator. With num_return_sequences, text s of a prompt is sample s of the
                 prompt's seed.
    screen       draw with a screen, a quantized copy of the head; see generate().
    max_new_tokens
                 None takes the value of generation_config. If that is None, too, a text ends only
                 at eos_token_id.

    Other arguments are those of the model's generate_batch(). Temperature, top_k, top_p and min_p
    are fused with the head. With other logits processors, tokens are drawn from processed logits.

    Returns {request id: GenerationOutput} in the order of `inputs`; the texts of a prompt are
    adjacent. Raises TypeError if a prompt is not a list of token ids; ValueError for an id outside
    the vocabulary, an invalid seed, stop_strings, or if neither max_new_tokens nor eos_token_id is
    set; ImportError if psutil is missing (on a CPU); and BatchError, a RuntimeError, if a text or
    the manager failed.
    """
    prompts = check_prompts(inputs, model.get_input_embeddings().weight.shape[0])
    if not prompts:
        return {}
    seeds = read_seeds(seed, len(prompts))
    check_psutil(model)
    config = model.generation_config if generation_config is None else generation_config
    if config.stop_strings is not None:
        raise ValueError(
            "generation_config.stop_strings: continuous batching does not stop at strings; "
            "set it to None and shorten the texts, or call generate()"
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
    with _open_manager(model, config, continuous_batching_config, hints, screen) as manager:
        if warmup:
            manager.warmup()
        manager.start()
        # Sorted, so that prompts with a common prefix are adjacent and share KV cache blocks.
        for at in sorted(range(len(prompts)), key=lambda at: prompts[at], reverse=True):
            manager.add_request(
                prompts[at],
                request_id=f"req_{at}",
                max_new_tokens=most,
                record_timestamps=record_timestamps,
                seed=seeds[at],
            )
        found = _collect_results(manager, len(prompts) * copies)
    ends = ["", *(f"{CHILD}{child}" for child in range(copies - 1))]
    names = [f"req_{at}{end}" for at in range(len(prompts)) for end in ends]
    return {name: found[name] for name in names}


@contextmanager
def _open_manager(
    model: Any, config: Any, batching: Any, hints: Any, screen: bool
) -> Iterator[Any]:
    """A manager that draws by the library. On exit, stops it and restores the model's attention."""
    attention = model.config._attn_implementation
    found, manager = find_head_of_paged(model), None
    try:
        manager = model.init_continuous_batching(config, batching, hints)
        set_draw(manager, found, screen)
        yield manager
    finally:
        if manager is not None:
            manager.stop(block=True, timeout=STOP_SECONDS)
            manager.destroy()
        if model.config._attn_implementation != attention:
            model.set_attn_implementation(attention)


def _collect_results(manager: Any, count: int) -> dict[str, Any]:
    """The texts of `count` requests by id. Raises BatchError if one fails."""
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
    """The error that ended a manager's thread, as ": type: message", or "". The supported versions
    of transformers store it in different attributes."""
    status = getattr(manager, "background_thread_status", manager)
    error = getattr(status, "fatal_error", None)
    return "" if error is None else f": {type(error).__name__}: {error}"

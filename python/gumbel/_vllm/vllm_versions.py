# SPDX-License-Identifier: Apache-2.0
"""Versions of vLLM: which ones are known, and the differences between them.

| vLLM | difference | where it is handled |
|---|---|---|
| up to 0.26 | logprobs of verified drafts take the batch, later ones its arrays | call_by_name |
| up to 0.25 | LogitsProcessor has no _apply_head() | multiply_shard |
| up to 0.27 | apply_sampling_params() has no idx_mapping | call_by_name |
| up to 0.28 | LogitsProcessor.forward() has no skip_gather | multiply_shard |
| up to 0.28 | an entry of min_toks has no flag of structured output | requests_v1 |
| up to 0.28 | V2's sample_draft() has other positions | drafting: vLLM's drafts are kept |
| up to 0.30 | the V2 sampler's add_request() also takes the prompt's length | runner_v2 |
| up to 0.30 | gather_draft_sampled() is absent: all drafts are read | read_drafts |
| up to 0.30 | apply_sampling_params() has no seq_lens_upper_bound_np | call_by_name |
| up to 0.30 | the V2 sampler has no list of logits processors | requests_v2 |
| up to 0.31 | V2 verification has no invalid_drafts | runner_v2 |
| up to 0.31 | sample_draft() has no spec_step_idx | drafting |
| up to 0.32 | sample_draft() has no num_steps | drafting |
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable
from typing import Any, Callable, Optional

import torch
import vllm

OLDEST, NEWEST = (0, 24), (0, 33)
Hook = tuple[Any, str, Callable[..., Any]]  # a class or module, a name in it, the replacement


def minor_version(version: str) -> Optional[tuple[int, int]]:
    """Major and minor number of a version; None if it has none, as that of some builds."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def is_known(version: str) -> bool:
    """Whether the plug-in was written for this version of vLLM."""
    found = minor_version(version)
    return found is not None and OLDEST <= found <= NEWEST


def unknown_version(version: str) -> Optional[str]:
    """The reason why this version of vLLM keeps its own draws; None: it is known, or newer.

    Versions newer than NEWEST must pass the checks of self_check.py.
    """
    found = minor_version(version)
    if found is not None and found >= OLDEST:
        return None
    oldest, newest = (".".join(map(str, each)) for each in (OLDEST, NEWEST))
    return f"vLLM {version} is not known, but {oldest} to {newest} are"


@functools.cache
def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def call_by_name(method: Callable[..., Any], **values: Any) -> Any:
    """Call a method of vLLM with those of `values` that are parameters of this version's."""
    names = _parameters(getattr(method, "__func__"))
    return method(**{name: value for name, value in values.items() if name in names})


def read_drafts(batch: Any, prefill_len: torch.Tensor) -> torch.Tensor:
    """The input token of each row of logits of a V2 batch; -1: a placeholder of a draft."""
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    gather = getattr(rejection_sampler, "gather_draft_sampled", None)
    if gather is None:
        read: torch.Tensor = batch.input_ids[batch.logits_indices]
        return read
    tokens: torch.Tensor
    tokens, _ = gather(
        batch.input_ids,
        batch.positions,
        batch.logits_indices,
        batch.expanded_idx_mapping,
        batch.expanded_local_pos,
        prefill_len,
    )
    return tokens


def multiply_shard(forward: Any, layer: Any, lm_head: Any, hidden: Any, bias: Any) -> Any:
    """This rank's logits of a head, scaled and capped, by LogitsProcessor.forward()."""
    if "skip_gather" in _parameters(forward):
        return forward(layer, lm_head, hidden, bias, skip_gather=True)
    if hasattr(layer, "_apply_head"):
        logits = layer._apply_head(lm_head, hidden, bias)
    else:
        logits = lm_head.quant_method.apply(lm_head, hidden, bias=bias)
    if layer.soft_cap is not None:
        logits = torch.tanh(logits / layer.soft_cap) * layer.soft_cap
    return logits if layer.scale == 1 else logits * layer.scale


# ------------------------------------------------------------------- checks of newer versions


@functools.cache
def checks_needed() -> bool:
    """Whether this process's vLLM is newer than the newest known version."""
    return not is_known(vllm.__version__)


def _accepts(hook: Callable[..., Any], stock: Callable[..., Any]) -> bool:
    """Whether a hook can stand for vLLM's function: equal names in equal order."""
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD
    ours = inspect.signature(hook, follow_wrapped=False).parameters.values()
    theirs = inspect.signature(stock).parameters.values()
    wanted = [it.name for it in ours if it.kind == named]
    found = [it.name for it in theirs if it.kind == named]
    if any(it.kind == it.VAR_POSITIONAL for it in theirs):  # torch.nn.Module.__call__
        return wanted[: len(found)] == found
    if any(it.kind == it.VAR_POSITIONAL for it in ours):
        return found[: len(wanted)] == wanted
    return found == wanted


def check_hooks(hooks: Iterable[Hook]) -> None:
    """Raise AttributeError if a function that a hook replaces is absent or has other parameters."""
    for owner, name, hook in hooks:
        if not _accepts(hook, getattr(owner, name)):
            raise AttributeError(f"{owner.__name__}.{name}() has other parameters")


def check_parameters(owner: Any, name: str, known: Iterable[str]) -> None:
    """Raise AttributeError if a method requires a parameter that is not in `known`."""
    for it in inspect.signature(getattr(owner, name)).parameters.values():
        if it.name not in known and it.name != "self" and it.default is it.empty:
            raise AttributeError(f"{owner.__name__}.{name}() requires {it.name}")

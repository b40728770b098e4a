# SPDX-License-Identifier: Apache-2.0
"""Hooks of vLLM's V1 runner: its step, its sampler, its verification of drafts, its grammars."""

from __future__ import annotations

import functools
import threading
from typing import Any, Optional

import torch
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, apply_top_k_top_p
from vllm.v1.sample.rejection_sampler import RejectionSampler
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from . import draft_requests, drafting, faults, masks
from .batch_history import end_step
from .counts import counts
from .draw_parameters import DrawParameters, LogprobsRequest
from .drawer import Drawer, drawer_of
from .lazy import defer_products, is_lazy, materialise
from .memory import reserve_in_profile
from .requests_v1 import (
    Step,
    add_draft_biases,
    read_logprobs_request,
    read_min_p,
    read_parameters,
    read_rows,
    rules_of,
)
from .self_check import attempt, is_unproven, prove_first_draw
from .support import is_served
from .vllm_versions import check_hooks

_step = threading.local()  # .now: the Step that this thread samples
_stock_dummy_run = GPUModelRunner._dummy_sampler_run
_stock_execute = GPUModelRunner.execute_model
_stock_sample = GPUModelRunner._sample
_stock_sample_tokens = GPUModelRunner.sample_tokens
_stock_forward = Sampler.forward
_stock_reject = RejectionSampler.forward
_stock_call = TopKTopPSampler.__call__
_stock_grammar = gpu_model_runner.apply_grammar_bitmask


def _now() -> Optional[Step]:
    return getattr(_step, "now", None)


@functools.wraps(_stock_execute)
def _execute_model(self: Any, *arguments: Any, **named: Any) -> Any:
    """A step's forward pass, with deferred logits."""
    with defer_products(is_served(self) and not self.broadcast_pp_output):
        return _stock_execute(self, *arguments, **named)


@functools.wraps(_stock_sample_tokens)
def _sample_tokens(self: Any, *arguments: Any, **named: Any) -> Any:
    """The end of a step; its output names the requests without a token."""
    return faults.report(_stock_sample_tokens(self, *arguments, **named))


@functools.wraps(_stock_sample)
def _sample(self: Any, logits: Any, spec_decode_metadata: Any) -> Any:
    """A step's draw; passes the runner and its drafts to the samplers, by _step."""
    if not is_served(self):
        return _stock_sample(self, logits, spec_decode_metadata)
    drafting.note_runner(self)
    drafts = None if spec_decode_metadata is None else spec_decode_metadata.num_draft_tokens
    _step.now = Step(self, drafts)
    try:
        return _stock_sample(self, logits, spec_decode_metadata)
    finally:
        _step.now = None
        end_step(self)


@functools.wraps(_stock_forward)
def _forward(
    self: Any,
    logits: Any,
    sampling_metadata: Any,
    predict_bonus_token: bool = False,
    logprobs_mode_override: Any = None,
) -> Any:
    """The sampler's forward(): one token for each request."""
    step = _now()
    rest = (predict_bonus_token, logprobs_mode_override)
    if step is None:  # a dummy run, or a runner that is not supported
        return _stock_forward(self, materialise(logits), sampling_metadata, *rest)
    mode = logprobs_mode_override or self.logprobs_mode
    found = attempt(step.runner, _read_step, step, logits, sampling_metadata, mode)
    if found is None:
        counts.stock += 1
        _step.now = None  # vLLM draws
        return _stock_forward(self, materialise(logits), sampling_metadata, *rest)
    parameters, requested = found
    if parameters is None:
        counts.processed += 1
        return _stock_forward(self, materialise(logits), sampling_metadata, *rest)
    drawn = drawer_of(step.runner).draw(logits, parameters, requested)
    tensors = None
    if requested is not None:
        tensors = LogprobsTensors(drawn.ids, drawn.logprobs, drawn.ranks)
    return SamplerOutput(sampled_token_ids=drawn.tokens, logprobs_tensors=tensors)


def _read_step(
    step: Step, logits: Any, metadata: Any, mode: str
) -> tuple[Optional[DrawParameters], Optional[LogprobsRequest]]:
    """A step's draw parameters, None if the library lacks one, and requested log-probabilities."""
    served, requested = read_logprobs_request(metadata, mode)
    parameters = read_parameters(metadata, step, len(logits)) if served else None
    prove_first_draw(step.runner, drawer_of(step.runner), logits, parameters)
    return parameters, requested


def _draw_processed(
    self: Any, logits: torch.Tensor, generators: Any, k: Any, p: Any
) -> tuple[torch.Tensor, Optional[torch.Tensor]]:
    """Draws for vLLM's own sampler, after its processors, temperature and min_p."""
    step = _now()
    if step is None:
        return _stock_call(self, logits, generators, k, p)  # type: ignore[no-any-return]
    metadata = step.runner.input_batch.sampling_metadata
    rows = read_rows(metadata, step, len(logits))
    rows["temperature"] = torch.ones_like(rows["temperature"])
    parameters, rules = DrawParameters(rows), rules_of(metadata, step, len(logits))
    if rules is not None:
        parameters = rules.add_to(parameters)
    drawn = drawer_of(step.runner).draw(logits, parameters, counted_as=None)
    returned = None
    if self.logprobs_mode.startswith("processed"):  # after the draw, which truncates itself
        returned = apply_top_k_top_p(logits, k, p)
    if self.logprobs_mode == "processed_logprobs":
        returned = returned.log_softmax(dim=-1, dtype=torch.float32)
    return drawn.tokens.view(-1), returned


# ------------------------------------------------------------------------------------- drafts


@functools.wraps(_stock_reject)
def _reject(self: Any, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
    """Verification of drafts, which are accepted while they equal the drawn tokens.

    `draft_probs`, by which a drafter has drawn, are not needed to accept equal tokens.
    """
    step = _now()
    unproven = step is not None and is_lazy(logits) and is_unproven(step.runner)
    if step is None or self.synthetic_mode or unproven:
        counts.stock += step is not None
        _step.now = None  # vLLM also draws the bonus token
        return _stock_reject(self, metadata, draft_probs, materialise(logits), sampling_metadata)
    parameters = read_parameters(sampling_metadata, step, len(metadata.num_draft_tokens))
    count, counted_as = sampling_metadata.max_num_logprobs, "logits"
    if count is not None:
        logits = materialise(logits)
    shown = logits
    if parameters is None or (count is not None and self.is_processed_logprobs_mode):
        logits = _processed(self, metadata, materialise(logits), sampling_metadata)
        rows = read_rows(sampling_metadata, step, len(metadata.num_draft_tokens))
        parameters = DrawParameters({**rows, **read_min_p(sampling_metadata)})
        counted_as = "processed"
        shown = logits if self.is_processed_logprobs_mode else shown
    found = _verified(drawer_of(step.runner), logits, parameters, metadata, counted_as)
    tensors = None
    if count is not None:
        tensors = _logprobs(self, count, metadata, shown, found)
    return SamplerOutput(sampled_token_ids=found, logprobs_tensors=tensors)


def _verified(
    drawer: Drawer, logits: Any, parameters: DrawParameters, metadata: Any, counted_as: str
) -> torch.Tensor:
    """Tokens int32 [B, most drafts + 1], -1 after the last of each request."""
    ends = metadata.cu_num_sampled_tokens
    offsets = ends.new_zeros(len(ends) + 1)
    offsets[1:] = ends
    tokens = ends.new_zeros(len(logits))
    tokens[metadata.target_logits_indices.long() + 1] = metadata.draft_token_ids
    most = metadata.max_spec_len + 1
    return drawer.verify(logits, parameters, tokens, offsets, most, counted_as)[0]


def _processed(
    self: Any, metadata: Any, logits: torch.Tensor, sampling_metadata: Any
) -> torch.Tensor:
    """Logits [n, V] after vLLM's processors, before any temperature."""
    changed = logits.to(torch.float32, copy=True)
    drafts, last = metadata.target_logits_indices.long(), metadata.bonus_logits_indices.long()
    add_draft_biases(changed, sampling_metadata, metadata)
    changed[drafts] = self.apply_logits_processors(changed[drafts], sampling_metadata, metadata)
    changed[last] = self.sampler.apply_logits_processors(changed[last], sampling_metadata, True)
    return changed


def _logprobs(self: Any, count: int, metadata: Any, logits: Any, found: Any) -> Any:
    drafts, last = metadata.target_logits_indices.long(), metadata.bonus_logits_indices.long()
    return self._get_logprobs_tensors(count, metadata, logits, logits[drafts], logits[last], found)


# ----------------------------------------------------------------------------------- grammars


@functools.wraps(_stock_grammar)
def _grammar(scheduler_output: Any, grammar_output: Any, input_batch: Any, logits: Any) -> None:
    """Store a grammar's mask with deferred logits, for the draw."""
    if not is_lazy(logits):
        _stock_grammar(scheduler_output, grammar_output, input_batch, materialise(logits))
        return
    drafts = scheduler_output.scheduled_spec_decode_tokens
    first, places = 0, {}
    for request in input_batch.req_ids:
        places[request] = first
        first += 1 + len(drafts.get(request, ()))
    constrained = grammar_output.structured_output_request_ids
    mask = masks.read_grammar_masks(
        grammar_output.grammar_bitmask,
        [1 + len(drafts.get(request, ())) for request in constrained],
        [places.get(request) for request in constrained],
        *logits.shape,
    )
    logits.mask = mask.to(logits.device, non_blocking=True)


HOOKS = (
    (GPUModelRunner, "_dummy_sampler_run", reserve_in_profile(_stock_dummy_run, drawer_of)),
    (GPUModelRunner, "execute_model", _execute_model),
    (GPUModelRunner, "sample_tokens", _sample_tokens),
    (GPUModelRunner, "_sample", _sample),
    (Sampler, "forward", _forward),
    (RejectionSampler, "forward", _reject),
    (TopKTopPSampler, "__call__", _draw_processed),
    (gpu_model_runner, "apply_grammar_bitmask", _grammar),
    *drafting.find_v1_hooks(),
    *draft_requests.find_v1_hooks(),
)


def check_calls() -> None:
    """Raise AttributeError if other functions of vLLM are called in another way than expected."""
    check_hooks(((TopKTopPSampler, "forward_native", _draw_processed),))

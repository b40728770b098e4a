# SPDX-License-Identifier: Apache-2.0
"""Hooks of vLLM's V2 runner, and the samplers that its custom_sampler() hook returns."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, Optional

import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.model_states.interface import ModelState
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.sampler import Sampler as BaseSampler
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler
from vllm.v1.worker.gpu.structured_outputs import StructuredOutputsWorker

from . import faults, masks
from .counts import counts
from .drafting import find_v2_hooks, note_sampler
from .draw_parameters import DrawParameters, LogprobsRequest
from .drawer import Drawer, Drawn
from .kept_tokens import pack_emitted, pack_kept
from .lazy import defer_products, is_deferring, is_lazy, materialise
from .memory import reserve_in_profile
from .requests_v2 import Slots
from .self_check import attempt, is_unproven, prove_first_draw
from .support import is_served
from .vllm_versions import call_by_name, check_hooks, check_parameters, read_drafts

_stock_dummy_run = GPUModelRunner._dummy_sampler_run
_stock_sample = GPUModelRunner.sample
_stock_sample_tokens = GPUModelRunner.sample_tokens
_stock_custom = ModelState.custom_sampler
_stock_grammar = StructuredOutputsWorker.apply_grammar_bitmask


# Parameters of apply_sampling_params() and _get_logprobs_tensors() of all known versions.
_SAMPLING_PARAMETERS = (
    "logits",
    "expanded_idx_mapping",
    "idx_mapping",
    "idx_mapping_np",
    "pos",
    "input_ids",
    "expanded_local_pos",
    "seq_lens_upper_bound_np",
)
_LOGPROBS_PARAMETERS = (
    "input_batch",
    "sampled",
    "num_sampled",
    "logits",
    "cu_num_logits",
    "cu_num_logits_np",
    "max_num_logprobs",
)


class Sampler:
    """vLLM's sampler of a V2 runner, with the library's draws."""

    _gumbel_serves = True  # False after a failed check: vLLM draws

    def __init__(self, base: Any) -> None:
        self.base, self.slots, self.drawer = base, Slots(base), Drawer(torch.int64)
        self.returns_masks = getattr(base, "return_sampling_mask", False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def add_request(self, slot: int, *arguments: Any) -> None:
        """Put a request into a slot; the last argument is its SamplingParams."""
        self.base.add_request(slot, *arguments)
        attempt(self, self.slots.add, slot, arguments[-1])

    def __call__(self, logits: Any, input_batch: Any) -> SamplerOutput:
        """Draw one token for each request."""
        if not is_deferring():  # a dummy run
            return self.base(logits, input_batch)
        found = attempt(self, self._read_step, logits, input_batch)
        if found is None:
            counts.stock += 1
            return self.base(materialise(logits), input_batch)
        parameters, requested = found
        if parameters is None:
            return self._processed(materialise(logits), input_batch)
        drawn = self.drawer.draw(logits, self._list_kept(parameters, input_batch), requested)
        tensors = None
        if requested is not None:
            tensors = LogprobsTensors(drawn.ids, drawn.logprobs, drawn.ranks)
        return self._output(drawn, tensors, input_batch)

    def _read_step(
        self, logits: Any, batch: Any
    ) -> tuple[Optional[DrawParameters], Optional[LogprobsRequest]]:
        """A step's draw parameters and requested log-probabilities; None: vLLM's processors."""
        served, requested = self.slots.logprobs_request(batch)
        if not served or self.base.compute_nans or not self.slots.serves(batch):
            return None, None
        parameters = self.slots.parameters(batch)
        prove_first_draw(self, self.drawer, logits, parameters)
        return parameters, requested

    def _list_kept(self, parameters: DrawParameters, batch: Any) -> DrawParameters:
        """`parameters`, with places for the kept tokens if the engine returns them."""
        if not self.returns_masks:
            return parameters
        # A power of two, because each number of places has prepared calls of its own.
        places = 1 << (self.slots.max_kept(batch) - 1).bit_length()
        return replace(parameters, kept_ids=min(places, self.slots.vocab_size))

    def _processed(self, logits: torch.Tensor, batch: Any) -> Any:
        """vLLM's own sampler, with the library's draw in place of its own."""
        counts.processed += 1
        base = self.base
        listed: list[Any] = []
        self.slots.skip(batch)

        def draw(*arguments: Any, return_logprobs: bool) -> tuple[torch.Tensor, torch.Tensor]:
            processed = base.apply_sampling_params(*arguments, skip_top_k_top_p=True)
            parameters = self._list_kept(self.slots.processed_parameters(batch), batch)
            drawn = self.drawer.draw(processed, parameters, counted_as=None)
            listed.append(pack_kept(drawn, self.slots.vocab_size))
            if base.logprobs_mode.startswith("processed"):
                processed = _truncate(base, processed, batch)
            return drawn.tokens.view(-1), processed

        base.sample = draw
        if self.returns_masks:  # those of the draw replace vLLM's
            base.return_sampling_mask = False
        try:
            found = base(logits, batch)
        finally:
            del base.sample
            if self.returns_masks:
                base.return_sampling_mask = True
        if self.returns_masks:
            found.sampling_mask_tensors = listed[0]
        return found

    def _output(self, drawn: Drawn, logprobs: Any, batch: Any) -> SamplerOutput:
        sampled, rejected = count_tokens(self.base, batch.seq_lens.new_ones(batch.num_reqs), batch)
        found = SamplerOutput(
            sampled_token_ids=drawn.tokens,
            logprobs_tensors=logprobs,
            num_nans=None,
            num_sampled=sampled,
            num_rejected=rejected,
        )
        if self.returns_masks:
            found.sampling_mask_tensors = pack_kept(drawn, self.slots.vocab_size)
        return found


def count_tokens(base: Any, sampled: torch.Tensor, batch: Any) -> Any:
    """Numbers of sampled and rejected tokens of each request; 0 during a prompt's prefill."""
    return get_num_sampled_and_rejected(
        sampled,
        batch.seq_lens,
        batch.cu_num_logits,
        batch.idx_mapping,
        base.req_states.prefill_len.gpu,
    )


class Verifier:
    """vLLM's rejection sampler; drafts are accepted while they equal the drawn tokens."""

    def __init__(self, base: Any, sampler: Sampler) -> None:
        self.base, self.sampler = base, sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def __call__(
        self,
        logits: Any,
        input_batch: Any,
        draft_logits: Optional[torch.Tensor] = None,
        invalid_drafts: Optional[torch.Tensor] = None,
    ) -> SamplerOutput:
        """The tokens of each request: accepted drafts and one drawn token.

        `draft_logits`, from which a drafter has drawn, are not needed to accept equal tokens.
        """
        sampler, batch = self.sampler, input_batch
        unproven = is_lazy(logits) and is_unproven(sampler)
        if sampler.base.compute_nans or unproven or not is_deferring():
            counts.stock += is_deferring()
            sampler.slots.skip(batch)
            rest = () if invalid_drafts is None else (invalid_drafts,)
            return self.base(materialise(logits), batch, draft_logits, *rest)
        states = sampler.base.sampling_states
        tokens = read_drafts(batch, sampler.base.req_states.prefill_len.gpu)
        wanted = states.max_num_logprobs(batch.idx_mapping_np)
        if wanted != NO_LOGPROBS:
            logits = materialise(logits)
        shown, counted_as = logits, "logits"
        shows_processed = sampler.base.logprobs_mode.startswith("processed")
        sampler.slots.skip(batch)
        if sampler.slots.serves_drafts(batch) and not (wanted != NO_LOGPROBS and shows_processed):
            parameters = sampler.slots.listed_parameters(batch)
        else:
            logits = _processed(sampler.base, materialise(logits), batch, tokens)
            parameters = DrawParameters(sampler.slots.rows(batch, processed=True))
            counted_as = "processed"
            shown = logits if shows_processed else shown
        if invalid_drafts is not None:
            tokens = tokens.masked_fill(invalid_drafts, -1)
        most = self.base.num_speculative_steps + 1
        parameters = sampler._list_kept(parameters, batch)
        found, emitted, kept = sampler.drawer.verify(
            logits, parameters, tokens.int(), batch.cu_num_logits, most, counted_as
        )
        found = found.long()
        tensors = None
        if wanted != NO_LOGPROBS:
            if shows_processed:
                shown = _truncate(sampler.base, shown, batch)
            tensors = call_by_name(
                self.base._get_logprobs_tensors,
                input_batch=batch,
                sampled=found,
                num_sampled=emitted,
                logits=shown,
                cu_num_logits=batch.cu_num_logits,
                cu_num_logits_np=batch.cu_num_logits_np,
                max_num_logprobs=wanted,
            )
        sampled, rejected = count_tokens(sampler.base, emitted, batch)
        output = SamplerOutput(
            sampled_token_ids=found,
            logprobs_tensors=tensors,
            num_nans=None,
            num_sampled=sampled,
            num_rejected=rejected,
        )
        if sampler.returns_masks:
            output.sampling_mask_tensors = pack_emitted(
                kept, emitted, batch.cu_num_logits, sampler.slots.vocab_size, most
            )
        return output


def _processed(base: Any, logits: torch.Tensor, batch: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [n, V] after vLLM's processors, temperature and min_p, before top_k and top_p."""
    changed: torch.Tensor = call_by_name(
        base.apply_sampling_params,
        logits=logits,
        expanded_idx_mapping=batch.expanded_idx_mapping,
        idx_mapping=batch.idx_mapping,
        idx_mapping_np=batch.idx_mapping_np,
        pos=batch.positions[batch.logits_indices],
        input_ids=tokens,
        expanded_local_pos=batch.expanded_local_pos,
        seq_lens_upper_bound_np=batch.seq_lens_cpu_upper_bound.numpy(),
        skip_top_k_top_p=True,
    )
    return changed


def _truncate(base: Any, logits: torch.Tensor, batch: Any) -> torch.Tensor:
    """Logits for vLLM's processed log-probabilities, truncated after the draw, which truncates."""
    cut: torch.Tensor = base.sampling_states.apply_top_k_top_p(
        logits, batch.expanded_idx_mapping, batch.idx_mapping_np
    )
    return cut


def _drawing_sampler(runner: Any) -> Optional[Sampler]:
    """The sampler of a runner's steps; None: vLLM draws."""
    found = runner.sampler
    return found if isinstance(found, Sampler) and found._gumbel_serves else None


def _drawer_of(runner: Any) -> Optional[Drawer]:
    """The drawer of a runner's steps; None: vLLM draws. Also has drafts drawn by it."""
    sampler = _drawing_sampler(runner)
    note_sampler(runner, sampler)  # before graphs are captured
    return None if sampler is None else sampler.drawer


@functools.wraps(_stock_sample)
def _sample(self: Any, *arguments: Any, **named: Any) -> Any:
    """A step's draw, with deferred logits."""
    sampler = _drawing_sampler(self)
    note_sampler(self, sampler)
    if sampler is not None:
        attempt(sampler, sampler.slots.hold_values)  # of captured drafts
    with defer_products(sampler is not None):
        return _stock_sample(self, *arguments, **named)


@functools.wraps(_stock_sample_tokens)
def _sample_tokens(self: Any, *arguments: Any, **named: Any) -> Any:
    """The end of a step; its output names the requests without a token."""
    return faults.report(_stock_sample_tokens(self, *arguments, **named))


@functools.wraps(_stock_custom)
def _custom_sampler(self: Any, sampler: Any) -> Any:
    """The library's samplers, if the configuration is supported and the model has none itself."""
    own = _stock_custom(self, sampler)
    if own is not None or not is_served(self):
        return own
    drawing = attempt(self, Sampler, sampler)
    if drawing is None:
        return None
    drafts = self.vllm_config.speculative_config
    if drafts is None:
        return drawing, None
    return drawing, Verifier(RejectionSampler(sampler, drafts, self.device), drawing)


@functools.wraps(_stock_grammar)
def _grammar(
    self: Any, logits: Any, input_batch: Any, grammar_req_ids: Any, grammar_bitmask: Any
) -> None:
    """Store a grammar's mask with deferred logits, for the draw."""
    if not is_lazy(logits):
        _stock_grammar(self, materialise(logits), input_batch, grammar_req_ids, grammar_bitmask)
        return
    if not grammar_req_ids:
        return
    ends = input_batch.cu_num_logits_np
    places = [input_batch.req_ids.index(request) for request in grammar_req_ids]
    mask = masks.read_grammar_masks(
        grammar_bitmask,
        [int(ends[place + 1] - ends[place]) for place in places],
        [int(ends[place]) for place in places],
        *logits.shape,
    )
    logits.mask = mask.to(logits.device, non_blocking=True)


HOOKS = (
    (GPUModelRunner, "_dummy_sampler_run", reserve_in_profile(_stock_dummy_run, _drawer_of)),
    (GPUModelRunner, "sample", _sample),
    (GPUModelRunner, "sample_tokens", _sample_tokens),
    (ModelState, "custom_sampler", _custom_sampler),
    (StructuredOutputsWorker, "apply_grammar_bitmask", _grammar),
    *find_v2_hooks(),
)


def check_calls() -> None:
    """Raise AttributeError if other functions of vLLM are called in another way than expected."""
    check_hooks(
        (
            (BaseSampler, "__call__", Sampler.__call__),
            (RejectionSampler, "__call__", Verifier.__call__),
        )
    )
    for name in ("sample", "apply_sampling_params"):
        check_parameters(BaseSampler, name, _SAMPLING_PARAMETERS)
    check_parameters(RejectionSampler, "_get_logprobs_tensors", _LOGPROBS_PARAMETERS)
    check_parameters(RejectionSampler, "__init__", ("sampler", "spec_config", "device"))
    check_parameters(BaseSampler, "add_request", ("req_idx", "sampling_params"))

# SPDX-License-Identifier: Apache-2.0
"""Patches of continuous batching that make the library draw the tokens of each step."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Optional

import torch
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingTemperatureLogitsWarper,
    ContinuousBatchingTopKLogitsWarper,
    ContinuousBatchingTopPLogitsWarper,
)
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
from transformers.generation.continuous_batching.model_runner import ModelRunner
from transformers.utils import is_psutil_available

from .. import torch as operators  # noqa: F401, registers torch.ops.gumbel
from .._calls.screens import Screen
from .heads import HeadResult, Head, find_head, follow_head
from .requests import add_lines, read_line_seeds
from .rules import Rules, read_rules
from .stops import check_drawn

# Inputs of a step that a decoder's forward does not take.
NON_DECODER_INPUTS = ("logits_to_keep", "logits_indices", "logits_processor_args")
# Processors with a value for each request: the parameter that they hold.
PER_REQUEST: dict[type, str] = {
    ContinuousBatchingTemperatureLogitsWarper: "temperature",
    ContinuousBatchingTopKLogitsWarper: "top_k",
    ContinuousBatchingTopPLogitsWarper: "top_p",
}
DTYPES = {
    "temperature": torch.float32,
    "top_k": torch.int32,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "typical_p": torch.float32,
    "epsilon": torch.float32,
    "eta": torch.float32,
}


class BatchDraw:
    """Draws one token of each request that a step completes."""

    def __init__(self, manager: Any, found: HeadResult, screen: bool) -> None:
        processors, greedy = manager.logit_processor, not manager.generation_config.do_sample
        rules = read_rules(processors.logits_processor, manager.model.device)
        if rules is not None and rules.has_logit_edits():
            rules = None
        self.model, self.by_screen = manager.model, screen
        lines = {} if greedy else _find_lines(processors.logits_processor)
        self.fused = (
            None if rules is None else _DrawParameters(rules, greedy, lines, self.model.device)
        )
        self.processed = _DrawParameters(Rules(), greedy, {}, self.model.device)
        self._use_head(found)
        self.copies = manager.num_return_sequences
        self.logprobs = "processed" if manager.continuous_batching_config.return_logprobs else None
        self.first = add_lines(processors)

    def _use_head(self, found: HeadResult) -> None:
        """Draw with this head in later steps, or from logits if the result has no head."""
        self.found = found
        self.head: Optional[Head] = None if self.fused is None else found.head
        self.weights = self.head.weights(self.by_screen) if self.head is not None else None
        self.screen: dict[str, Any] = {}  # arguments of torch.ops.gumbel.sample
        if isinstance(self.weights, Screen):
            self.screen = {"screen": self.weights.bytes, "screen_format": self.weights.format}

    def follow_model(self, in_graphs: bool) -> None:
        """Use the model's current head, if the head has changed since the last step.

        Raises RuntimeError if steps are CUDA graphs (`in_graphs`), which read the old weights.
        """
        if self.fused is None:
            return
        found = follow_head(self.model, self.found)
        if found is self.found:
            if self.head is not None and self.by_screen:
                self.head.refresh_screen()
        elif in_graphs:
            raise RuntimeError(
                "model: its head was replaced while continuous batching runs it in CUDA graphs; "
                "create another manager, or write new weights in place"
            )
        else:
            self._use_head(found)

    def __call__(
        self, runner: Any, model: Any, batch: dict[str, Any], output: torch.Tensor
    ) -> None:
        """Run the model on a step, and write the drawn tokens into `output` [1 or 2, >= n]."""
        lines, indices = batch["logits_processor_args"], batch["logits_indices"]
        count = indices.shape[0]
        parameters = self.processed if self.head is None else self.fused or self.processed
        common = {
            **parameters.read(lines),
            "seed": read_line_seeds(lines, self.first),
            "position": batch["position_ids"][0, indices].long(),
            "logprobs": self.logprobs,
        }
        if self.copies > 1:
            common["first_sample"] = lines[self.first + 2]
        if self.head is None:
            scores = _process_logits(runner, model, batch)
            drawn = torch.ops.gumbel.sample_logits(scores, **common)
        else:
            given = {name: value for name, value in batch.items() if name not in NON_DECODER_INPUTS}
            hidden = self.head.decoder(**given).last_hidden_state[0, indices]
            drawn = torch.ops.gumbel.sample(
                hidden, self.head.weight, **self.screen, **self.head.arguments(), **common
            )
        if indices.device.type == "cpu" and not torch.compiler.is_compiling():
            check_drawn(drawn[0][:, 0])
        output[0, :count].copy_(drawn[0][:, 0])
        if self.logprobs:
            output[1, :count].copy_(drawn[2][:, 0].contiguous().view(torch.int32))


class _DrawParameters:
    """Temperature and truncation of a draw: from lines of a step, or constant for all requests."""

    def __init__(self, rules: Rules, greedy: bool, lines: dict[str, int], device: Any) -> None:
        values = rules.library_arguments(greedy)
        self.lines = {name: line for name, line in lines.items() if name in values}
        self.constants = {
            name: _make_constant(name, value, device)
            for name, value in values.items()
            if name not in self.lines
        }

    def read(self, lines: torch.Tensor) -> dict[str, Any]:
        """The keyword arguments of an operator."""
        own = {name: lines[line].view(DTYPES[name]) for name, line in self.lines.items()}
        return {**own, **self.constants}


def _find_lines(processors: Any) -> dict[str, int]:
    """{parameter: index of the line with its value for each request}."""
    own = [p for p in processors if isinstance(p, ContinuousBatchingLogitsProcessor)]
    return {PER_REQUEST[type(p)]: line for line, p in enumerate(own) if type(p) in PER_REQUEST}


def _make_constant(name: str, value: Any, device: Any) -> Any:
    """A parameter of all requests as a tensor, or unchanged if operators take a Python value."""
    return torch.tensor(value, dtype=DTYPES[name], device=device) if name in DTYPES else value


def _process_logits(runner: Any, model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Processed logits [n, V] after the input tokens from which tokens are drawn."""
    indices = batch["logits_indices"]
    logits = model(**batch).logits[0]
    if "logits_to_keep" not in batch:
        logits = logits[indices]
    ids = batch["input_ids"][0, indices]
    scores: torch.Tensor
    scores = runner.logit_processor(ids, logits.float(), batch["logits_processor_args"])
    return scores.contiguous()


_stock_step = ModelRunner._forward_process_and_sample
_stock_compute = ModelRunner.compute_batch
_stock_init = ContinuousBatchingManager.__init__


def _run_step(
    self: Any,
    model: Any,
    batch_data: dict[str, Any],
    carry_over_ids: torch.Tensor,
    prev_output_ids: torch.Tensor,
    output_ids: torch.Tensor,
) -> None:
    """A step of a model runner; draws by the library if set_draw() was called for its manager."""
    draw = getattr(self.logit_processor, "gumbel_draw", None)
    if draw is None:
        _stock_step(self, model, batch_data, carry_over_ids, prev_output_ids, output_ids)
        return
    self.inputs_and_outputs.carry_over_tokens(
        batch_data["input_ids"], carry_over_ids, prev_output_ids
    )
    draw(self, model, batch_data, output_ids)


def _compute_batch(self: Any, model: Any, batch_data: dict[str, Any]) -> None:
    """Use a changed head before each step. Runs on the host, outside compiled and captured code."""
    draw = getattr(self.logit_processor, "gumbel_draw", None)
    if draw is not None:
        stream = self.inputs_and_outputs.compute_stream
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            draw.follow_model(self.use_cuda_graph_varlen or self.use_cuda_graph_decode)
    _stock_compute(self, model, batch_data)


ModelRunner._forward_process_and_sample = _run_step
ModelRunner.compute_batch = _compute_batch


@torch.no_grad()
def find_head_of_paged(model: Any) -> HeadResult:
    """find_head() for a model with paged attention, which is disabled while the head is probed."""
    attention = model.config._attn_implementation
    if not attention.startswith("paged|"):
        return find_head(model)
    model.set_attn_implementation(attention[len("paged|") :])
    try:
        return find_head(model)
    finally:
        model.set_attn_implementation(attention)


def set_draw(manager: Any, found: HeadResult, screen: bool) -> None:
    """Make the library draw for a manager that has not started, if `screen` with a screen."""
    if hasattr(manager.logit_processor, "gumbel_draw"):
        return
    if manager.batch_processor is not None:
        raise RuntimeError(
            "model: its cached manager uses the draws of transformers; call "
            "destroy_cached_continuous_batching_manager() first"
        )
    manager.logit_processor.gumbel_draw = BatchDraw(manager, found, screen)


def check_psutil(model: Any) -> None:
    """Raise ImportError if psutil is missing, which transformers needs to measure host memory."""
    if model.device.type == "cpu" and not is_psutil_available():
        raise ImportError("continuous batching on a CPU needs psutil: pip install psutil")


def _init_manager(self: Any, model: Any, *arguments: Any, **named: Any) -> None:
    check_psutil(model)
    found = find_head_of_paged(model)
    _stock_init(self, model, *arguments, **named)
    set_draw(self, found, _patched["screen"])


_patched = {"screen": False}


def patch_continuous_batching(*, screen: bool = False) -> None:
    """Make the library draw for every continuous-batching manager created later in this process.

    add_request() of a manager then takes `seed`, an int whose low 64 bits are used; without one,
    torch's generator draws a seed. The texts of num_return_sequences are the samples of the seed.
    Steps form no logits, in CUDA graphs and compiled steps, too. generate_batch() does not
    require this call.

    screen       draw by screens of heads; see generate().
    """
    _patched["screen"] = screen
    ContinuousBatchingManager.__init__ = _init_manager

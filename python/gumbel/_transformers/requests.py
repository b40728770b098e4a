# SPDX-License-Identifier: Apache-2.0
"""Passes the seeds and samples of continuous-batching requests to the device.

transformers keeps an int32 tensor [lines, requests] with the per-request values of logits
processors, fills it on the host at each step and copies it to the device; this works with CUDA
graphs, compiled and overlapped steps. Three processors that change no scores add lines to it: the
two words of a seed, and the index of the sample.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)

CHILD = "__child#"  # separates the id of a request from the number of one of its further texts


class RequestLine(ContinuousBatchingLogitsProcessor):
    """A logits processor that stores a number for each request and leaves scores unchanged."""

    supported_kwargs = {"seed": int}
    ignored_kwargs = ()

    def __init__(self, number: Callable[[Any], int]) -> None:
        self.number = number

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        numbers = [self.number(request.state) for request in requests_with_new_token]
        return torch.tensor(numbers, dtype=torch.int64).to(torch.int32)  # its low 32 bits

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        return scores


def get_seed(state: Any) -> int:
    """The seed of a request, whose low 64 bits are used; drawn by torch if none was passed."""
    given = state.logit_processor_kwargs
    if "seed" not in given:
        given["seed"] = int(torch.randint(0, 2**63 - 1, ()))
    seed: int = given["seed"]
    return seed


def get_sample(state: Any) -> int:
    """The index of a request's text among the texts of its prompt."""
    _, child, number = state.request_id.rpartition(CHILD)
    return int(number) + 1 if child else 0


def add_lines(processors: ContinuousBatchingLogitsProcessorList) -> int:
    """Add the lines of seeds and samples; returns the index of the first line."""
    first: int = processors.tensors_required
    lines = [
        RequestLine(lambda state: get_seed(state) & 0xFFFFFFFF),
        RequestLine(lambda state: get_seed(state) >> 32 & 0xFFFFFFFF),
        RequestLine(get_sample),
    ]
    processors.logits_processor.extend(lines)
    processors.tensors_required += len(lines)
    processors.do_processing = True
    processors._retrieve_processors_kwargs()
    return first


def read_line_seeds(lines: torch.Tensor, first: int) -> torch.Tensor:
    """The seeds int64 [n] of the requests, from lines `first` and first + 1."""
    low, high = lines[first].long(), lines[first + 1].long()
    return high << 32 | low & 0xFFFFFFFF

# SPDX-License-Identifier: Apache-2.0
"""What a request of continuous batching is drawn with, on its way to the device.

transformers keeps one int32 tensor [lines, requests] for what logits processors have a value a
request of, fills it on the host at each step and copies it to the device: so it holds for CUDA
graphs, compiled steps and overlapped ones. Three processors that change no scores add lines: two
words of a seed, and which sample of it a request is.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)

CHILD = "__child#"  # between the id of a request and the number of a further text of it


class Line(ContinuousBatchingLogitsProcessor):
    """A number of each request, which scores pass by."""

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


def seed_of(state: Any) -> int:
    """The seed of a request, of which the low 64 bits count; made by torch where none was given."""
    given = state.logit_processor_kwargs
    if "seed" not in given:
        given["seed"] = int(torch.randint(0, 2**63 - 1, ()))
    seed: int = given["seed"]
    return seed


def sample_of(state: Any) -> int:
    """Which text of its prompt a request writes; further ones come of the first."""
    _, child, number = state.request_id.rpartition(CHILD)
    return int(number) + 1 if child else 0


def add_lines(processors: ContinuousBatchingLogitsProcessorList) -> int:
    """Add the lines of seeds and samples; the index of the first."""
    first: int = processors.tensors_required
    lines = [
        Line(lambda state: seed_of(state) & 0xFFFFFFFF),
        Line(lambda state: seed_of(state) >> 32 & 0xFFFFFFFF),
        Line(sample_of),
    ]
    processors.logits_processor.extend(lines)
    processors.tensors_required += len(lines)
    processors.do_processing = True
    processors._retrieve_processors_kwargs()
    return first


def seeds_in(lines: torch.Tensor, first: int) -> torch.Tensor:
    """The seeds that lines [lines, n] hold from `first` on: int64 [n], whose bits count."""
    low, high = lines[first].long(), lines[first + 1].long()
    return high << 32 | low & 0xFFFFFFFF

# SPDX-License-Identifier: Apache-2.0
"""The contestants of bench_post.py: logits [B, V] in, a token a row out, at T = 1.

`prepare(logits)` returns a function that queues one step on the current stream, which may be
capturing a graph, and returns the tokens, [B] or [B, 1].
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Callable

import gumbel.torch  # noqa: F401, registers torch.ops.gumbel
import torch


@dataclass
class Contestant:
    name: str
    about: str
    draws: str  # a description of its tokens
    exact: bool  # new exact samples of the softmax at each step, which is checked
    prepare: Callable[[torch.Tensor], Callable[[], torch.Tensor]]


def softmax_multinomial(logits):
    return torch.multinomial(torch.softmax(logits, -1, dtype=torch.float32), 1)


def gumbel_noise(logits):
    """Float32 noise by two logarithms; torch.rand may give 0, which the clamp keeps finite."""
    uniform = torch.rand(logits.shape, dtype=torch.float32, device=logits.device)
    return -torch.log(-torch.log(uniform.clamp_(min=torch.finfo(torch.float32).tiny)))


def noise_once(logits):
    noise = gumbel_noise(logits)
    return lambda: torch.argmax(logits + noise, -1)


def fresh_noise(logits):
    return torch.argmax(logits + gumbel_noise(logits), -1)


def prepare(function):
    return lambda logits: functools.partial(function, logits)


def compiled(function):
    """A contestant compiled by PyTorch, for each shape."""
    return prepare(torch.compile(function, dynamic=False))


def ours(logits):
    """The library: one seed a row; the position advances in each step."""
    seed = torch.arange(1, len(logits) + 1, device=logits.device)
    position = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)

    def step():
        position.add_(1)
        given = {"seed": seed, "position": position, "logprobs": None}
        return torch.ops.gumbel.sample_logits(logits, **given)[0]

    return step


def flashinfer(logits):
    """Seed and offset in device memory, as FlashInfer requires of calls in a graph."""
    from flashinfer import sampling

    state = {
        name: torch.full((1,), 7, dtype=torch.int64, device=logits.device)
        for name in ("seed", "offset")
    }

    def step():
        state["offset"].add_(4 * logits.shape[1])
        return sampling.sampling_from_logits(logits, **state)

    return step


def contestants(device: str) -> list[Contestant]:
    few_bits = "the softmax, except tokens far rarer than 2^-24"
    found: list[Any] = [
        ("multinomial", "softmax, torch.multinomial", few_bits, True,
         prepare(softmax_multinomial)),
        ("noise made once", "argmax of logits + noise made once, reused",
         "nothing: one token for the same logits, at every step", False, noise_once),
        ("fresh noise", "the same, noise made at each step", few_bits, True,
         prepare(fresh_noise)),
    ]
    if device == "cuda":
        found += [
            ("multinomial, compiled", "softmax, torch.multinomial, torch.compile", few_bits, True,
             compiled(softmax_multinomial)),
            ("fresh noise, compiled", "noise made at each step, torch.compile", few_bits, True,
             compiled(fresh_noise)),
        ]
    found += [
        ("FlashInfer", "FlashInfer, sampling_from_logits", few_bits, True, flashinfer),
        ("gumbel", "libgumbel, sample_logits", "the softmax", True, ours),
    ]
    return [Contestant(*one) for one in found]

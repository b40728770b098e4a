# SPDX-License-Identifier: Apache-2.0
"""A whole decode step as one CUDA graph: trunk, head, draw, and the advance of positions.

No host work is part of the step, so the difference between two ways to draw is the gain of an
engine. On a CPU the step is called instead.
"""

from __future__ import annotations

import time

import gumbel.torch  # noqa: F401, registers torch.ops.gumbel
import torch
from qwen_shapes import REQUESTS, make_prompts
from spread import describe, in_turns
from transformers import StaticCache
from transformers.generation import logits_process

LENGTH = 128  # capacity of the cache in tokens; a static cache is read as a whole
START = 48  # position at which each turn begins
REPLAYS = 4  # a turn


def stock_draw(request):
    """Draws as transformers does: a float32 copy, its processors, softmax and multinomial."""
    chain = []
    if request["temperature"] != 1:
        chain.append(logits_process.TemperatureLogitsWarper(request["temperature"]))
    if request["top_k"]:
        chain.append(logits_process.TopKLogitsWarper(request["top_k"]))
    if request["top_p"] < 1:
        chain.append(logits_process.TopPLogitsWarper(request["top_p"]))

    def draw(step, hidden):
        scores = step.logits(hidden).to(copy=True, dtype=torch.float32)
        for processor in chain:
            scores = processor(step.ids, scores)
        return torch.multinomial(torch.softmax(scores, -1), 1)

    return draw


def make_parameters(request, device):
    """The request as parameters of the library, in tensors."""
    dtypes = {"temperature": torch.float32, "top_k": torch.int32, "top_p": torch.float32}
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    tensors = {
        name: torch.tensor(request[name], dtype=dtype, device=device)
        for name, dtype in dtypes.items()
        if request[name] != off[name]
    }
    return {"order": "hf", "logprobs": None, **tensors}


def logits_draw(request, device):
    common = make_parameters(request, device)
    return lambda step, hidden: torch.ops.gumbel.sample_logits(
        step.logits(hidden), seed=step.seed, position=step.position, **common
    )[0]


def fused_draw(request, device):
    common = make_parameters(request, device)
    return lambda step, hidden: torch.ops.gumbel.sample(
        hidden, step.weight, seed=step.seed, position=step.position, **common
    )[0]


class Step:
    """A model's decode step for `batch` sequences, each with a token at START; `tokens` [B, 1] are
    the last drawn tokens."""

    def __init__(self, model, shape, batch, device):
        self.model, self.device, self.vocab = model, device, shape.vocab
        self.weight = model.lm_head.weight.detach()
        self.trunk = torch.compile(
            model.model.forward, dynamic=False, **({} if device == "cuda" else {"backend": "eager"})
        )
        self.cache = StaticCache(config=model.config, max_cache_len=LENGTH)
        self.first = make_prompts(batch, shape, device)
        self.ids = self.first[:, -1:].clone()
        self.tokens = torch.zeros_like(self.ids)
        self.seed = torch.arange(1, batch + 1, device=device)
        self.position = torch.full((batch,), START, device=device)
        self.slots = torch.arange(LENGTH, device=device)
        self.model.model(input_ids=self.first, past_key_values=self.cache, use_cache=True)
        for layer in self.cache.layers:  # random keys stand for a text longer than the prompt
            layer.keys[:, :, :START].normal_()
            layer.values[:, :, :START].normal_()
        self.restart()

    def restart(self):
        self.position.fill_(START)
        self.ids.copy_(self.first[:, -1:])
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(START)

    def logits(self, hidden):
        return self.model.lm_head(hidden)

    def hidden(self):
        seen = self.slots <= self.position[:, None, None, None]
        out = self.trunk(
            input_ids=self.ids,
            position_ids=self.position[:, None],
            attention_mask={"full_attention": seen},
            past_key_values=self.cache,
            use_cache=True,
        )
        return out.last_hidden_state[:, -1].contiguous()

    def run(self, draw):
        tokens = draw(self, self.hidden())
        if tokens is not None:
            self.tokens.copy_(tokens)
            self.ids.copy_(tokens)
        self.position += 1


def make_draws(device):
    """name -> how it draws; "trunk" and "head" draw nothing."""
    found = {"trunk": lambda step, hidden: None, "head": head_alone}
    for name, request in REQUESTS.items():
        found[f"stock, {name}"] = stock_draw(request)
        found[f"logits, {name}"] = logits_draw(request, device)
        found[f"fused, {name}"] = fused_draw(request, device)
    return found


def head_alone(step, hidden):
    step.logits(hidden)


class Steps:
    """Every way to draw as a graph of its own, over one cache."""

    def __init__(self, model, shape, batch, device):
        self.step = Step(model, shape, batch, device)
        self.graphs, self.skipped, self.peak_bytes = {}, {}, {}
        self.pool = torch.cuda.graph_pool_handle() if device == "cuda" else None
        self.draws = make_draws(device)  # kept alive, because graphs read their tensors
        for name, draw in self.draws.items():
            try:
                self.graphs[name] = self._capture(draw)
            except Exception as error:  # the others continue
                self.skipped[name] = error
        self._check(batch)

    def _capture(self, draw):
        """A function that queues one step."""
        for _ in range(2):  # compiles, tunes and allocates before the capture
            self.step.restart()
            self.step.run(draw)
        if self.pool is None:
            return lambda: self.step.run(draw)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self.step.run(draw)
        return graph.replay

    def _drawn(self, name):
        self.step.restart()
        self.graphs[name]()
        found = self.step.tokens[:, 0].clone()
        if found.min() < 0 or found.max() >= self.step.vocab:
            raise ValueError(f"{name}: tokens are not in [0, {self.step.vocab})")
        return found

    def _check(self, batch):
        """Checks that tokens are valid ids, and that fused draws equal draws from logits, except
        for near ties in bfloat16."""
        for name in REQUESTS:
            names = [f"{way}, {name}" for way in ("logits", "fused", "stock")]
            drawn = {each: self._drawn(each) for each in names if each in self.graphs}
            if names[0] in drawn and names[1] in drawn:
                differing = int((drawn[names[0]] != drawn[names[1]]).sum())
                if differing > 2 + batch // 5:
                    raise ValueError(f"{name}: {differing} of {batch} tokens differ, fused or not")
            moved = self.step.position - START
            if not bool((moved == 1).all()):
                raise ValueError(f"{name}: a step counts positions on by {moved.tolist()}")

    def _time(self, name):
        self.step.restart()
        return time_steps(self.graphs[name], self.step.device)

    def measure(self, rounds):
        """name -> spread of a step, in microseconds."""
        turns = {name: lambda name=name: self._time(name) for name in self.graphs}
        return {name: describe(times) for name, times in in_turns(turns, rounds).items()}


def time_steps(replay, device):
    """The mean microseconds of a step in a sequence of steps, as a list with one element."""
    if device != "cuda":
        begin = time.perf_counter()
        replay()
        return [(time.perf_counter() - begin) * 1e6]
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replay()  # keeps the GPU busy until the next replays are queued
    begin.record()
    for _ in range(REPLAYS):
        replay()
    end.record()
    end.synchronize()
    return [begin.elapsed_time(end) * 1e3 / REPLAYS]

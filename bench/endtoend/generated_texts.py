# SPDX-License-Identifier: Apache-2.0
"""Texts by generate() and generate_batch(): by transformers alone ("stock"), with gumbel's draw
from logits, and fused."""

from __future__ import annotations

import time
from contextlib import contextmanager
from unittest import mock

import gumbel.transformers
import torch
import transformers
from decode_steps import make_parameters
from gumbel._transformers.decoding import _decode_texts
from gumbel._transformers.texts import Texts
from qwen_shapes import PROMPT_TOKENS, REQUESTS, make_prompts
from spread import describe, in_turns
from transformers.generation import ContinuousBatchingConfig, StoppingCriteria
from transformers.generation.continuous_batching.cache import PagedAttentionCache

TOKENS = 32  # of a text
SKIPPED = 6  # first tokens of a text, during which graphs of a new cache are captured
NEAR_TIE = 2**-6  # of a logit in bfloat16: four roundings


class Clock(StoppingCriteria):
    """Never stops a text; notes the time of each call, one a token."""

    def __init__(self):
        self.times = []

    def __call__(self, input_ids, scores, **_):
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def steps(self):
        """Microseconds of each token after the first SKIPPED."""
        pairs = zip(self.times[SKIPPED:], self.times[SKIPPED + 1 :])
        return [(after - before) * 1e6 for before, after in pairs]


class LogitsDraw:
    """Draws of a decoding method: gumbel's operator on the logits of the model's head."""

    def __init__(self, request, texts):
        self.texts = texts
        self.common = make_parameters(request, texts.seed.device)
        self.seed = texts.seed.view(torch.int64)

    def select_rows(self, out):
        return out.logits[:, -1]

    def __call__(self, rows, input_ids):
        drawn = torch.ops.gumbel.sample_logits(
            rows, seed=self.seed, position=self.texts.position, **self.common
        )
        return drawn[0][:, 0].long()


def from_logits(request):
    """A decoding method for generate(custom_generate=...)."""

    @torch.no_grad()
    def decode(
        model, input_ids, logits_processor=None, stopping_criteria=None, generation_config=None,
        synced_gpus=False, streamer=None, **kwargs
    ):
        draw = LogitsDraw(request, Texts(input_ids, kwargs.get("attention_mask"), 1, 1))
        given = (stopping_criteria, generation_config, synced_gpus, streamer, kwargs)
        return _decode_texts(model, input_ids, None, draw, *given)[0]

    return decode


def compile_config(device):
    """The compile configuration: on a GPU transformers' default (None), on a CPU eager without a
    compiler."""
    if device == "cuda":
        return None
    config = transformers.CompileConfig(backend="eager", mode=None)
    config._compile_all_devices = True
    return config


class Generate:
    """generate() with a static cache and a compiled forward."""

    def __init__(self, model, shape, batch, device):
        self.model, self.shape, self.device = model, shape, device
        self.ids = make_prompts(batch, shape, device)
        self.ways, self.skipped, self.peak_bytes = {}, {}, {}
        self._check_greedy()
        for name, request in REQUESTS.items():
            given = {"do_sample": True, **request}
            fused = {"custom_generate": gumbel.transformers.generate, "seed": 1}
            self._add(f"stock, {name}", given)
            self._add(f"logits, {name}", {**given, "custom_generate": from_logits(request)})
            self._add(f"fused, {name}", {**given, **fused})

    def run(self, tokens=TOKENS, **given):
        return self.model.generate(
            self.ids,
            attention_mask=torch.ones_like(self.ids),
            max_new_tokens=tokens,
            cache_implementation="static",
            compile_config=compile_config(self.device),
            pad_token_id=0,
            **given,
        )

    def _check_greedy(self):
        """Checks that stock and fused greedy texts are equal up to the first near tie of each."""
        stock = self.run(do_sample=False, return_dict_in_generate=True, output_logits=True)
        fused = self.run(do_sample=False, custom_generate=gumbel.transformers.generate)
        if self.device == "cuda":
            torch.cuda.empty_cache()
        theirs, ours = stock.sequences[:, PROMPT_TOKENS:], fused[:, PROMPT_TOKENS:]
        for row, differs in enumerate((theirs != ours).tolist()):
            if True in differs:
                at = differs.index(True)
                logits = stock.logits[at][row].float()
                best, other = logits[theirs[row, at]].item(), logits[ours[row, at]].item()
                if best - other > NEAR_TIE * abs(best):
                    raise ValueError(f"greedy texts differ: logits {best:.4g} and {other:.4g}")

    def _add(self, name, given):
        """Adds a way to generate texts, or records why it fails; checks that its tokens are valid
        ids."""
        try:
            self.run(**given)  # compiles before the measurement
            base = self._memory(reset=True)
            found = self.run(**given)
            if found.min() < 0 or found.max() >= self.shape.vocab:
                raise ValueError(f"tokens are not in [0, {self.shape.vocab})")
            if found.shape[1] != PROMPT_TOKENS + TOKENS:
                raise ValueError(f"{found.shape[1]} tokens, not {PROMPT_TOKENS + TOKENS}")
            self.peak_bytes[name] = self._memory() - base
            self.ways[name] = lambda: self._time(given)
        except Exception as error:  # the others continue
            self.skipped[name] = error

    def _memory(self, reset=False):
        """Allocated bytes now, or the maximum since the last reset; 0 on a CPU."""
        if self.device != "cuda":
            return 0
        torch.cuda.synchronize()
        if reset:
            torch.cuda.reset_peak_memory_stats()
            return torch.cuda.memory_allocated()
        return torch.cuda.max_memory_allocated()

    def _time(self, given):
        clock = Clock()
        self.run(stopping_criteria=transformers.StoppingCriteriaList([clock]), **given)
        return clock.steps()

    def measure(self, rounds):
        return {name: describe(times) for name, times in in_turns(self.ways, rounds).items()}


@contextmanager
def zeroed_caches():
    """Clears paged caches at their allocation. transformers leaves them uninitialised, and steps
    with padding read them; a NaN there makes transformers' own draw end the process in an
    assertion."""
    begin = PagedAttentionCache.__init__

    def begin_with_zeros(cache, *args, **kwargs):
        begin(cache, *args, **kwargs)
        for layer in (*cache.key_cache, *cache.value_cache):
            layer.zero_()

    with mock.patch.object(PagedAttentionCache, "__init__", begin_with_zeros):
        yield


class GenerateBatch:
    """generate_batch(): continuous batching of `batch` prompts that all begin at once."""

    def __init__(self, model, shape, batch, device):
        self.model, self.shape, self.batch, self.device = model, shape, batch, device
        self.prompts = make_prompts(batch, shape, "cpu").tolist()
        self.ways, self.skipped, self.peak_bytes = {}, {}, {}
        for name, request in REQUESTS.items():
            config = transformers.GenerationConfig(
                max_new_tokens=TOKENS, eos_token_id=-1, pad_token_id=0, do_sample=True, **request
            )
            for way in ("stock", "fused"):
                self.ways[f"{way}, {name}"] = lambda way=way, config=config: self._time(way, config)

    def _batching(self):
        """A cache for these texts alone, so that several workers can share a GPU.

        Steps are CUDA graphs; without flash attention, transformers captures them only with
        use_cuda_graph=True. Eager steps of the 1.7B shape took the host 100 ms and more.
        """
        return ContinuousBatchingConfig(
            use_cuda_graph=self.device == "cuda",
            num_blocks=3 * self.batch // 2 + 4,
            block_size=64,
            max_batch_tokens=max(64, self.batch * PROMPT_TOKENS),
            max_requests_per_batch=self.batch,
        )

    def _time(self, way, config):
        given = (self.prompts, config, self._batching())
        with zeroed_caches():
            if way == "stock":
                found = self.model.generate_batch(*given, record_timestamps=True)
            else:
                found = gumbel.transformers.generate_batch(
                    self.model, *given, seed=1, record_timestamps=True
                )
        return self._steps(list(found.values()))

    def _steps(self, texts):
        """Microseconds of each token of the first text behind the first ones."""
        for text in texts:
            if text.error is not None or len(text.generated_tokens) != TOKENS:
                raise ValueError(f"{text.error or len(text.generated_tokens)}, not {TOKENS} tokens")
            if not 0 <= min(text.generated_tokens) <= max(text.generated_tokens) < self.shape.vocab:
                raise ValueError(f"tokens are not in [0, {self.shape.vocab})")
        if len(texts) != self.batch:
            raise ValueError(f"{len(texts)} texts, not {self.batch}")
        times = texts[0].timestamps[SKIPPED:]
        return [(after - before) * 1e6 for before, after in zip(times, times[1:])]

    def measure(self, rounds):
        """Measures the ways in turns, each in its own batch; a way that fails is skipped."""
        times = in_turns({name: lambda name=name: self._try(name) for name in self.ways}, rounds)
        return {name: describe(found) for name, found in times.items() if found}

    def _try(self, name):
        if name in self.skipped:
            return []
        try:
            return self.ways[name]()
        except Exception as error:  # the others still compete
            self.skipped[name] = error
            return []

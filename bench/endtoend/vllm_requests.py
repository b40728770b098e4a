# SPDX-License-Identifier: Apache-2.0
"""The requests of bench_vllm_gpu.py: sampling parameters by kind, and prompts."""

import random

PROMPT = 16  # tokens
KINDS = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 1.0},
    "top_k_top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "top_p": {"temperature": 1.0, "top_p": 0.95},
    "min_p": {"temperature": 0.8, "min_p": 0.05},
    "penalties": {"temperature": 0.8, "repetition_penalty": 1.1, "presence_penalty": 0.2},
    "penalties_logprobs": {
        "temperature": 0.8, "repetition_penalty": 1.1, "presence_penalty": 0.2, "logprobs": 5,
    },
    "seeds": {"temperature": 1.0, "seed": 1},
    "seeds_top_k_top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "seed": 1},
    "logprobs": {"temperature": 0.8, "logprobs": 5},
}
MEASURED = [kind for kind in KINDS if kind not in ("seeds_top_k_top_p", "logprobs")]


def make_prompt(row, vocab):
    """Token ids of a row's prompt, the same in every run."""
    draw = random.Random(977 * row)
    return [draw.randrange(vocab // 100, vocab) for _ in range(PROMPT)]


def make_parameters(kind, row, tokens, changes=None):
    """Arguments of SamplingParams for a row. With a seed in the kind, rows have different seeds."""
    found = {**KINDS[kind], "max_tokens": tokens, "ignore_eos": True, "detokenize": False}
    if "seed" in found:
        found["seed"] += 1000 * row
    return {**found, **(changes or {})}


class RandomRequests:
    """An endless source of requests with random kinds and output lengths, for random batch sizes.

    most    largest batch size
    tokens  largest output length
    """

    def __init__(self, vocab, most, tokens):
        self.draw = random.Random(0)
        self.vocab, self.most, self.tokens = vocab, most, tokens
        self.count = 0

    def draw_number(self):
        """A random batch size, in 1..most."""
        return self.draw.randint(1, self.most)

    def next(self):
        """The next request: (name, prompt, arguments of SamplingParams)."""
        self.count += 1
        row = self.draw.randrange(1 << 20)
        kind = self.draw.choice(list(KINDS))
        parameters = make_parameters(kind, row, self.draw.randint(1, self.tokens))
        return f"request-{self.count}", make_prompt(row, self.vocab), parameters

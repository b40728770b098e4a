# SPDX-License-Identifier: Apache-2.0
"""Texts that vLLM writes with the plugin are as likely, by the model, as those that it writes
without; a temperature wrong by 5% is detected, by 10% with top_k and top_p.

Compared is the mean log-probability of a token at temperature 1, whose error is estimated from the
sums of whole texts. 512 texts by each engine, or 4,096 with GUMBEL_NIGHTLY=1.
"""

import os

import numpy as np
import pytest
from vllm_jobs import PROMPTS, need_vllm, request, run

need_vllm()

COUNT, TOKENS = 4096 if os.environ.get("GUMBEL_NIGHTLY") else 512, 32
# Parameters, and a temperature that is wrong.
KINDS = {"plain": ({}, 1.05), "truncated": ({"top_k": 50, "top_p": 0.95}, 1.1)}


def write_texts(plugin):
    """For each kind and temperature, the log-probabilities [COUNT, TOKENS] of the tokens."""
    rounds, names = [], []
    for kind, (options, wrong) in KINDS.items():
        for temperature in (1.0, wrong) if plugin else (1.0,):
            names.append((kind, temperature))
            rounds.append([
                request(
                    PROMPTS[row % len(PROMPTS)], TOKENS, logprobs=0,
                    **{**options, "temperature": temperature},
                )
                for row in range(COUNT)
            ])
    job = run(rounds, plugin=plugin, seed=11, max_num_seqs=128)
    if plugin:
        job.assert_drawn(0, "fused")
    found = {}
    for name, written in zip(names, job.rounds):
        texts = [each["texts"][0] for each in written["requests"]]
        found[name] = np.array([
            [step[str(token)][0] for token, step in zip(text["ids"], text["logprobs"])]
            for text in texts
        ])
    return found


def compare_means(one, other):
    """The difference of the means, and its standard deviation, by the means of whole texts."""
    one, other = one.mean(1), other.mean(1)
    deviation = np.sqrt(one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other))
    return one.mean() - other.mean(), deviation


@pytest.fixture(scope="module")
def texts():
    return write_texts(False), write_texts(True)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_as_likely_as_stock_ones(texts, kind):
    stock, ours = texts
    difference, deviation = compare_means(stock[kind, 1.0], ours[kind, 1.0])
    print(f"{kind}: {difference:.4f}, 95% within {1.96 * deviation:.4f}")
    assert abs(difference) < 4 * deviation
    # A hotter draw writes less likely tokens.
    difference, deviation = compare_means(stock[kind, 1.0], ours[kind, KINDS[kind][1]])
    assert difference > 4 * deviation

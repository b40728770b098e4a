# SPDX-License-Identifier: Apache-2.0
"""Acceptance rates that are set, and the model of costs of findings/drafts.md.

Two random models almost never agree, so the quality of the draft model is set: a hash of request
and position determines, with a probability, whether the drafter proposes the text's own token.
"""

from __future__ import annotations

import numpy as np

TRIALS = 64  # salts of which the best is used


def hash_uniformly(salt, shape):
    """Numbers in [0, 1) that are functions of salt, request and slot: float64 [requests, slots]."""
    requests, slots = shape
    with np.errstate(over="ignore"):
        bits = np.arange(requests, dtype=np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
        bits = bits + np.arange(slots, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
        bits += np.uint64(salt) * np.uint64(0x8CB92BA72F3D8DD7)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
        bits ^= bits >> np.uint64(31)
    return (bits >> np.uint64(11)) * 2.0**-53


def expect_tokens(rate, drafts):
    """Mean number of tokens of a cycle if each draft is accepted with probability `rate`."""
    return sum(rate**i for i in range(drafts + 1))


def count_emitted(agree, start, drafts, cycles):
    """The tokens that each request emits in `cycles` cycles that begin with the root at `start`.

    agree [requests, slots] is true where the drafter proposes the text's token.
    """
    requests = np.arange(len(agree))
    root = np.full(len(agree), start)
    for _ in range(cycles):
        drafted = agree[requests[:, None], root[:, None] + 1 + np.arange(drafts)]
        root = root + 1 + np.logical_and.accumulate(drafted, 1).sum(1)
    return root - start


def choose_agreement(rate, shape, start, drafts, cycles):
    """The table `agree` of `shape`, and the tokens that each request emits.

    A short run with few requests may be lucky. Of several salts of the hash, the one whose number
    of tokens is nearest to the expectation is used, so that runs compare models of time alone.
    """
    expected = expect_tokens(rate, drafts) * cycles * shape[0]
    best = None
    for salt in range(TRIALS):
        agree = hash_uniformly(salt, shape) < rate
        emitted = count_emitted(agree, start, drafts, cycles)
        distance = abs(emitted.sum() - expected)
        if best is None or distance < best[0]:
            best = distance, agree, emitted
    return best[1:]


def predict_speed_up(tokens, times, drafts):
    """The model of findings/drafts.md: time of plain steps for `tokens` tokens, over the time of
    the cycle that emits them.

    times  microseconds of steps that were measured separately, by name. The first step of a draft
           reads two tokens: the last draft may not be in the drafter's cache.
    """
    plain = times["target, 1 token"] + times["draw"]
    draft = times["draft, 2 tokens"] + (drafts - 1) * times["draft, 1 token"]
    draft += drafts * times["draft's draw"]
    return tokens * plain / (draft + times["target, all nodes"] + times["verify"])

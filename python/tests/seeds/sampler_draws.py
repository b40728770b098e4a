# SPDX-License-Identifier: Apache-2.0
"""Logits for tests of Sampler, and their draws by a sampler and by calls with explicit seeds."""

import gumbel
import numpy as np
import pytest

B, V, D, STEPS = 4, 300, 16, 5
RNG = np.random.default_rng(8)
WEIGHT = RNG.normal(size=(V, D)).astype(np.float32)
HIDDEN = RNG.normal(size=(STEPS, B, D)).astype(np.float32)
LOGITS = np.stack([step @ WEIGHT.T for step in HIDDEN])


def tokens_of(out):
    return out.tokens.tolist()


def draw_by_sampler(sampler, steps=range(STEPS), **more):
    return [tokens_of(sampler.sample_logits(LOGITS[t], **more)) for t in steps]


def draw_by_calls(seed, steps=range(STEPS), first=0, **more):
    return [
        tokens_of(gumbel.sample_logits(LOGITS[t], seed=seed, position=first + i, **more))
        for i, t in enumerate(steps)
    ]


def gumbel_row_seed(seed, row):
    return gumbel._abi.lib.gumbel_row_seed(seed, row)


BAD_SEEDS = [
    (-1, ValueError, r"seed: -1 is not in \[0, 18446744073709551615\]"),
    (2**64, ValueError, "seed: 18446744073709551616 is not in"),
    (1.0, TypeError, "seed: expected an integer, got float"),
    (True, TypeError, "seed: expected an integer, got bool"),
    ("7", TypeError, "seed: expected an integer, got str"),
    (b"7", TypeError, "seed: expected an integer, got bytes"),
    (np.nan, TypeError, "seed: expected an integer"),
    ([1, -1, 2, 3], ValueError, r"seed\[1\]: -1 is not in"),
    ([1, 2.5, 2, 3], TypeError, r"seed\[1\]: expected an integer"),
    ([1, True, 2, 3], TypeError, r"seed\[1\]: expected an integer, got bool"),
    ([1, 2], ValueError, r"seed: expected one value or the shape \(4,\)"),
    (np.ones(4), TypeError, "seed: "),
    (np.ones((2, 2), int), ValueError, "seed: "),
    ({}, TypeError, "seed: "),
]


@pytest.fixture
def cuda():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    return torch

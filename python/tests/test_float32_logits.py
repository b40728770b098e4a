# SPDX-License-Identifier: Apache-2.0
"""Logits of a fused draw are float32 and not rounded further: tokens and log-probabilities on the
head of the bundled model, against the dot product that docs/maths.md states, in plain NumPy."""

import functools
import json
import os
from pathlib import Path

import gumbel
import numpy as np
import oracle
import pytest

MODELS = Path(__file__).resolve().parents[2] / "tests" / "models"
NUMPY_DTYPES = {"F32": np.float32, "BF16": np.uint16}
ISAS = [os.environ["GUMBEL_ISA"]] if os.environ.get("GUMBEL_ISA") else gumbel.info().isas


def read_tensor(path, name):
    """A tensor of a safetensors file; bfloat16 as uint16."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    about = json.loads(data[8:start])[name]
    first, last = (start + offset for offset in about["data_offsets"])
    return np.frombuffer(data[first:last], NUMPY_DTYPES[about["dtype"]]).reshape(about["shape"])


def dot_products(hidden, weight):
    """float32 logits [B, V] of float32 arrays that hold bfloat16 values, by docs/maths.md.

    float64 holds a product of two such values, and its sum with a float32 number, without an error
    that a rounding to float32 could show, so that each line rounds once, as fma does.
    """
    groups = np.moveaxis(weight.reshape(len(weight), -1, 16, 2).astype(np.float64), 0, -1)
    logits = np.empty((len(hidden), len(weight)), np.float32)
    for row, states in zip(logits, hidden.reshape(len(hidden), -1, 16, 2).astype(np.float64)):
        lanes = np.zeros((16, len(weight)), np.float32)
        for state, group in zip(states, groups):
            for half in (0, 1):
                product = state[:, half, None] * group[:, half]
                lanes = (lanes + product).astype(np.float32)
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
        row[:] = lanes[0]
    return logits


WEIGHT = read_tensor(MODELS / "kjv-target/model.safetensors", "model.embed_tokens.weight")
HIDDEN = oracle.bfloat16_bits(read_tensor(MODELS / "golden.safetensors", "target.hidden"))
LOGITS = dot_products(oracle.widen(HIDDEN), oracle.widen(WEIGHT))
EXACT = oracle.widen(HIDDEN).astype(np.float64) @ oracle.widen(WEIGHT).astype(np.float64).T
ROUNDED = oracle.widen(oracle.bfloat16_bits(LOGITS))
B, V = LOGITS.shape


def half_ulp(values):
    return np.spacing(np.abs(values).astype(np.float32)).astype(np.float64) / 2


def log_softmax(logits):
    wide = logits.astype(np.float64)
    top = wide.max(1, keepdims=True)
    return wide - top - np.log(np.exp(wide - top).sum(1, keepdims=True))


def logprob_errors(found, tokens, logits):
    """(errors [B, S] of log-probabilities against a float64 log-softmax, their bounds)."""
    places = tokens.astype(np.int64)
    expected = np.take_along_axis(log_softmax(logits), places, 1)
    z = np.take_along_axis(logits, places, 1).astype(np.float64)
    bounds = 2.0**-20 + half_ulp(z - expected) + half_ulp(expected)
    return np.abs(found - expected), bounds


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rules", [{}, {"temperature": 0.8, "top_p": 0.95, "top_k": 200}])
def test_a_fused_draw_is_a_draw_from_unrounded_logits(isa, rules):
    """Every output has the bits of a draw from the float32 logits."""
    how = {**rules, "num_samples": 16, "seed": np.arange(B), "position": 5, "isa": isa}
    more = {"ranks": True, "top_logprobs": 8, "kept": True}
    fused = gumbel.sample(HIDDEN, WEIGHT, **how, **more)
    drawn = gumbel.sample_logits(LOGITS, **how, **more)
    for name in ("tokens", "logprobs", "lse", "ranks", "kept", "top_ids", "top_logprobs"):
        found, expected = getattr(fused, name), getattr(drawn, name)
        np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32), name)
    rounded = gumbel.sample_logits(ROUNDED, **how, **more)
    assert (rounded.tokens != drawn.tokens).any()  # the test detects logits rounded to bfloat16
    assert (rounded.lse != drawn.lse).mean() > 0.9


@pytest.mark.parametrize("isa", ISAS)
def test_greedy_tokens_are_the_largest_logits(isa):
    found = gumbel.sample(HIDDEN, WEIGHT, temperature=0.0, isa=isa).tokens[:, 0]
    np.testing.assert_array_equal(found, LOGITS.argmax(1))
    np.testing.assert_array_equal(found, EXACT.argmax(1))
    hidden = read_tensor(MODELS / "golden.safetensors", "target.hidden")
    golden = read_tensor(MODELS / "golden.safetensors", "target.logits")
    found = gumbel.sample(hidden[: len(golden)], WEIGHT, temperature=0.0, isa=isa).tokens[:, 0]
    np.testing.assert_array_equal(found, golden.argmax(1))


@functools.cache
def make_near_ties():
    """(hidden, logits) of HIDDEN moved so that the two largest logits of a row nearly tie."""
    rows, weight = np.arange(B), oracle.widen(WEIGHT)
    best, second = np.argsort(-LOGITS, axis=1, kind="stable")[:, :2].T
    towards = weight[second] - weight[best]
    step = (LOGITS[rows, best] - LOGITS[rows, second]) / (towards**2).sum(1)
    hidden = oracle.bfloat16_bits(oracle.widen(HIDDEN) + step[:, None] * towards)
    return hidden, dot_products(oracle.widen(hidden), weight)


@pytest.mark.parametrize("isa", ISAS)
def test_near_ties_are_decided_by_float32_logits(isa):
    hidden, logits = make_near_ties()
    found = gumbel.sample(hidden, WEIGHT, temperature=0.0, isa=isa).tokens[:, 0]
    np.testing.assert_array_equal(found, logits.argmax(1))
    rounded = oracle.widen(oracle.bfloat16_bits(logits))  # which ties or reverses many of them
    assert (rounded.argmax(1) != found).mean() > 0.1
    assert ((rounded == rounded.max(1, keepdims=True)).sum(1) > 1).mean() > 0.1


@pytest.mark.parametrize("isa", ISAS)
def test_logprobs_are_within_the_documented_error(isa):
    """docs/maths.md: 2^-20 + half an ulp of lse; the subtraction of lse adds half an ulp."""
    out = gumbel.sample(HIDDEN, WEIGHT, num_samples=8, seed=3, position=np.arange(B), isa=isa)
    errors, bounds = logprob_errors(out.logprobs, out.tokens, LOGITS)
    assert (errors <= bounds).all(), (errors - bounds).max()
    # The dot product's own error: 16 fma and 4 additions in sequence, relative to sum |w| |h|.
    depth = WEIGHT.shape[1] / 16 + 4
    sizes = np.abs(oracle.widen(HIDDEN)) @ np.abs(oracle.widen(WEIGHT)).T
    dot_bounds = depth * 2.0**-24 * sizes.max(1, keepdims=True)
    errors, bounds = logprob_errors(out.logprobs, out.tokens, EXACT)
    assert (errors <= bounds + 2 * dot_bounds).all()
    rounded = gumbel.score_logits(ROUNDED, out.tokens, isa=isa).logprobs
    errors, bounds = logprob_errors(rounded, out.tokens, LOGITS)
    assert (errors > bounds).mean() > 0.9 and np.median(errors) > 1e-3


@pytest.mark.parametrize("isa", ISAS)
def test_a_trainer_that_scores_by_the_library_has_the_rollouts_logprobs(isa):
    out = gumbel.sample(HIDDEN, WEIGHT, num_samples=3, seed=9, isa=isa, temperature=0.7)
    again = gumbel.score(HIDDEN, WEIGHT, out.tokens, isa=isa, temperature=0.7)
    np.testing.assert_array_equal(again.logprobs.view(np.int32), out.logprobs.view(np.int32))

# SPDX-License-Identifier: Apache-2.0
"""Parameters for engines with continuous batching: slots, live rows, given and allowed tokens."""

import gumbel
import numpy as np
import oracle
import pytest
from gumbel._inputs.arguments import read_token_lists
from gumbel._inputs.arrays import NumpyArrays

B, V, D, S = 4, 203, 32, 3
RNG = np.random.default_rng(11)
HIDDEN = RNG.normal(size=(B, D)).astype(np.float32)
WEIGHT = (RNG.normal(size=(V, D)) * (3 / np.sqrt(D))).astype(np.float32)
LOGITS = (HIDDEN.astype(float) @ WEIGHT.astype(float).T).astype(np.float32)
WORDS = (V + 31) // 32
RESULTS = ("tokens", "logprobs", "lse", "status", "ranks", "kept", "top_ids", "top_logprobs")


def assert_equal_outputs(one, other, rows=slice(None)):
    for name in RESULTS:
        np.testing.assert_array_equal(getattr(one, name)[rows], getattr(other, name)[rows], name)


def test_slots_draw_the_tokens_of_rows():
    """Row parameters and masks in slots draw the same tokens as in rows."""
    slots, count = np.array([5, 0, 3, 1], np.int32), 6
    rows = {
        "temperature": np.array([0.5, 1.0, 2.0, 0.0]),
        "top_k": np.array([5, 0, 20, 7]),
        "top_p": np.array([0.9, 0.5, 1.0, 1.0]),
        "seed": np.array([1, 2, 3, 2**63], np.uint64),
        "position": np.array([4, 2**40, 6, 7], np.uint64),
        "first_sample": np.array([0, 3, 2**32 - 1, 9], np.uint32),
        "mask": RNG.integers(-(2**31), 2**31, size=(B, WORDS)).astype(np.int32),
    }
    spread = {
        name: np.zeros((count, *values.shape[1:]), values.dtype) for name, values in rows.items()
    }
    spread["temperature"][:] = spread["top_p"][:] = 1
    for name, values in rows.items():
        spread[name][slots] = values
    wanted = {"ranks": True, "kept": True, "top_logprobs": 3}
    assert_equal_outputs(
        gumbel.sample_logits(LOGITS, **rows, **wanted),
        gumbel.sample_logits(LOGITS, **spread, **wanted, slots=slots, num_slots=count),
    )


def test_live_rows_match_a_smaller_batch():
    wanted = {"seed": 3, "ranks": True, "kept": True, "top_logprobs": 2}
    every = gumbel.sample(HIDDEN, WEIGHT, **wanted)
    some = gumbel.sample(HIDDEN, WEIGHT, **wanted, live_rows=2)
    assert_equal_outputs(every, some, slice(0, 2))
    assert (some.tokens[2:] == -1).all() and (some.status[2:] == 6).all()
    assert np.isnan(some.lse[2:]).all() and np.isnan(some.logprobs[2:]).all()


@pytest.mark.parametrize("common", [{}, {"temperature": 0.6}, {"top_k": 30, "logprobs": "raw"}])
def test_given_tokens_have_the_outputs_of_a_draw(common):
    wanted = {**common, "num_samples": S, "ranks": True, "kept": True, "top_logprobs": 4}
    drawn = gumbel.sample(HIDDEN, WEIGHT, seed=5, **wanted)
    assert_equal_outputs(drawn, gumbel.sample(HIDDEN, WEIGHT, given=drawn.tokens, **wanted))
    assert_equal_outputs(
        drawn, gumbel.sample(HIDDEN, WEIGHT, given=drawn.tokens.tolist(), **wanted)
    )


def test_given_tokens_against_the_oracle():
    given = np.array([0, 17, 202], np.int32)
    found = gumbel.sample_logits(LOGITS, given=given, num_samples=3, ranks=True, temperature=0.8)
    for b in range(B):
        z = LOGITS[b].astype(float) / np.float32(0.8)
        expected = z[given] - oracle.log_normaliser(z)
        np.testing.assert_allclose(found.logprobs[b], expected, atol=1e-5)
        np.testing.assert_array_equal(found.ranks[b], [1 + (z > z[i]).sum() for i in given])
    none = gumbel.sample_logits(LOGITS, given=[[-1], [203], [0], [1]], ranks=True)
    assert none.tokens[:, 0].tolist() == [-1, 203, 0, 1] and none.ranks[:2, 0].tolist() == [-1, -1]
    assert np.isnan(none.logprobs[0, 0]) and none.logprobs[1, 0] == -np.inf


def test_allowed_tokens():
    lists = [[3, 5, 202], [], [7], [9, 9]]
    mask = np.zeros((B, WORDS), np.uint32)
    for b, allowed in enumerate(lists):
        for token in allowed or range(V):
            mask[b, token >> 5] |= np.uint32(1 << (token & 31))
    wanted = {"seed": 8, "num_samples": 5, "ranks": True, "kept": True, "top_logprobs": 4}
    assert_equal_outputs(
        gumbel.sample_logits(LOGITS, mask=mask.view(np.int32), **wanted),
        gumbel.sample_logits(LOGITS, allowed=lists, **wanted),
    )


def test_max_allowed_changes_no_output():
    lists = [[3, 5, 202], [4], [7, 9], [9, 9]]
    wanted = {"seed": 8, "num_samples": 5, "ranks": True, "kept": True, "top_logprobs": 4}
    drawn = gumbel.sample(HIDDEN, WEIGHT, allowed=lists, **wanted)
    for most in (1, 3, 10**9):
        found = gumbel.sample(HIDDEN, WEIGHT, allowed=lists, max_allowed=most, **wanted)
        assert_equal_outputs(drawn, found)
    mask = np.full((B, WORDS), 5, np.int32)
    assert_equal_outputs(
        gumbel.sample(HIDDEN, WEIGHT, mask=mask, **wanted),
        gumbel.sample(HIDDEN, WEIGHT, mask=mask, max_allowed=2 * WORDS, **wanted),
    )


@pytest.mark.parametrize(
    "allowed, bound",
    [([3, 5, 202], 3), ([[3], [5, 6], [7], [8]], 2), ([[3], [], [7], [8]], 0), ([], 0)],
)
def test_lists_in_host_memory_bound_themselves(allowed, bound):
    lists, _ = read_token_lists("allowed", allowed, B, NumpyArrays(None, None))
    assert lists.longest == bound


def test_explain_names_the_rung():
    text = gumbel.explain(WEIGHT, HIDDEN, top_k=5)
    assert text.startswith("rows: rows: ") and "workspace: " in text
    assert "tiles" in gumbel.explain(LOGITS)


@pytest.mark.parametrize(
    "keywords, error, text",
    [
        ({"slots": [0, 1, 2, 3]}, ValueError, "slots: requires num_slots"),
        ({"num_slots": 4}, ValueError, "num_slots: requires slots"),
        ({"max_allowed": 2}, ValueError, "max_allowed: requires mask or allowed"),
        ({"max_allowed": -1, "allowed": [1]}, ValueError, "max_allowed: -1 is not in"),
        ({"slots": [0, 1, 2, 4], "num_slots": 4}, ValueError, "slots: "),
        ({"slots": 0, "num_slots": 4}, ValueError, "slots: expected the shape"),
        ({"live_rows": B + 1}, ValueError, "live_rows: "),
        ({"live_rows": -1}, ValueError, "live_rows: "),
        ({"given": [[0]]}, ValueError, "given: expected the shape"),
        ({"given": [0.5]}, TypeError, "given: expected token ids"),
        ({"given": [2**31]}, ValueError, "given: token ids must be in"),
        ({"top_p": [1.0] * B, "slots": range(B), "num_slots": 9}, ValueError, "top_p: expected"),
    ],
)
def test_invalid_arguments_are_named(keywords, error, text):
    with pytest.raises(error, match=f"^{text}"):
        gumbel.sample_logits(LOGITS, **keywords)

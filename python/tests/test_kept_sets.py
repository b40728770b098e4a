# SPDX-License-Identifier: Apache-2.0
"""Kept sets: the tokens of a row that truncation keeps, and scores over them, as trainers do."""

import gumbel
import numpy as np
import pytest

B, V, D, PLACES = 6, 300, 24, 40
RNG = np.random.default_rng(8)
HIDDEN = RNG.normal(size=(B, D)).astype(np.float32)
WEIGHT = (RNG.normal(size=(V, D)) * (3 / np.sqrt(D))).astype(np.float32)
LOGITS = HIDDEN @ WEIGHT.T
RULES = (
    {"top_k": [5, 1, 40, 3, 20, 9]},
    {"top_k": PLACES, "top_p": 0.8, "min_p": [0, 0, 0.1, 0.2, 0, 0], "temperature": 0.7},
    {"top_k": 30, "temperature": [0.1, 1, 4, 2, 1, 0.5], "banned": [3], "logit_bias": {7: 3.0}},
    {"order": "top_k,typical_p,temperature", "top_k": 25, "typical_p": 0.7, "temperature": 1.3},
)


def list_rows(sets):
    """Each set's ids, and each set's log-probabilities."""
    ends = sets.offsets[1:-1]
    return np.split(np.asarray(sets.ids), ends), np.split(np.asarray(sets.logprobs), ends)


def assert_bits(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("rules", RULES)
def test_kept_sets_are_the_tokens_of_processed_logits(rules):
    out = gumbel.sample_logits(LOGITS, kept_ids=PLACES, seed=3, **rules)
    assert out.kept_ids.shape == out.kept_logprobs.shape == (B, PLACES)
    rows = gumbel.process_logits(LOGITS, **rules)
    sets = out.kept_sets()
    assert sets.offsets.dtype == np.int64 and sets.ids.dtype == np.int32
    np.testing.assert_array_equal(np.diff(sets.offsets), out.kept)
    for row, ids, logprobs in zip(range(B), *list_rows(sets)):
        np.testing.assert_array_equal(ids, np.flatnonzero(rows[row] > -np.inf))
        drawn = ids == out.tokens[row]
        assert_bits(logprobs[drawn], out.logprobs[row])
        np.testing.assert_allclose(np.exp(logprobs.astype(np.float64)).sum(), 1, atol=1e-5)


@pytest.mark.parametrize("rules", RULES)
def test_heads_and_prepared_calls_list_the_sets_of_logits(rules):
    call = gumbel.prepare_sample_logits(LOGITS, kept_ids=PLACES, seed=3, **rules)
    ids, logprobs = list_rows(gumbel.sample(HIDDEN, WEIGHT, kept_ids=PLACES, **rules).kept_sets())
    sampler = gumbel.Sampler(seed=3)
    stepwise = sampler.sample_logits(LOGITS, kept_ids=PLACES, **rules)
    for out in (call(), call(), stepwise):
        other_ids, other_logprobs = list_rows(out.kept_sets())
        for row in range(B):
            np.testing.assert_array_equal(other_ids[row], ids[row])
            np.testing.assert_allclose(other_logprobs[row], logprobs[row], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, [0.3, 0.7, 1.0, 1.4, 2.0, 0.9]])
@pytest.mark.parametrize("samples", [1, 3])
def test_a_trainer_that_replays_the_sets_has_the_rollouts_logprobs(temperature, samples):
    rollout = {"temperature": temperature, "top_k": 30, "top_p": 0.9, "min_p": 0.01}
    out = gumbel.sample(
        HIDDEN, WEIGHT, **rollout, num_samples=samples, kept_ids=PLACES, seed=5, position=11
    )
    allowed, logprobs = list_rows(out.kept_sets())
    replayed = gumbel.score(HIDDEN, WEIGHT, out.tokens, allowed=allowed, temperature=temperature)
    assert_bits(replayed.logprobs, out.logprobs)
    assert_bits(replayed.lse, out.lse)
    drawn = gumbel.sample_logits(LOGITS, **rollout, kept_ids=PLACES, seed=5)
    allowed, logprobs = list_rows(drawn.kept_sets())
    for row in range(B):  # all tokens of each set, not only the drawn one
        each = gumbel.score_logits(
            LOGITS[row : row + 1],
            allowed[row][np.newaxis],
            allowed=allowed[row],
            temperature=np.broadcast_to(temperature, B)[row],
        )
        assert_bits(each.logprobs[0], logprobs[row])
    without = gumbel.score(HIDDEN, WEIGHT, out.tokens, temperature=temperature)
    assert (without.logprobs < out.logprobs).any()


def test_logprobs_of_sets_are_optional_and_may_be_raw():
    out = gumbel.sample_logits(LOGITS, kept_ids=9, top_k=9, logprobs=None, ties="exact", seed=1)
    assert out.kept_logprobs is None and out.kept_sets().logprobs is None
    raw = gumbel.sample_logits(LOGITS, kept_ids=9, top_k=9, logprobs="raw", temperature=2, seed=1)
    ids, logprobs = list_rows(raw.kept_sets())
    plain = gumbel.score_logits(LOGITS, np.array(ids), logprobs="raw")
    assert_bits(np.array(logprobs), plain.logprobs)


def test_rows_that_do_not_fit_are_named():
    out = gumbel.sample_logits(LOGITS, kept_ids=4, top_k=[4, 5, 1, 9, 2, 3], seed=1)
    with pytest.raises(ValueError, match="kept_ids: rows 1, 3 keep more than 4 tokens"):
        out.kept_sets()
    out = gumbel.sample_logits(LOGITS, kept_ids=4, top_k=[4, 3, 1, 9, 2, 3], seed=1)
    with pytest.raises(ValueError, match="kept_ids: row 3 keeps more than 4 tokens"):
        out.kept_sets()
    many = gumbel.sample_logits(np.tile(LOGITS, (2, 1)), kept_ids=4, seed=1)
    with pytest.raises(ValueError, match="rows 0, 1, 2, 3, 4, 5, 6, 7 and 4 more keep"):
        many.kept_sets()
    with pytest.raises(ValueError, match="kept_ids: row 1 keeps more than 4 tokens"):
        greedy = [1, 0, 1, 1, 1, 1]  # a greedy row has no truncation, and keeps all tokens
        gumbel.sample_logits(LOGITS, kept_ids=4, top_k=3, temperature=greedy, seed=1).kept_sets()
    with pytest.raises(ValueError, match="kept_ids: pass the number of places"):
        gumbel.sample_logits(LOGITS, kept=True, seed=1).kept_sets()


def test_rows_without_a_token_have_no_set():
    logits = LOGITS.copy()
    logits[2] = np.nan
    out = gumbel.sample_logits(logits, kept_ids=3, top_k=3, live_rows=4, seed=1)
    np.testing.assert_array_equal(np.diff(out.kept_sets().offsets), [3, 3, 0, 3, 0, 0])


def test_ties_that_are_exact_always_fit():
    logits = np.zeros((3, V), np.float32)
    assert (gumbel.sample_logits(logits, top_k=7, kept_ids=7, seed=1).kept == V).all()
    out = gumbel.sample_logits(logits, top_k=7, kept_ids=7, ties="exact", seed=1)
    np.testing.assert_array_equal(out.kept_sets().ids.reshape(3, 7), np.tile(np.arange(7), (3, 1)))


@pytest.mark.parametrize("logprobs", ["processed", "raw", None])
def test_verification_lists_the_sets_of_emitted_tokens(logprobs):
    rules = {"top_k": 12, "top_p": 0.9, "seed": [4, 9], "kept_ids": 12, "logprobs": logprobs}
    first = gumbel.sample_logits(LOGITS[[0, 3]], position=5, **rules)
    tokens = np.array([[1, first.tokens[0, 0], 2], [1, (first.tokens[1, 0] + 1) % V, 2]])
    out = gumbel.verify_logits(LOGITS, tokens.astype(np.int32), position=5, **rules)
    assert out.emitted[0] >= 2 and out.emitted[1] == 1 and out.kept_ids.shape == (B, 12)
    sets = out.kept_sets()
    assert len(sets.offsets) == out.emitted.sum() + 1
    rows = [0, 1, 2][: out.emitted[0]] + [3]
    seeds = [4] * out.emitted[0] + [9]
    again = gumbel.sample_logits(LOGITS[rows], **{**rules, "seed": seeds}).kept_sets()
    np.testing.assert_array_equal(sets.offsets, again.offsets)
    np.testing.assert_array_equal(sets.ids, again.ids)
    if logprobs is None:
        assert sets.logprobs is None
    else:
        assert_bits(sets.logprobs, again.logprobs)
    limited = gumbel.verify_logits(
        LOGITS, tokens.astype(np.int32), limit=[1, 1], position=5, **rules
    )
    assert len(limited.kept_sets().offsets) == 3
    with pytest.raises(ValueError, match="kept_ids: rows 0, (1, )?(2, )?3 keep more than 2"):
        gumbel.verify_logits(
            LOGITS, tokens.astype(np.int32), position=5, **{**rules, "top_p": 1.0, "kept_ids": 2}
        ).kept_sets()


def test_tensors_have_the_sets_of_arrays():
    torch = pytest.importorskip("torch")
    rules = {"top_k": 12, "top_p": 0.9, "kept_ids": 12, "seed": 3}
    sets = gumbel.sample_logits(LOGITS, **rules).kept_sets()
    found = gumbel.sample_logits(torch.from_numpy(LOGITS), **rules).kept_sets()
    assert found.offsets.dtype == torch.int64 and found.ids.dtype == torch.int32
    for one, other in zip(sets, found):
        np.testing.assert_array_equal(one, other.numpy())
    tokens = np.ones((2, 3), np.int32)
    sets = gumbel.verify_logits(LOGITS, tokens, **rules).kept_sets()
    found = gumbel.verify_logits(torch.from_numpy(LOGITS), torch.from_numpy(tokens), **rules)
    for one, other in zip(sets, found.kept_sets()):
        np.testing.assert_array_equal(one, other.numpy())
    with pytest.raises(ValueError, match="rows 0, 1, 2, 3, 4, 5 keep more than 2 tokens"):
        gumbel.sample_logits(torch.from_numpy(LOGITS), top_k=3, kept_ids=2, seed=1).kept_sets()


@pytest.mark.parametrize("places, error", [(-1, ValueError), (2**31, ValueError), (1.5, TypeError)])
def test_invalid_numbers_of_places_are_named(places, error):
    with pytest.raises(error, match="kept_ids: "):
        gumbel.sample_logits(LOGITS, kept_ids=places)

# SPDX-License-Identifier: Apache-2.0
"""score() and score_logits() against NumPy: log-probabilities and ranks of given tokens."""

import gumbel
import numpy as np
import oracle
import pytest

B, V, D, S = 4, 203, 32, 3
RNG = np.random.default_rng(23)
HIDDEN = RNG.normal(size=(B, D)).astype(np.float32)
WEIGHT = (RNG.normal(size=(V, D)) * (3 / np.sqrt(D))).astype(np.float32)
LOGITS = (HIDDEN.astype(float) @ WEIGHT.astype(float).T).astype(np.float32)
TOKENS = RNG.integers(0, V, size=(B, S)).astype(np.int32)


def score_both_ways(tokens, **common):
    return (
        gumbel.score(HIDDEN, WEIGHT, tokens, **common),
        gumbel.score_logits(LOGITS, tokens, **common),
    )


def check(out, tokens, z):
    np.testing.assert_array_equal(out.tokens, tokens)
    np.testing.assert_array_equal(out.status, np.zeros(len(tokens)))
    for b, row in enumerate(z):
        norm = oracle.log_normaliser(row)
        np.testing.assert_allclose(out.lse[b], norm, atol=1e-4)
        np.testing.assert_allclose(out.logprobs[b], row[tokens[b]] - norm, atol=1e-4)
        ranks = [1 + (row > row[i]).sum() if row[i] > -np.inf else -1 for i in tokens[b]]
        np.testing.assert_array_equal(out.ranks[b], ranks)


def test_scores_match_numpy():
    for out in score_both_ways(TOKENS):
        check(out, TOKENS, LOGITS.astype(float))
        assert out.kept is None and out.top_ids is None
    for out in score_both_ways(TOKENS.tolist()):
        check(out, TOKENS, LOGITS.astype(float))


def test_one_token_a_row():
    for out in score_both_ways(TOKENS[:, 0], temperature=[0.5, 1, 2, 0.7]):
        assert out.logprobs.shape == out.ranks.shape == (B, 1)
        check(out, TOKENS[:, :1], LOGITS / np.array([[0.5], [1], [2], [0.7]]))


def test_removed_tokens_have_probability_0():
    """Tokens that truncation removed, or that are banned, have probability 0."""
    for out in score_both_ways(
        TOKENS, top_k=9, banned=[int(TOKENS[0, 0])], kept=True, top_logprobs=2
    ):
        y = np.array([oracle.edit(row, banned=[TOKENS[0, 0]]) for row in LOGITS])
        z = np.array([oracle.process(row, 1.0, top_k=9) for row in y])
        assert out.logprobs[0, 0] == -np.inf
        removed = np.isneginf(np.take_along_axis(z, TOKENS.astype(int), axis=1))
        np.testing.assert_array_equal(np.isneginf(out.logprobs), removed)
        np.testing.assert_array_equal(out.kept, np.full(B, 9))
        np.testing.assert_array_equal(out.top_ids, np.argsort(-y, axis=1)[:, :2])


def test_raw_log_probabilities():
    for out in score_both_ways(TOKENS, temperature=2.0, top_k=2, logprobs="raw"):
        row = LOGITS.astype(float)
        norm = np.log(np.exp(row).sum(axis=1, keepdims=True))
        expected = np.take_along_axis(row, TOKENS.astype(int), axis=1) - norm
        np.testing.assert_allclose(out.logprobs, expected, atol=1e-4)


def test_invalid_token_ids():
    out = gumbel.score_logits(LOGITS, [-1, V, V + 9, 0])
    assert out.tokens[:, 0].tolist() == [-1, V, V + 9, 0]
    assert out.ranks[:3, 0].tolist() == [-1] * 3
    assert np.isnan(out.logprobs[0, 0]) and np.isneginf(out.logprobs[1:3, 0]).all()
    empty = gumbel.score_logits(LOGITS[:0], TOKENS[:0])
    assert empty.logprobs.shape == (0, S)


def test_a_prompt_of_many_rows():
    """More rows than the library processes at a time; each row equals its score alone."""
    rows = 700
    hidden = RNG.normal(size=(rows, D)).astype(np.float32)
    tokens = RNG.integers(0, V, size=rows)
    out = gumbel.score(hidden, WEIGHT, tokens, logprobs="raw")
    for b in (0, 255, 256, 511, 512, rows - 1):
        alone = gumbel.score(hidden[b : b + 1], WEIGHT, tokens[b : b + 1], logprobs="raw")
        for name in ("logprobs", "ranks", "lse"):
            np.testing.assert_array_equal(getattr(out, name)[b], getattr(alone, name)[0])


@pytest.mark.parametrize(
    "tokens, error, text",
    [
        (TOKENS[:2], ValueError, r"tokens: expected the shape \(4,\) or \(4, num_samples\)"),
        (TOKENS[:, :0], ValueError, "tokens: expected the shape"),
        (np.broadcast_to(1, (B, 65537)), ValueError, "tokens: expected the shape"),
        (TOKENS.astype(float), TypeError, "tokens: expected token ids"),
        (TOKENS - V, ValueError, "tokens: token ids must be in"),
        (None, TypeError, "tokens: expected token ids, got NoneType"),
    ],
)
def test_invalid_arguments_are_named(tokens, error, text):
    with pytest.raises(error, match=f"^{text}"):
        gumbel.score(HIDDEN, WEIGHT, tokens)
    with pytest.raises(error, match=f"^{text}"):
        gumbel.score_logits(LOGITS, tokens)


@pytest.mark.parametrize("name", ["given", "num_samples", "ranks"])
def test_parameters_of_draws_raise(name):
    with pytest.raises(TypeError, match=rf"^score_logits\(\) takes no argument '{name}'"):
        gumbel.score_logits(LOGITS, TOKENS, **{name: None})
    assert name not in gumbel.score.__signature__.parameters

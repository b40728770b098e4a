# SPDX-License-Identifier: Apache-2.0
"""Heads over a subset of the vocabulary, whose rows have token ids: draft heads of EAGLE-3."""

import gumbel
import numpy as np
import pytest

B, ROWS, V, D = 5, 200, 1500, 16
RNG = np.random.default_rng(12)
HIDDEN = RNG.normal(size=(B, D)).astype(np.float32)
WEIGHT = (RNG.normal(size=(ROWS, D)) * (3 / np.sqrt(D))).astype(np.float32)
LOGITS = RNG.normal(size=(B, ROWS)).astype(np.float32) * 2
TABLE = np.sort(RNG.choice(V, ROWS, replace=False)).astype(np.int32)
RULES = ({}, {"temperature": [0, 0.5, 1, 1, 2]}, {"top_k": 20, "top_p": 0.8}, {"min_p": 0.05})


def scatter(logits, table=TABLE):
    whole = np.full((len(logits), V), -np.inf, np.float32)
    whole[:, table] = logits
    return whole


@pytest.mark.parametrize("rules", RULES)
def test_draws_are_those_of_the_whole_vocabulary(rules):
    outputs = {"top_logprobs": 7, "kept_ids": 60, "ranks": True}
    wanted = {"num_samples": 2, "seed": 4, **outputs, **rules}
    found = gumbel.sample_logits(LOGITS, token_ids=TABLE, **wanted)
    expected = gumbel.sample_logits(scatter(LOGITS), **wanted)
    for name in ("tokens", "status", "ranks", "kept", "top_ids"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for row in np.flatnonzero(found.kept <= 60):
        kept = found.kept_ids[row, : found.kept[row]]
        np.testing.assert_array_equal(kept, expected.kept_ids[row, : found.kept[row]])
    for name in ("lse", "logprobs", "top_logprobs"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-5)


def test_noise_is_that_of_the_tokens():
    table = RNG.permutation(V)[:ROWS]
    seed, position = np.array([3, 3, 9, 10, 2**63], np.uint64), 2**40
    out = gumbel.sample_logits(LOGITS, token_ids=table, seed=seed, position=position, num_best=4)
    for row in range(B):
        scores = LOGITS[row] + gumbel.noise(int(seed[row]), position, V)[table]
        best = np.argsort(-scores, kind="stable")[:4]
        np.testing.assert_array_equal(out.best_ids[row], table[best])
        assert out.tokens[row, 0] == table[best[0]]


def test_heads_draw_as_their_logits():
    logits = HIDDEN @ WEIGHT.T
    found = gumbel.sample(HIDDEN, WEIGHT, token_ids=list(map(int, TABLE)), seed=8, top_k=30)
    expected = gumbel.sample_logits(logits, token_ids=TABLE, seed=8, top_k=30)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    assert np.isin(found.tokens, TABLE).all()


def test_targets_accept_the_draws_of_a_sampler():
    steps, requests = 4, B
    logits = RNG.normal(size=(requests, steps + 1, ROWS)).astype(np.float32)
    sampler = gumbel.Sampler(seed=21)
    drafts = [
        sampler.sample_logits(np.ascontiguousarray(logits[:, step]), token_ids=TABLE).tokens[:, 0]
        for step in range(steps)
    ]
    nodes = np.stack([np.zeros(requests, np.int32), *drafts], axis=1)
    whole = scatter(logits.reshape(-1, ROWS))
    out = gumbel.verify_logits(whole, nodes, seed=21)
    np.testing.assert_array_equal(out.accepted, np.full(requests, steps))
    np.testing.assert_array_equal(out.tokens[:, :steps], np.stack(drafts, axis=1))


def test_prepared_calls_read_the_table_again():
    table = TABLE.copy()
    call = gumbel.prepare_sample_logits(LOGITS, token_ids=table, seed=5)
    np.testing.assert_array_equal(
        call().tokens, gumbel.sample_logits(LOGITS, token_ids=TABLE, seed=5).tokens
    )
    table[:] = RNG.permutation(V)[:ROWS]
    np.testing.assert_array_equal(
        call().tokens, gumbel.sample_logits(LOGITS, token_ids=table, seed=5).tokens
    )


@pytest.mark.parametrize(
    "table, error, text",
    [
        (TABLE - 1 - TABLE[0], ValueError, "token_ids: -1 is not a token id"),
        (np.where(TABLE == TABLE[4], 2**31 - 1, TABLE), ValueError, "token_ids: 2147483647 is not"),
        ([2**40] * ROWS, ValueError, "token_ids: 1099511627776 is not a token id"),
        (TABLE[:-1], ValueError, r"token_ids: expected the shape \(200,\), got \(199,\)"),
        (TABLE[None], TypeError, "token_ids: expected token ids, all integers"),
        (TABLE.astype(np.float32), TypeError, "token_ids: expected token ids, all integers"),
        (np.array([], np.int32), ValueError, r"token_ids: expected the shape \(200,\)"),
        (3, TypeError, "token_ids: expected token ids"),
        ("abc", TypeError, "token_ids: expected token ids"),
        ([None] * ROWS, TypeError, "token_ids"),
    ],
)
def test_invalid_tables_are_named(table, error, text):
    with pytest.raises(error, match=text):
        gumbel.sample_logits(LOGITS, token_ids=table, seed=1)
    with pytest.raises(error, match=text):
        gumbel.sample(HIDDEN, WEIGHT, token_ids=table, seed=1)


@pytest.mark.parametrize(
    "keywords, name",
    [
        ({"mask": np.full((ROWS + 31) // 32, -1, np.int32)}, "mask"),
        ({"allowed": [1]}, "allowed"),
        ({"banned": [1]}, "banned"),
        ({"logit_bias": {1: 2.0}}, "logit_bias"),
        ({"late_bias": {1: 2.0}}, "late_bias"),
        ({"prompt_tokens": [[1]] * B, "repetition_penalty": 1.1}, "repetition_penalty"),
        ({"output_tokens": [[1]] * B}, "output_tokens"),
        ({"given": [1]}, "given"),
    ],
)
def test_parameters_that_name_tokens_are_errors(keywords, name):
    with pytest.raises(ValueError, match=f"^{name}: is not supported with token_ids"):
        gumbel.sample_logits(LOGITS, token_ids=TABLE, seed=1, **keywords)


def test_calls_without_tables_take_none():
    for call in (gumbel.softmax, gumbel.process_logits, gumbel.partial_logits):
        with pytest.raises(TypeError, match="token_ids"):
            call(LOGITS, token_ids=TABLE)
    with pytest.raises(TypeError, match="token_ids"):
        gumbel.score_logits(LOGITS, np.zeros(B, np.int32), token_ids=TABLE)
    with pytest.raises(TypeError, match="token_ids"):
        gumbel.verify_logits(LOGITS, np.zeros((1, B), np.int32), token_ids=TABLE)


def test_tensors_and_the_operator():
    torch = pytest.importorskip("torch")
    pytest.importorskip("gumbel.torch")
    logits, table = torch.from_numpy(LOGITS), torch.from_numpy(TABLE)
    expected = gumbel.sample_logits(LOGITS, token_ids=TABLE, seed=6).tokens
    found = gumbel.sample_logits(logits, token_ids=table, seed=6).tokens
    drawn = torch.ops.gumbel.sample_logits(logits, seed=torch.tensor(6), token_ids=table)[0]
    from_head = torch.ops.gumbel.sample(
        torch.from_numpy(HIDDEN), torch.from_numpy(WEIGHT), seed=torch.tensor(6), token_ids=table
    )[0]
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(drawn.numpy(), expected)
    np.testing.assert_array_equal(
        from_head.numpy(), gumbel.sample(HIDDEN, WEIGHT, token_ids=TABLE, seed=6).tokens
    )
    with pytest.raises(ValueError, match=r"token_ids\[3\]: is -4; it must be in 0..2147483646"):
        gumbel.sample_logits(logits, token_ids=table.index_fill(0, torch.tensor(3), -4))

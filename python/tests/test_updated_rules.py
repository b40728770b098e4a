# SPDX-License-Identifier: Apache-2.0
"""Mirostat 2, a decaying top_p and adaptive_p, step by step, against slow references."""

import gumbel
import numpy as np
import pytest

B, V, STEPS = 3, 200, 1000
RNG = np.random.default_rng(31)


def kept_surprises(logits, mu):
    """-log2 p [V] among the tokens that mirostat 2 keeps, by their definition; inf: removed."""
    p = np.exp(logits.astype(np.float64) - logits.max())
    p /= p.sum()
    keep = (-np.log2(p) <= mu) | (p == p.max())
    with np.errstate(divide="ignore"):
        return -np.log2(np.where(keep, p, 0) / p[keep].sum())


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_mirostat_follows_its_definition(kind):
    """1,000 steps: mu, and each token's probability, are those of a float64 reference."""
    torch = pytest.importorskip("torch") if kind == "torch" else None
    targets, rates = [1.5, 3.0, 4.0], [0.1, 0.3, 0.05]
    updates = gumbel.RuleUpdates(
        B,
        surprise_target=targets,
        surprise_rate=rates,
        like=None if torch is None else torch.zeros(1),
    )
    mu = 2 * np.array(targets)
    np.testing.assert_array_equal(np.asarray(updates.surprise), mu.astype(np.float32))
    seen, positions = np.zeros((STEPS, B)), np.zeros(B, np.uint64)
    logits = (RNG.normal(size=(8, B, V)) * 2).astype(np.float32)
    inputs = logits[0].copy() if torch is None else torch.from_numpy(logits[0].copy())
    call = gumbel.prepare_sample_logits(
        inputs, order="surprise", surprise=updates.surprise, seed=5, position=positions
    )
    for step in range(STEPS):
        inputs[:] = logits[step % 8] if torch is None else torch.from_numpy(logits[step % 8])
        positions[:] = step
        out = call()
        updates.update(out.tokens, out.logprobs)
        for row in range(B):
            token = int(out.tokens[row, 0])
            seen[step, row] = kept_surprises(logits[step % 8][row], mu[row])[token]
            assert np.isfinite(seen[step, row])
        mu = np.maximum(0, mu - np.array(rates) * (seen[step] - targets))
        np.testing.assert_allclose(np.asarray(updates.surprise), mu, rtol=0, atol=1e-4)
    np.testing.assert_allclose(seen[100:].mean(0), targets, atol=0.1)


def find_probabilities(logits):
    """p [V] among the tokens of at least 0.02 of the largest probability; 0: removed."""
    p = np.exp(logits.astype(np.float64) - logits.max())
    p[p < 0.02] = 0
    return p / p.sum()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_adaptive_p_follows_its_definition(kind):
    """1,000 steps: each token's probability and the targets are those of a float64 reference."""
    torch = pytest.importorskip("torch") if kind == "torch" else None
    goals, decays = np.array([0.4, 0.1, -1.0]), np.array([0.9, 0.99, 0.5])
    like = None if torch is None else torch.zeros(1)
    updates = gumbel.RuleUpdates(B, adaptive_goal=goals, adaptive_decay=decays, like=like)
    np.testing.assert_array_equal(np.asarray(updates.adaptive_target), goals.astype(np.float32))
    sums, weights = goals / (1 - decays), 1 / (1 - decays)
    seen, positions = np.zeros((STEPS, B)), np.zeros(B, np.uint64)
    logits = (RNG.normal(size=(8, B, V)) * 2).astype(np.float32)
    logits[:, :, :5] += 4
    inputs = logits[0].copy() if torch is None else torch.from_numpy(logits[0].copy())
    rules = {"order": "min_p,adaptive_p", "min_p": 0.02, "position": positions}
    call = gumbel.prepare_sample_logits(
        inputs, seed=5, adaptive_target=updates.adaptive_target, **rules
    )
    for step in range(STEPS):
        inputs[:] = logits[step % 8] if torch is None else torch.from_numpy(logits[step % 8])
        positions[:] = step
        out = call()
        scored = gumbel.score_logits(inputs, out.tokens, **rules)
        updates.update(out.tokens, scored.logprobs)
        for row in range(B):
            p = find_probabilities(logits[step % 8][row])
            seen[step, row] = p[int(out.tokens[row, 0])]
        np.testing.assert_allclose(np.exp(np.asarray(scored.logprobs))[:, 0], seen[step], rtol=1e-5)
        sums, weights = seen[step] + decays * sums, 1 + decays * weights
        targets = np.where(goals < 0, -1, np.clip(2 * goals - sums / weights, 0, 1))
        np.testing.assert_allclose(np.asarray(updates.adaptive_target), targets, atol=1e-5)
    assert seen.mean(0)[0] > seen.mean(0)[1] + 0.1
    updates.start()
    np.testing.assert_array_equal(np.asarray(updates.adaptive_target), goals.astype(np.float32))


def test_adaptive_p_of_slots():
    updates = gumbel.RuleUpdates(4, adaptive_goal=[0.5, 0.25, 0.5, 1.0], adaptive_decay=0.5)
    updates.update([5, 6], np.log(np.array([0.5, 1.0], np.float32)), slots=[3, 1])
    # The sums (2, 0.5) become (0.5 + 0.5 * 2, 1 + 0.5 * 0.5), the weights 2 become 2.
    targets = [0.5, 2 * 0.25 - 1.25 / 2, 0.5, 2 * 1.0 - 1.5 / 2]
    np.testing.assert_allclose(updates.adaptive_target, np.clip(targets, 0, 1), atol=1e-6)
    updates.start([1])
    assert updates.adaptive_target[1] == 0.25
    assert updates.surprise is None and updates.top_p is None


def test_top_p_decays_and_resets():
    updates = gumbel.RuleUpdates(
        4,
        top_p_decay=[0.5, 0.9, 1.0, 0.5],
        top_p_first=0.8,
        top_p_min=0.15,
        top_p_reset=[7, -1, 7, 7],
    )
    wanted = np.full(4, 0.8, np.float32)
    np.testing.assert_array_equal(updates.top_p, wanted)
    assert updates.surprise is None
    for step in range(9):
        tokens = [7 if step == 4 else 3, 7, 7, -1]
        updates.update(tokens, live_rows=4)
        decay = np.array([0.5, 0.9, 1.0, 1.0], np.float32)
        wanted = np.maximum(wanted * decay, np.float32(0.15))
        wanted[2] = 0.8
        wanted[0] = 0.8 if step == 4 else wanted[0]
        np.testing.assert_array_equal(updates.top_p, wanted)
    assert updates.top_p[0] == np.float32(0.15)
    updates.update([3, 3, 3, 3], live_rows=0)
    np.testing.assert_array_equal(updates.top_p, wanted)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_slots(kind):
    torch = pytest.importorskip("torch") if kind == "torch" else None
    updates = gumbel.RuleUpdates(
        4,
        surprise_target=[1.0, 2.0, 3.0, 4.0],
        top_p_decay=0.5,
        like=None if torch is None else torch.zeros(1),
    )
    logprobs = np.log(np.array([[0.5], [0.25]], np.float32))
    updates.update([5, 6], logprobs, slots=[3, 1])
    surprise = [2, 4 - 0.1 * (2 - 2), 6, 8 - 0.1 * (1 - 4)]
    np.testing.assert_allclose(np.asarray(updates.surprise), surprise, rtol=1e-6)
    assert np.asarray(updates.top_p).tolist() == [1.0, 0.5, 1.0, 0.5]
    updates.start([3])
    np.testing.assert_allclose(np.asarray(updates.surprise), [2, 4, 6, 8], rtol=1e-6)
    assert np.asarray(updates.top_p).tolist() == [1.0, 0.5, 1.0, 1.0]
    updates.start()
    assert np.asarray(updates.top_p).tolist() == [1.0] * 4


def both():
    return gumbel.RuleUpdates(2, surprise_target=1.0, top_p_decay=0.5)


LOGS = np.zeros(2, np.float32)
REFUSED = [
    (lambda: gumbel.RuleUpdates(0, top_p_decay=0.5), ValueError, "num_slots: 0"),
    (lambda: gumbel.RuleUpdates(2), ValueError, "surprise_target: pass"),
    (lambda: gumbel.RuleUpdates(2, surprise_target=-1), ValueError, "surprise_target: -1"),
    (lambda: gumbel.RuleUpdates(2, surprise_target=[1, np.nan]), ValueError, "surprise_target: n"),
    (lambda: gumbel.RuleUpdates(2, surprise_target="5"), TypeError, "surprise_target: expected"),
    (lambda: gumbel.RuleUpdates(2, surprise_target=[1]), ValueError, "surprise_target: expected"),
    (
        lambda: gumbel.RuleUpdates(2, surprise_target=1, surprise_rate=np.inf),
        ValueError,
        "surprise_rate: inf",
    ),
    (
        lambda: gumbel.RuleUpdates(2, top_p_decay=1, surprise_rate=1),
        ValueError,
        "surprise_rate: requires",
    ),
    (lambda: gumbel.RuleUpdates(2, top_p_decay=0), ValueError, "top_p_decay: 0.0 is not in"),
    (lambda: gumbel.RuleUpdates(2, top_p_decay=1, top_p_first=2), ValueError, "top_p_first: 2.0"),
    (lambda: gumbel.RuleUpdates(2, top_p_decay=1, top_p_min=0.0), ValueError, "top_p_min: 0.0"),
    (lambda: gumbel.RuleUpdates(2, top_p_decay=1, top_p_reset=-2), ValueError, "top_p_reset: -2"),
    (lambda: gumbel.RuleUpdates(2, surprise_target=1, top_p_min=0.5), ValueError, "top_p_min: req"),
    (lambda: gumbel.RuleUpdates(2, adaptive_goal=1.5), ValueError, r"adaptive_goal: 1.5 is not in"),
    (
        lambda: gumbel.RuleUpdates(2, adaptive_goal=0.5, adaptive_decay=0.995),
        ValueError,
        r"adaptive_decay: 0.995\d* is not in \[0, 0.99\]",
    ),
    (
        lambda: gumbel.RuleUpdates(2, top_p_decay=1, adaptive_decay=0.5),
        ValueError,
        "adaptive_decay: requires",
    ),
    (
        lambda: gumbel.RuleUpdates(2, surprise_target=1, adaptive_goal=0.5),
        ValueError,
        "adaptive_goal: is not combined",
    ),
    (
        lambda: gumbel.RuleUpdates(2, adaptive_goal=0.5).update([1, 2]),
        ValueError,
        "logprobs: required, because `adaptive_target`",
    ),
    (lambda: both().update([1, 2]), ValueError, "logprobs: required"),
    (lambda: both().update([1, 2], [0.0, 0.0]), TypeError, "logprobs: expected"),
    (lambda: both().update([1, 2], LOGS.astype(float)), TypeError, "logprobs: expected float32"),
    (lambda: both().update([1, 2], LOGS[:1]), ValueError, "logprobs: expected the shape"),
    (lambda: both().update([1], LOGS), ValueError, "tokens: expected the shape"),
    (lambda: both().update([[1, 2], [3, 4]], LOGS), ValueError, "tokens: expected the shape"),
    (lambda: both().update([1, 2], LOGS, slots=[1, 1]), ValueError, "slots: slot 1 is repeated"),
    (lambda: both().update([1, 2], LOGS, slots=[0, 2]), ValueError, r"slots\[1\]: 2"),
    (lambda: both().update([1, 2], LOGS, live_rows=3), ValueError, "live_rows"),
    (lambda: both().start([2]), ValueError, r"slots\[0\]: 2"),
    (lambda: gumbel.RuleUpdates(1, surprise_target=3e38), ValueError, "surprise_target: 3.*e"),
]


def test_arrays_cannot_be_replaced():
    updates = gumbel.RuleUpdates(2, top_p_decay=0.5)
    with pytest.raises(AttributeError, match="^top_p: the array cannot be replaced"):
        updates.top_p = np.ones(2, np.float32)


@pytest.mark.parametrize("call, kind, message", REFUSED, ids=[each[2] for each in REFUSED])
def test_errors_name_the_argument(call, kind, message):
    with pytest.raises(kind, match=f"^(?:{message})"):
        call()

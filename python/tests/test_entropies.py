# SPDX-License-Identifier: Apache-2.0
"""Entropies of rows: of draws, scores and verifications, processed and raw, in NumPy and torch."""

import gumbel
import numpy as np
import pytest

B, V, D = 6, 300, 24
RNG = np.random.default_rng(9)
HIDDEN = RNG.normal(size=(B, D)).astype(np.float32)
WEIGHT = (RNG.normal(size=(V, D)) * (3 / np.sqrt(D))).astype(np.float32)
LOGITS = HIDDEN @ WEIGHT.T
RULES = (
    {},
    {"temperature": [0, 0.5, 1, 2, 1, 0]},
    {"top_k": [5, 1, 40, 3, 20, 9], "temperature": 0.7, "banned": [3], "logit_bias": {7: 3.0}},
    {"order": "top_k,typical_p,temperature", "top_k": 25, "typical_p": 0.7, "temperature": 1.3},
)


def compute_entropies(rows):
    """The entropy of each row's softmax, in float64."""
    z = np.asarray(rows, np.float64)
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(1)


def assert_near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=2**-21, atol=2**-16)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("logprobs", [None, "processed", "raw"])
def test_entropies_are_of_the_distribution(rules, logprobs):
    out = gumbel.sample_logits(LOGITS, entropy=True, logprobs=logprobs, seed=3, **rules)
    assert out.entropy.shape == (B,) and out.entropy.dtype == np.float32
    rows = LOGITS if logprobs == "raw" else gumbel.process_logits(LOGITS, **rules)
    assert_near(out.entropy, compute_entropies(rows))
    again = gumbel.prepare_sample_logits(LOGITS, entropy=True, logprobs=logprobs, seed=4, **rules)
    np.testing.assert_array_equal(again().entropy, out.entropy)
    scored = gumbel.score_logits(LOGITS, out.tokens, entropy=True, logprobs=logprobs, **rules)
    np.testing.assert_array_equal(scored.entropy, out.entropy)
    fused = gumbel.sample(HIDDEN, WEIGHT, entropy=True, logprobs=logprobs, **rules)
    np.testing.assert_allclose(fused.entropy, out.entropy, rtol=1e-4, atol=1e-4)


def test_only_rows_with_a_token_have_an_entropy():
    logits = LOGITS.copy()
    logits[1, 5] = np.nan
    logits[2] = -np.inf
    logits[3, 1:] = -np.inf
    out = gumbel.sample_logits(logits, entropy=True)
    np.testing.assert_array_equal(np.isnan(out.entropy), np.isin(np.arange(B), [1, 2]))
    assert out.entropy[3] == 0
    assert gumbel.sample_logits(LOGITS).entropy is None


@pytest.mark.parametrize("rules", RULES[:1] + RULES[3:])
@pytest.mark.parametrize("logprobs", [None, "processed", "raw"])
def test_verifications_return_the_entropy_of_each_row(rules, logprobs):
    tokens, offsets = np.arange(B, dtype=np.int32), np.array([0, 4, B])
    out = gumbel.verify_logits(
        LOGITS, tokens, offsets=offsets, entropy=True, logprobs=logprobs, **rules
    )
    rows = LOGITS if logprobs == "raw" else gumbel.process_logits(LOGITS, **rules)
    assert_near(out.entropy, compute_entropies(rows))
    assert gumbel.verify_logits(LOGITS, tokens, offsets=offsets, **rules).entropy is None


def test_partial_calls_reject_entropies():
    with pytest.raises(TypeError, match="entropy"):
        gumbel.partial(HIDDEN, WEIGHT, entropy=True)
    with pytest.raises(TypeError, match="entropy"):
        gumbel.sample_logits(LOGITS, entropy=1)


def test_torch_returns_tensors_and_operators_list_the_entropy():
    torch = pytest.importorskip("torch")
    import gumbel.torch  # noqa: F401

    logits = torch.from_numpy(LOGITS)
    expected = gumbel.sample_logits(LOGITS, entropy=True, seed=3).entropy
    out = gumbel.sample_logits(logits, entropy=True, seed=3)
    assert out.entropy.dtype == torch.float32
    np.testing.assert_array_equal(out.entropy.numpy(), expected)
    found = torch.ops.gumbel.sample_logits(logits, entropy=True)
    np.testing.assert_array_equal(found[-1].numpy(), expected)
    tokens = torch.zeros((B, 1), dtype=torch.int32)
    found = torch.ops.gumbel.score_logits(logits, tokens, entropy=True)
    np.testing.assert_array_equal(found[-1].numpy(), expected)
    fake = torch.compile(
        lambda x: torch.ops.gumbel.sample_logits(x, entropy=True)[-1], backend="eager"
    )
    np.testing.assert_array_equal(fake(logits).numpy(), expected)

# SPDX-License-Identifier: Apache-2.0
"""Truncation, edits of the logits, penalties and further results against the oracle."""

import gumbel
import numpy as np
import oracle
import pytest

B, V, D = 4, 203, 32
RNG = np.random.default_rng(7)
HIDDEN = RNG.normal(size=(B, D)).astype(np.float32)
WEIGHT = (RNG.normal(size=(V, D)) * (3 / np.sqrt(D))).astype(np.float32)
LOGITS = (HIDDEN.astype(float) @ WEIGHT.astype(float).T).astype(np.float32)
WORDS = (V + 31) // 32
MASK = RNG.integers(-(2**31), 2**31, size=(B, WORDS)).astype(np.int32)

RULES = ("min_p", "top_k", "top_p", "order", "ties")
PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")


def of_row(value, b):
    """The value of row b of a parameter that is one or [B]."""
    return value[b] if isinstance(value, (list, np.ndarray)) else value


def lists_of_row(value, b):
    nested = value is not None and any(np.ndim(row) for row in value)
    return [] if value is None else value[b] if nested else value


def edit_row(request, b):
    """The row before its temperature."""
    defaults = dict(zip(PENALTIES, (1.0, 0.0, 0.0)))
    mask, bias = request.get("mask"), request.get("logit_bias")
    return oracle.edit(
        LOGITS[b],
        mask=mask[b] if mask is not None and mask.ndim == 2 else mask,
        allowed=lists_of_row(request.get("allowed"), b),
        banned=lists_of_row(request.get("banned"), b),
        bias=bias[b] if isinstance(bias, list) else bias,
        prompt=lists_of_row(request.get("prompt_tokens"), b),
        output=lists_of_row(request.get("output_tokens"), b),
        penalties=[of_row(request.get(name, off), b) for name, off in defaults.items()],
    )


def process_rows(request):
    rows = [
        oracle.process(
            edit_row(request, b),
            of_row(request.get("temperature", 1.0), b),
            **{name: of_row(request[name], b) for name in RULES if name in request},
        )
        for b in range(B)
    ]
    return np.array(rows)


COUNTED = {"prompt_tokens": [[1, 2], [], [5], [0, 0]], "output_tokens": [[2, 3, 3], [9], [], [202]]}

REQUESTS = [
    {},
    {"top_k": 5},
    {"top_k": [1, 0, 7, 1000]},
    {"top_p": 0.6},
    {"top_p": [0.1, 0.5, 0.99, 1.0]},
    {"min_p": 0.05},
    {"min_p": [0.0, 0.01, 0.3, 1.0]},
    {"temperature": [0.5, 1.0, 2.0, 0.0], "top_k": 20, "top_p": 0.8, "min_p": 0.02},
    {"temperature": 2.0, "top_k": 20, "top_p": 0.8, "min_p": 0.02, "order": "joint"},
    {"temperature": 2.0, "top_k": 20, "top_p": 0.8, "order": "before_temperature"},
    {"temperature": 2.0, "top_k": 20, "top_p": 0.8, "min_p": 0.3, "order": "top_k,top_p,min_p"},
    {"temperature": 0.8, "top_k": [40, 0, 9, 20], "top_p": 0.9, "min_p": 0.05, "order": "hf"},
    {
        "temperature": 0.8,
        "top_k": [40, 0, 9, 20],
        "top_p": 0.9,
        "min_p": 0.05,
        "order": "llama.cpp",
        "ties": "exact",
    },
    {
        "temperature": 1.5,
        "top_k": 20,
        "top_p": 0.7,
        "min_p": [0.0, 0.02, 0.3, 1.0],
        "order": "top_k,top_p,min_p,temperature",
    },
    {"temperature": 1.5, "top_k": 20, "top_p": 0.7, "min_p": 0.02, "order": "joint,temperature"},
    {"temperature": 1.5, "top_p": 0.7, "min_p": [0.0, 0.02, 0.3, 1.0], "order": "mlx"},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.7, "min_p": 0.02, "order": "sglang"},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.7, "min_p": 0.02, "order": "vllm"},
    {"top_k": 20, "top_p": 0.8, "ties": "exact"},
    {"mask": MASK},
    {"mask": MASK[1]},
    {"allowed": [3, 5, 202]},
    {"allowed": [[1, 1, 9], [], [2, 3], [4]], "banned": [9, 0], "logit_bias": {2: 3.0, 4: 1.0}},
    {"banned": [3, 5, 202]},
    {"banned": [[1], [], [2, 3], [4]]},
    {"logit_bias": {7: 3.0, 9: -np.inf}},
    {"logit_bias": [{7: 3.0}, {}, {0: -1.5, 202: 4.0}, {9: -np.inf}]},
    {"repetition_penalty": 1.4, **COUNTED},
    {"repetition_penalty": [1.0, 0.5, 2.0, 1.1], "prompt_tokens": [4, 5, 6]},
    {"frequency_penalty": 0.7, "output_tokens": COUNTED["output_tokens"]},
    {"presence_penalty": [0.5, -0.5, 0.0, 3.0], "output_tokens": [1, 1, 2]},
    {
        "temperature": 0.8,
        "top_k": 30,
        "top_p": [0.5, 0.9, 1.0, 0.95],
        "mask": MASK,
        "banned": [[1], [], [2, 3], [4]],
        "logit_bias": {7: 3.0},
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        **COUNTED,
    },
]
NAMES = ["+".join(request) or "plain" for request in REQUESTS]


@pytest.mark.parametrize("request_", REQUESTS, ids=NAMES)
def test_processed_logits_match_the_oracle(request_):
    found = gumbel.process_logits(LOGITS, **request_)
    expected = process_rows(request_)
    assert found.dtype == np.float32 and found.shape == (B, V)
    np.testing.assert_array_equal(np.isneginf(found), np.isneginf(expected))
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("request_", REQUESTS, ids=NAMES)
def test_draws_match_the_oracle(request_):
    z = process_rows(request_)
    seeds = [3, 5, 7, 2**63]
    common = {"seed": seeds, "position": 4, "num_samples": 6, "top_logprobs": 9}
    common.update(ranks=True, kept=True)
    greedy = [of_row(request_.get("temperature", 1.0), b) == 0 for b in range(B)]
    for out in (
        gumbel.sample_logits(LOGITS, **common, **request_),
        gumbel.sample(HIDDEN, WEIGHT, **common, **request_),
    ):
        np.testing.assert_array_equal(out.status, np.zeros(B))
        for b in range(B):
            norm = oracle.log_normaliser(z[b])
            np.testing.assert_allclose(out.lse[b], norm, atol=1e-4)
            assert out.kept[b] == np.isfinite(z[b]).sum()
            for s in range(6):
                g = 0 if greedy[b] else oracle.noise(np.arange(V), seeds[b], 4, s)
                token = np.argmax(z[b] + g)
                assert out.tokens[b, s] == token
                assert out.ranks[b, s] == 1 + (z[b] > z[b, token]).sum()
                np.testing.assert_allclose(out.logprobs[b, s], z[b, token] - norm, atol=1e-4)
            check_top(out, b, edit_row(request_, b), z[b])


def check_top(out, b, y, z):
    """The likeliest tokens are listed whether truncation kept them or not."""
    best = np.lexsort((np.arange(V), -y))[:9]
    best = np.where(y[best] > -np.inf, best, -1)
    np.testing.assert_array_equal(out.top_ids[b], best)
    expected = np.where(best >= 0, z[best] - oracle.log_normaliser(z), -np.inf)
    np.testing.assert_allclose(out.top_logprobs[b], expected, atol=1e-4)


def test_raw_log_probabilities():
    request = {"temperature": 2.0, "top_k": 4, "logit_bias": {3: 9.0}, "seed": 1}
    processed_ = gumbel.sample_logits(LOGITS, **request)
    out = gumbel.sample_logits(LOGITS, **request, logprobs="raw", top_logprobs=2)
    np.testing.assert_array_equal(out.tokens, processed_.tokens)
    for b, row in enumerate(LOGITS.astype(float)):
        norm = oracle.log_normaliser(row)
        np.testing.assert_allclose(out.lse[b], norm, atol=1e-4)
        np.testing.assert_allclose(out.logprobs[b, 0], row[out.tokens[b, 0]] - norm, atol=1e-4)
        np.testing.assert_allclose(out.top_logprobs[b], row[out.top_ids[b]] - norm, atol=1e-4)


FIVE = np.log(np.array([[0.30, 0.25, 0.24, 0.11, 0.10]], dtype=np.float32))


@pytest.mark.parametrize(
    "order, kept", [("min_p,top_k,top_p", 1), ("joint", 2), ("before_temperature", 1)]
)
def test_orders_differ(order, kept):
    """Of 3 tokens with mass 0.79 the likeliest has 0.35 of it; of all mass, only two have that."""
    out = gumbel.sample_logits(FIVE, top_k=3, top_p=0.35, order=order, kept=True)
    assert out.kept.tolist() == [kept]


# Temperature, min_p and top_p, with top_k = 3, for which engines keep different numbers of tokens.
CUT_BY_ENGINES = [(1.5, 0.84, 0.52), (1.0, 0.82, 0.5), (1.0, 0.82, 0.35)]
ENGINES = {
    "vllm": ("min_p,top_k,top_p", [2, 1, 1]),
    "hf": ("top_k,top_p,min_p", [2, 2, 1]),
    "llama.cpp": ("top_k,top_p,min_p,temperature", [1, 2, 1]),
    "sglang": ("joint", [3, 2, 2]),
    "mlx": ("joint,temperature", [1, 2, 2]),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_orders_of_engines(engine):
    order, kept = ENGINES[engine]
    for named in (engine, order):
        found = [
            gumbel.sample_logits(
                FIVE, temperature=t, top_k=3, min_p=m, top_p=p, order=named, kept=True
            ).kept[0]
            for t, m, p in CUT_BY_ENGINES
        ]
        assert found == kept


def test_tie_modes():
    logits = np.array([[1, 2, 1, 1, 0]], dtype=np.float32)
    inf = -np.inf
    for rule in ({"top_k": 2}, {"top_p": 0.6}):
        found = gumbel.process_logits(logits, **rule)
        assert found.tolist() == [[1, 2, 1, 1, inf]]
        found = gumbel.process_logits(logits, **rule, ties="exact")
        assert found.tolist() == [[1, 2, inf, inf, inf]]


def test_every_kind_of_token_list():
    wanted = gumbel.process_logits(LOGITS, banned=[[1, 2]] * B)
    for banned in (
        [1, 2],
        (1, 2),
        {1, 2},
        range(1, 3),
        np.array([1, 2]),
        np.array([[1, 2]] * B, dtype=np.uint8),
        [range(1, 3), (1, 2), np.array([2, 1]), [np.int64(1), 2]],
    ):
        np.testing.assert_array_equal(gumbel.process_logits(LOGITS, banned=banned), wanted)
    for nothing in ([], [[]] * B, None):
        np.testing.assert_array_equal(gumbel.process_logits(LOGITS, banned=nothing), LOGITS)
    np.testing.assert_array_equal(gumbel.process_logits(LOGITS, logit_bias={}), LOGITS)


def test_unrequested_outputs_are_none():
    out = gumbel.sample_logits(LOGITS, top_k=3)
    assert out.ranks is None and out.kept is None
    assert out.top_ids is None and out.top_logprobs is None
    out = gumbel.sample_logits(LOGITS, logprobs=None, top_logprobs=2, ranks=True)
    assert out.logprobs is None and out.lse is None
    assert out.top_ids.shape == out.top_logprobs.shape == (B, 2)


def test_softcap_scale_and_vocabulary():
    common = {"scale": 0.5, "softcap": 2.0, "vocab_size": 150, "top_k": 10}
    found = gumbel.process_logits(LOGITS, **common)
    y = 2 * np.tanh(0.5 * LOGITS.astype(float) / 2)
    y[:, 150:] = -np.inf
    for b in range(B):
        np.testing.assert_allclose(found[b], oracle.process(y[b], 1, top_k=10), rtol=1e-5)
    np.testing.assert_array_equal(
        gumbel.sample_logits(LOGITS, **common, kept=True).kept, np.full(B, 10)
    )


def test_faulty_rows_do_not_change_others():
    logits = LOGITS.copy()
    logits[0, 3], logits[2, 5] = np.nan, np.inf
    request = {"top_p": 0.5, "ranks": True, "kept": True, "top_logprobs": 2, "seed": 0}
    good, bad = (gumbel.sample_logits(x, **request) for x in (LOGITS, logits))
    assert bad.status.tolist() == [1, 0, 2, 0]
    for name in ("tokens", "logprobs", "ranks", "kept", "top_ids", "top_logprobs"):
        for b in (1, 3):
            np.testing.assert_array_equal(getattr(bad, name)[b], getattr(good, name)[b], name)
    assert bad.ranks[0].tolist() == [-1]
    processed_ = gumbel.process_logits(logits, top_p=0.5)
    assert np.isnan(processed_[[0, 2]]).all() and not np.isnan(processed_[[1, 3]]).any()
    banned = gumbel.sample_logits(LOGITS, banned=range(V))
    assert banned.status.tolist() == [3] * B and banned.tokens.tolist() == [[-1]] * B


def test_an_empty_batch():
    out = gumbel.sample_logits(
        np.empty((0, V), np.float32), top_k=3, banned=[1], top_logprobs=2, kept=True
    )
    assert out.top_ids.shape == (0, 2) and out.kept.shape == (0,)
    assert gumbel.process_logits(np.empty((0, V), np.float32), top_k=3).shape == (0, V)


def test_help_shows_every_parameter():
    for function in (gumbel.sample, gumbel.score, gumbel.process_logits):
        for name in (*PENALTIES, *RULES, "mask", "history", "top_logprobs", "threads"):
            assert name in str(function.__signature__) and name in function.__doc__


def test_best_scores_are_those_of_all_scores_sorted():
    random = np.random.default_rng(3)
    logits = random.standard_normal((3, 500)).astype(np.float32)
    common = {"seed": np.array([1, 2, 3]), "position": 9, "temperature": [0.0, 0.7, 1.5]}
    cut = {"top_k": [0, 4, 100]}
    out = gumbel.sample_logits(logits, num_best=6, **common, **cut)
    processed = gumbel.process_logits(logits, **common, **cut)
    for b in range(3):
        noise = gumbel.noise(b + 1, 9, 500).reshape(-1) if b else np.zeros(500, np.float32)
        scores = processed[b] + noise
        order = np.argsort(-scores, kind="stable")[:6]
        left = np.isfinite(scores[order])
        assert (out.best_ids[b] == np.where(left, order, -1)).all()
        assert (out.best_scores[b] == np.where(left, scores[order], -np.inf)).all()
    assert (out.best_ids[:, 0] == out.tokens[:, 0]).all()
    assert gumbel.sample_logits(logits).best_ids is None
    for wrong in ({"num_best": 17}, {"num_best": 2, "num_samples": 2}):
        with pytest.raises(ValueError, match="num_best"):
            gumbel.sample_logits(logits, **wrong)

# SPDX-License-Identifier: Apache-2.0
"""Shards of a vocabulary, merged in any order, draw the tokens of the whole."""

import gumbel
import numpy as np
import pytest

B, V, D, S = 3, 300, 24, 2
RNG = np.random.default_rng(31)
HIDDEN = RNG.normal(size=(B, D)).astype(np.float32)
WEIGHT = (RNG.normal(size=(V, D)) * (3 / np.sqrt(D))).astype(np.float32)
BIAS = RNG.normal(size=V).astype(np.float32)
LOGITS = (HIDDEN @ WEIGHT.T + BIAS).astype(np.float32)
MASK = RNG.integers(-(2**31), 2**31, size=(B, (V + 31) // 32)).astype(np.int32)
SHARDS = [(0, 64), (64, 192), (192, V)]
COMMON = {
    "num_samples": S,
    "seed": 6,
    "position": 2**33,
    "temperature": [0.5, 0, 2],
    "vocab_size": V - 5,
}
EDITS = {"banned": [[70], [], [V - 6]], "logit_bias": {100: 4.0, 2: 1.0}}


def of_logits(**more):
    return [
        gumbel.partial_logits(
            LOGITS[:, first:end], first_token=first, mask=make_masks(end), **COMMON, **more
        )
        for first, end in SHARDS
    ]


def of_heads(**more):
    return [
        gumbel.partial(
            HIDDEN,
            WEIGHT[first:end],
            bias=BIAS[first:end],
            first_token=first,
            mask=make_masks(end),
            **COMMON,
            **more,
        )
        for first, end in SHARDS
    ]


def make_masks(end):
    return np.ascontiguousarray(MASK[:, : (end + 31) // 32])


def assert_equal_outputs(found, wanted):
    for name in ("tokens", "logprobs", "lse", "status"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), name)
    assert found.ranks is None and found.top_ids is None


def draw_whole(**more):
    head = gumbel.sample(HIDDEN, WEIGHT, bias=BIAS, mask=MASK, **COMMON, **more)
    return gumbel.sample_logits(LOGITS, mask=MASK, **COMMON, **more), head


@pytest.mark.parametrize("more", [{}, EDITS])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_merged_shards_draw_the_tokens_of_the_whole(order, more):
    for parts, wanted in zip((of_logits(**more), of_heads(**more)), draw_whole(**more)):
        assert all(p.dtype == gumbel.SUMMARY and p.shape == (B, S) for p in parts)
        parts = [parts[i] for i in order]
        assert_equal_outputs(gumbel.finish(np.stack(parts)), wanted)
        kept = [part.copy() for part in parts]
        for other in parts[1:]:
            gumbel.merge(parts[0], other)
        assert_equal_outputs(gumbel.finish(parts[0]), wanted)
        np.testing.assert_array_equal(parts[1:], kept[1:])


def test_summaries_survive_serialisation():
    """Summaries that were sent as bytes give the same tokens."""
    sent = b"".join(part.tobytes() for part in of_logits())
    gathered = np.frombuffer(sent, gumbel.SUMMARY).reshape(len(SHARDS), B, S)
    assert_equal_outputs(gumbel.finish(gathered), draw_whole()[0])
    with pytest.raises(ValueError, match="^into: the array is read-only"):
        gumbel.merge(gathered[0], gathered[1])
    rows = gathered[0].copy()
    with pytest.raises(ValueError, match="^other: overlaps into"):
        gumbel.merge(rows[:-1], rows[1:])
    assert rows.tobytes() == gathered[0].tobytes()


def test_fields_of_summaries():
    summaries = gumbel.partial_logits(LOGITS, first_token=1000, temperature=0)
    np.testing.assert_array_equal(summaries["best_id"][:, 0], 1000 + LOGITS.argmax(axis=1))
    np.testing.assert_array_equal(summaries["max_z"][:, 0], LOGITS.max(axis=1))


def test_rows_that_cannot_be_drawn():
    logits = LOGITS.copy()
    logits[0, 299], logits[1, 0] = np.nan, np.inf
    parts = [gumbel.partial_logits(logits[:, a:b], first_token=a, live_rows=2) for a, b in SHARDS]
    out = gumbel.finish(np.stack(parts))
    assert out.status.tolist() == [1, 2, 6] and out.tokens.tolist() == [[-1]] * 3
    assert np.isnan(out.lse).all() and np.isnan(out.logprobs).all()


def test_no_rows():
    out = gumbel.finish(gumbel.partial_logits(LOGITS[:0]))
    assert out.tokens.shape == (0, 1) and out.lse.shape == (0,)


PART = gumbel.partial_logits(LOGITS)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: gumbel.finish(LOGITS), TypeError, "summaries: expected summaries, of dtype"),
        (lambda: gumbel.finish([1]), TypeError, "summaries: expected a NumPy array"),
        (lambda: gumbel.finish(PART[0]), ValueError, "summaries: expected the shape"),
        (lambda: gumbel.finish(PART[:, :0]), ValueError, "summaries: expected the shape"),
        (lambda: gumbel.finish(PART[None][:0]), ValueError, "summaries: expected 1 to"),
        (lambda: gumbel.finish(PART[::2]), ValueError, "summaries: .*not contiguous"),
        (lambda: gumbel.merge(PART, PART[:2]), ValueError, "other: expected the shape of into"),
        (lambda: gumbel.merge(PART, LOGITS), TypeError, "other: expected summaries"),
        (lambda: gumbel.merge(None, PART), TypeError, "into: "),
        (lambda: gumbel.partial_logits(LOGITS, first_token=-1), ValueError, "first_token: "),
        (lambda: gumbel.partial_logits(LOGITS, first_token=2**31 - 9), ValueError, "first_token: "),
        (
            lambda: gumbel.partial_logits(LOGITS, top_k=1),
            TypeError,
            r".* takes no argument 'top_k'",
        ),
        (lambda: gumbel.partial(HIDDEN, WEIGHT, given=[1]), TypeError, ".* no argument 'given'"),
    ],
)
def test_invalid_arguments_are_named(call, error, text):
    with pytest.raises(error, match=f"^{text}"):
        call()

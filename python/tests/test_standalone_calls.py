# SPDX-License-Identifier: Apache-2.0
"""softmax() and top_k() compared with NumPy."""

import gumbel
import ml_dtypes
import numpy as np
import pytest

B, V = 4, 3001
RNG = np.random.default_rng(11)
LOGITS = (RNG.normal(size=(B, V)) * 3 - 40).astype(np.float32)
LOGITS[:, 9] = LOGITS[:, 7]

REQUESTS = [
    {},
    {"temperature": [0.5, 1, 2, 0]},
    {"top_k": 40, "top_p": [0.9, 0.5, 1, 0.99]},
    {"min_p": 0.05, "banned": [3, 4], "logit_bias": {7: 2.0}},
    {"vocab_size": V - 9, "scale": 20.0, "softcap": 30.0},
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("request_", REQUESTS)
def test_softmax_matches_numpy(dtype, request_):
    logits = LOGITS.astype(dtype)
    z = gumbel.process_logits(logits, **request_).astype(float)
    e = np.exp(z - z.max(axis=1, keepdims=True))
    found = gumbel.softmax(logits, **request_)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, e / e.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-37)
    np.testing.assert_array_equal(found == 0, e < np.exp(-87.0))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.uint16])
@pytest.mark.parametrize("request_", REQUESTS)
def test_process_logits_in_place_is_rounded_once(dtype, request_):
    kind = ml_dtypes.bfloat16 if dtype == np.uint16 else dtype
    wide = np.full((B, V + 3), 7, kind)  # rows with gaps
    wide[:, :V] = LOGITS
    logits = wide.view(dtype)[:, :V]
    z = gumbel.process_logits(logits, **request_)
    wanted = z.astype(kind)
    apart = np.zeros((B, V), dtype)
    assert gumbel.process_logits(logits, out=apart, **request_) is apart
    np.testing.assert_array_equal(apart.view(kind), wanted)
    as_float = np.zeros((B, V), np.float32)
    gumbel.process_logits(logits, out=as_float, **request_)
    np.testing.assert_array_equal(as_float, z)
    assert gumbel.process_logits(logits, out=logits, **request_) is logits
    np.testing.assert_array_equal(wide[:, :V], wanted)
    assert (wide[:, V:] == 7).all()


def test_process_logits_overflows_to_infinity():
    logits = np.array([[65504, 1, -65504, -np.inf, 2**-24]], np.float16)
    gumbel.process_logits(logits, scale=2.0, out=logits)
    np.testing.assert_array_equal(logits, [[np.inf, 2, -np.inf, -np.inf, 2**-23]])


def test_invalid_out_is_named():
    half, frozen = LOGITS.astype(np.float16), np.zeros((B, V), np.float32)
    frozen.flags.writeable = False
    memory = np.zeros(2 * B * V, np.float16)
    for logits, out, error in [
        (LOGITS, half, TypeError),
        (half, LOGITS.astype(ml_dtypes.bfloat16), TypeError),
        (half, half.astype(float), TypeError),
        (half, [[1.0]], TypeError),
        (half, np.zeros((B, V - 1), np.float16), ValueError),
        (half, np.zeros((V, B), np.float16).T, ValueError),
        (LOGITS, frozen, ValueError),
        (memory[: B * V].reshape(B, V), memory.view(np.float32).reshape(B, V), ValueError),
    ]:
        with pytest.raises(error, match="^out: "):
            gumbel.process_logits(logits, out=out)


def test_out_may_not_overlap_the_logits():
    memory = np.zeros((2 * B + 1, 2 * V), np.float32)
    logits, beside = memory[:B, :V], memory[:B, V:]
    logits[:] = LOGITS
    wanted = gumbel.process_logits(LOGITS, temperature=2)
    gumbel.process_logits(memory[:0, :V], out=memory[:0, 1 : V + 1])  # no rows
    for out in (beside, memory[B : 2 * B, :V]):
        np.testing.assert_array_equal(
            gumbel.process_logits(logits, temperature=2, out=out), wanted
        )
    dense = memory.reshape(-1)[: (B + 1) * V].reshape(B + 1, V)
    kept = memory.copy()
    for given, out in [
        (logits, memory[1 : B + 1, :V]),
        (logits, memory[:B, V // 2 : V // 2 + V]),
        (dense[:B], dense[1:]),
        (dense[1:], dense[:B]),
    ]:
        with pytest.raises(ValueError, match="^out: overlaps the logits"):
            gumbel.process_logits(given, temperature=2, out=out)
    np.testing.assert_array_equal(memory, kept)


def test_softmax_of_faulty_rows():
    logits = np.array([[np.nan, 0], [np.inf, 0], [-np.inf, -np.inf], [0, -np.inf]], np.float32)
    found = gumbel.softmax(logits)
    assert np.isnan(found[:3]).all()
    np.testing.assert_array_equal(found[3], [1, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("k", [1, 50, 128])
def test_top_k_matches_numpy(dtype, k):
    logits = LOGITS.astype(dtype)
    values, ids = gumbel.top_k(logits, k)
    wide = logits.astype(np.float32)
    wanted = np.argsort(-wide, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_array_equal(values, np.take_along_axis(wide, wanted, axis=1))
    assert ids.dtype == np.int32 and values.dtype == np.float32


def test_top_k_of_faulty_rows():
    logits = np.array([[-np.inf, 2, 5], [1, np.nan, 3]], np.float32)
    values, ids = gumbel.top_k(logits, 3)
    np.testing.assert_array_equal(ids, [[2, 1, -1], [-1, -1, -1]])
    np.testing.assert_array_equal(values[0], [5, 2, -np.inf])
    assert np.isnan(values[1]).all()


def test_invalid_arguments_are_named():
    for k in (0, 129):
        with pytest.raises(ValueError, match="^k: "):
            gumbel.top_k(LOGITS, k)
    with pytest.raises(TypeError, match="^logits: "):
        gumbel.top_k(LOGITS.astype(float), 3)
    with pytest.raises(ValueError, match=r"temperature\[1\]: "):
        gumbel.softmax(LOGITS, temperature=[1, -1, 1, 1])

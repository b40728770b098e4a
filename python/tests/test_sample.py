# SPDX-License-Identifier: Apache-2.0
"""sample() and sample_logits() against the oracle of the sampling contract."""

from concurrent.futures import ThreadPoolExecutor

import gumbel
import ml_dtypes
import numpy as np
import oracle
import pytest
from gumbel._inputs.arguments import read_row_integers
from gumbel._inputs.arrays import NumpyArrays

B, V, D = 5, 515, 48

DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def make_problem(dtype=np.float32, seed=0):
    """hidden [B, D], weight [V, D], bias [V] with logits about 3 wide."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(B, D)).astype(np.float32).astype(dtype)
    weight = (rng.normal(size=(V, D)) * (3 / np.sqrt(D))).astype(np.float32).astype(dtype)
    return hidden, weight, rng.normal(size=V).astype(np.float32).astype(dtype)


def multiply(hidden, weight, bias=None):
    logits = hidden.astype(float) @ weight.astype(float).T
    return logits if bias is None else logits + bias.astype(float)


def as_rows(value):
    return [value] * B


def batch_seeds(seed):
    return [oracle.row_seed(seed, b) for b in range(B)]


def check(out, logits, *parameters, **transforms):
    tokens, logprobs, lse = oracle.draw(logits, *parameters, **transforms)
    assert out.tokens.dtype == out.status.dtype == np.int32
    assert out.logprobs.dtype == out.lse.dtype == np.float32
    np.testing.assert_array_equal(out.tokens, tokens)
    np.testing.assert_array_equal(out.status, np.zeros(len(tokens)))
    np.testing.assert_allclose(out.logprobs, logprobs, atol=1e-4)
    np.testing.assert_allclose(out.lse, lse, atol=1e-4)


def assert_equal_outputs(a, b):
    for name in ("tokens", "logprobs", "lse", "status"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_sample_equals_the_oracle(dtype, seed):
    hidden, weight, bias = make_problem(dtype)
    out = gumbel.sample(hidden, weight, bias=bias, seed=seed, position=11)
    check(out, multiply(hidden, weight, bias), as_rows(1.0), batch_seeds(seed), as_rows(11))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sample_logits_equals_the_oracle(dtype):
    hidden, weight, _ = make_problem()
    logits = multiply(hidden, weight).astype(dtype)
    out = gumbel.sample_logits(logits, seed=9, position=2, num_samples=7)
    check(out, logits.astype(float), as_rows(1.0), batch_seeds(9), as_rows(2), 7)


def test_scale_softcap_and_temperature():
    hidden, weight, bias = make_problem()
    out = gumbel.sample(hidden, weight, bias=bias, scale=0.5, softcap=4.0, temperature=0.7, seed=0)
    transforms = {"scale": 0.5, "softcap": 4.0}
    check(
        out, multiply(hidden, weight, bias), as_rows(0.7), batch_seeds(0), as_rows(0), **transforms
    )


def test_parameters_of_each_row():
    hidden, weight, _ = make_problem()
    logits = multiply(hidden, weight)
    temperature = np.array([1.0, 0.5, 0.0, 2.0, 0.9], dtype=np.float32)
    seed = np.array([3, 2**63 + 1, 3, 0, 2**64 - 1], dtype=np.uint64)
    position = np.array([0, 5, 0, 2**32 - 1, 7], dtype=np.uint32)
    expected = (logits, temperature.astype(float), seed.tolist(), position.tolist())
    for kind in (np.asarray, np.ndarray.tolist):
        common = {
            "temperature": kind(temperature),
            "seed": kind(seed),
            "position": kind(position),
            "num_samples": 2,
        }
        check(gumbel.sample(hidden, weight, **common), *expected, 2)
        check(gumbel.sample_logits(logits.astype(np.float32), **common), *expected, 2)


def test_first_sample_of_each_row():
    """A row's draws use the counters from its own first_sample on, for all types of arguments."""
    hidden, weight, _ = make_problem()
    logits = multiply(hidden, weight).astype(np.float32)
    counters = [0, 7, 2**32 - 1, 1, 2**31]
    common = {"seed": [5] * B, "position": 3, "num_samples": 2}
    wanted = [
        [
            np.argmax(logits[b] + gumbel.noise(5, 3, V, sample=(counters[b] + j) % 2**32))
            for j in range(2)
        ]
        for b in range(B)
    ]
    given = [counters, *(np.array(counters, dtype) for dtype in (np.uint32, np.uint64, np.int64))]
    for first_sample in given:
        for out in (
            gumbel.sample(hidden, weight, first_sample=first_sample, **common),
            gumbel.sample_logits(logits, first_sample=first_sample, **common),
        ):
            np.testing.assert_array_equal(out.tokens, wanted)
    rest = gumbel.sample_logits(logits, first_sample=2, **common)
    every = gumbel.sample_logits(logits, **{**common, "num_samples": 4})
    np.testing.assert_array_equal(rest.tokens, every.tokens[:, 2:])
    parts = gumbel.partial_logits(logits, first_sample=counters, **common)
    np.testing.assert_array_equal(gumbel.finish(parts).tokens, wanted)


def test_first_sample_is_not_copied():
    for dtype in (np.int32, np.uint32):
        values = np.arange(B, dtype=dtype)
        found, _ = read_row_integers("first_sample", values, B, np.uint32, NumpyArrays(None, None))
        assert np.shares_memory(found, values)


def test_positions_of_64_bits():
    hidden, weight, _ = make_problem()
    position = np.array([2**32, 2**32 - 1, 2**40 + 3, 2**63 + 5, 2**64 - 1], dtype=np.uint64)
    expected = (multiply(hidden, weight), as_rows(1.0), [3] * B, position.tolist())
    for positions in (position, position.tolist()):
        check(gumbel.sample(hidden, weight, seed=[3] * B, position=positions), *expected)
    signed = np.array([0, 1, 2**40, 2**62, 2**63 - 1])
    assert_equal_outputs(
        gumbel.sample(hidden, weight, seed=0, position=signed),
        gumbel.sample(hidden, weight, seed=0, position=signed.astype(np.uint64)),
    )


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_seeds_and_positions_are_not_copied(dtype):
    values = np.arange(B, dtype=dtype)
    found, _ = read_row_integers("seed", values, B, np.uint64, NumpyArrays(None, None))
    assert np.shares_memory(found, values)


def test_strided_parameters():
    hidden, weight, _ = make_problem()
    every = np.arange(2 * B)
    strided = {"seed": every[::2], "position": every[::-2], "temperature": every[1::2]}
    dense = {"seed": [0, 2, 4, 6, 8], "position": [9, 7, 5, 3, 1], "temperature": [1, 3, 5, 7, 9]}
    assert_equal_outputs(
        gumbel.sample(hidden, weight, **strided), gumbel.sample(hidden, weight, **dense)
    )


def test_one_seed_is_mixed_with_the_row():
    hidden, weight, _ = make_problem()
    one = gumbel.sample(hidden, weight, seed=77)
    assert_equal_outputs(one, gumbel.sample(hidden, weight, seed=batch_seeds(77)))
    alone = gumbel.sample(hidden[:1], weight, seed=77)
    np.testing.assert_array_equal(alone.tokens, one.tokens[:1])


def test_log_probabilities_can_be_left_out():
    hidden, weight, _ = make_problem()
    out = gumbel.sample(hidden, weight, seed=2, num_samples=3, logprobs=None)
    assert out.logprobs is None and out.lse is None
    np.testing.assert_array_equal(
        out.tokens, gumbel.sample(hidden, weight, seed=2, num_samples=3).tokens
    )


def test_greedy_takes_the_lowest_of_equals():
    logits = np.zeros((2, 70), dtype=np.float32)
    logits[1, [13, 66]] = 1.0
    np.testing.assert_array_equal(
        gumbel.sample_logits(logits, temperature=0, num_samples=2).tokens, [[0, 0], [13, 13]]
    )


def test_the_draw_is_logits_plus_noise():
    hidden, weight, _ = make_problem()
    logits = multiply(hidden, weight).astype(np.float32)
    out = gumbel.sample_logits(logits, seed=np.arange(B), position=3, num_samples=4)
    for b in range(B):
        for s in range(4):
            score = logits[b] + gumbel.noise(b, 3, V, sample=s)
            assert out.tokens[b, s] == np.argmax(score)


@pytest.mark.parametrize("isa", gumbel.info().isas)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_isa_and_thread_count_gives_the_same_bits(isa, threads):
    hidden, weight, bias = make_problem(ml_dtypes.bfloat16)
    common = {"bias": bias, "seed": 4, "temperature": 0.8, "softcap": 9.0, "num_samples": 3}
    forced = gumbel.sample(hidden, weight, **common, isa=isa, threads=threads)
    assert_equal_outputs(forced, gumbel.sample(hidden, weight, **common))
    about = gumbel.info(isa=isa, threads=threads)
    assert (about.isa, about.threads) == (isa, threads)


def test_uint16_means_bfloat16_bits():
    arrays = [oracle.bfloat16_bits(array) for array in make_problem()]
    typed = [array.view(ml_dtypes.bfloat16) for array in arrays]
    by_bits = gumbel.sample(*arrays[:2], bias=arrays[2], seed=8)
    for hidden, weight, bias in (typed, [arrays[0], typed[1], arrays[2]]):
        assert_equal_outputs(by_bits, gumbel.sample(hidden, weight, bias=bias, seed=8))
    hidden, weight, bias = (oracle.widen(array) for array in arrays)
    check(by_bits, multiply(hidden, weight, bias), as_rows(1.0), batch_seeds(8), as_rows(0))
    logits = oracle.bfloat16_bits(multiply(hidden, weight))
    by_bits = gumbel.sample_logits(logits, seed=8)
    assert_equal_outputs(by_bits, gumbel.sample_logits(oracle.widen(logits), seed=8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_rows(dtype):
    hidden, weight, _ = make_problem(dtype)
    wide = np.full((V, D + 16), np.nan, dtype=dtype)
    wide[:, 8 : 8 + D] = weight
    apart = np.full((2 * B, D), np.nan, dtype=dtype)
    apart[::2] = hidden
    for array in (wide, apart):
        array.flags.writeable = False
    found = gumbel.sample(apart[::2], wide[:, 8 : 8 + D], seed=0)
    assert_equal_outputs(found, gumbel.sample(hidden, weight, seed=0))


def test_tokens_beyond_the_vocabulary_never_count():
    hidden, weight, _ = make_problem()
    padded = np.concatenate([weight, np.full((13, D), np.inf, dtype=np.float32)])
    found = gumbel.sample(hidden, padded, vocab_size=V, seed=0)
    assert_equal_outputs(found, gumbel.sample(hidden, weight, seed=0))


def test_faulty_rows_do_not_change_others():
    hidden, weight, _ = make_problem()
    logits = multiply(hidden, weight).astype(np.float32)
    good = gumbel.sample_logits(logits, num_samples=2, seed=0)
    logits[1, 3], logits[2, 500], logits[4] = np.nan, np.inf, -np.inf
    bad = gumbel.sample_logits(logits, num_samples=2, seed=0)
    assert bad.status.tolist() == [0, 1, 2, 0, 3]
    for b in (1, 2, 4):
        assert bad.tokens[b].tolist() == [-1, -1]
        assert np.isnan(bad.logprobs[b]).all() and np.isnan(bad.lse[b])
    for b in (0, 3):
        assert bad.tokens[b].tolist() == good.tokens[b].tolist()
        assert bad.lse[b] == good.lse[b]


def test_empty_and_smallest_problems():
    out = gumbel.sample(np.empty((0, D), np.float32), np.zeros((V, D), np.float32), num_samples=3)
    assert [getattr(out, n).shape for n in ("tokens", "logprobs", "lse", "status")] == [
        (0, 3),
        (0, 3),
        (0,),
        (0,),
    ]
    one = gumbel.sample(np.ones((1, 1), np.float16), np.ones((1, 1), np.float32))
    assert one.tokens.tolist() == [[0]] and one.logprobs.tolist() == [[0.0]]


def test_many_python_threads_at_once():
    hidden, weight, _ = make_problem()
    expected = [gumbel.sample(hidden, weight, seed=i, num_samples=3) for i in range(48)]
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(
                lambda i: gumbel.sample(hidden, weight, seed=i, num_samples=3, threads=1 + i % 3),
                range(48),
            )
        )
    for a, b in zip(expected, found):
        assert_equal_outputs(a, b)

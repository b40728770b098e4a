# SPDX-License-Identifier: Apache-2.0
"""The generator and the noise: published known answers, and the float64 oracle."""

from pathlib import Path

import gumbel
import numpy as np
import oracle
import pytest

ORACLE = Path(__file__).resolve().parents[2] / "tests" / "oracle"


def fields(name):
    """The fields of every line of a file of known answers."""
    for line in (ORACLE / name).read_text().splitlines():
        if line and not line.startswith("#"):
            yield line.split()


def known_answers():
    """rounds, counter, key, answer of each line: the vectors that Random123 publishes."""
    for rounds, *words in fields("philox_kat.txt"):
        numbers = [int(word, 16) for word in words]
        yield int(rounds), numbers[:4], numbers[4:6], numbers[6:]


@pytest.mark.parametrize("rounds, counter, key, expected", list(known_answers()))
def test_philox_known_answers(rounds, counter, key, expected):
    assert gumbel.philox4x32(counter, key, rounds).tolist() == expected
    assert [int(word) for word in oracle.philox4x32(counter, key, rounds)] == expected


def test_philox_defaults_and_types():
    block = gumbel.philox4x32(np.zeros(4, dtype=np.uint32), (0, 0))
    assert block.dtype == np.uint32
    np.testing.assert_array_equal(block, gumbel.philox4x32([0] * 4, [0] * 2, rounds=10))
    assert gumbel.philox4x32([1, 2, 3, 4], [5, 6], rounds=0).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
@pytest.mark.parametrize(
    "position, sample, domain", [(0, 0, 0), (7, 3, 1), (2**32 - 1, 2**32 - 1, 5), (2**63 + 9, 1, 0)]
)
def test_noise_equals_the_oracle(seed, position, sample, domain):
    ours = gumbel.noise(seed, position, 4099, sample=sample, domain=domain)
    theirs = oracle.noise(np.arange(4099), seed, position, sample, domain)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("line", list(fields("noise_kat.txt")))
def test_oracle_matches_known_noise(line):
    """The oracle at extreme words, whose tokens are too large to compute the noise of all preceding
    ones."""
    seed, position, sample, domain = (int(word, 16) for word in line[:4])
    token, expected = int(line[4]), float.fromhex(line[8])
    found = oracle.token_words([token], seed, position, sample, domain)
    assert [int(word[0]) for word in found] == [int(word, 16) for word in line[5:8]]
    np.testing.assert_allclose(
        oracle.noise([token], seed, position, sample, domain)[0], expected, rtol=3e-7, atol=3e-7
    )


@pytest.mark.parametrize("position, token", [(6829, 7640), (24889, 313), (171368, 5534)])
def test_noise_of_small_words(position, token):
    """First words below 256, one in 2^24, take 26 more bits; these blocks of seed 5 have such."""
    r, r2, _ = oracle.token_words([token], 5, position)
    assert r[0] < 256 and r2[0] % 64 == token % 64
    ours = gumbel.noise(5, position, token + 1)
    assert ours[token] > 20.79
    np.testing.assert_allclose(ours[token], oracle.noise([token], 5, position)[0], rtol=2e-7)


def test_noise_is_a_prefix():
    assert np.array_equal(gumbel.noise(3, 1, 1000)[:37], gumbel.noise(3, 1, 37))
    assert gumbel.noise(3, 1, 0).shape == (0,)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: gumbel.noise(-1, 0, 4), ValueError, "seed: "),
        (lambda: gumbel.noise(2**64, 0, 4), ValueError, "seed: "),
        (lambda: gumbel.noise(0, 2**64, 4), ValueError, "position: "),
        (lambda: gumbel.noise(0, 0, -1), ValueError, "vocab_size: "),
        (lambda: gumbel.noise(0, 0, 4, sample=2**32), ValueError, "sample: "),
        (lambda: gumbel.noise(0, 0, 4, domain=2**31), ValueError, "domain: "),
        (lambda: gumbel.noise(0.5, 0, 4), TypeError, "seed: "),
        (lambda: gumbel.philox4x32([0] * 3, [0] * 2), ValueError, "counter: "),
        (lambda: gumbel.philox4x32([0] * 4, [0, 2**32]), ValueError, r"key\[1\]: "),
        (lambda: gumbel.philox4x32([0] * 4, [0] * 2, 17), ValueError, "rounds: "),
    ],
)
def test_invalid_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()

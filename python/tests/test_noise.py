# SPDX-License-Identifier: Apache-2.0
"""The generator and the noise: published known answers, and the float64 oracle."""

import gumbel
import numpy as np
import oracle
import pytest

ZEROS, ONES = [0] * 4, [0xFFFFFFFF] * 4
PI_COUNTER = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
PI_KEY = [0xA4093822, 0x299F31D0]

# Random123, kat_vectors, philox4x32.
KNOWN = [
    (7, ZEROS, ZEROS[:2], [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
    (7, ONES, ONES[:2], [0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662]),
    (7, PI_COUNTER, PI_KEY, [0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A]),
    (10, ZEROS, ZEROS[:2], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (10, ONES, ONES[:2], [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (10, PI_COUNTER, PI_KEY, [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
]


@pytest.mark.parametrize("rounds, counter, key, expected", KNOWN)
def test_philox_known_answers(rounds, counter, key, expected):
    assert gumbel.philox4x32(counter, key, rounds).tolist() == expected
    assert [int(word) for word in oracle.philox4x32(counter, key, rounds)] == expected


def test_philox_defaults_and_types():
    block = gumbel.philox4x32(np.array(PI_COUNTER, dtype=np.uint32), tuple(PI_KEY))
    assert block.dtype == np.uint32
    assert block.tolist() == KNOWN[5][3]
    assert gumbel.philox4x32(PI_COUNTER, PI_KEY, rounds=0).tolist() == PI_COUNTER


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**64 - 1])
@pytest.mark.parametrize(
    "position, sample, domain", [(0, 0, 0), (7, 3, 1), (2**32 - 1, 2**32 - 1, 5)]
)
def test_noise_equals_the_oracle(seed, position, sample, domain):
    ours = gumbel.noise(seed, position, 4099, sample=sample, domain=domain)
    theirs = oracle.noise(np.arange(4099), seed, position, sample, domain)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, rtol=4e-7, atol=4e-7)


@pytest.mark.parametrize("position, token", [(719, 2352), (1849, 4215), (7317, 3776)])
def test_noise_in_the_tail(position, token):
    """Words below 256, one in 2^24, take 32 more bits; these tokens of seed 5 have such words."""
    assert oracle.words([token], 5, position, 0, 0) < 256
    ours = gumbel.noise(5, position, token + 1)
    assert ours[token] > 16.6
    np.testing.assert_allclose(ours[token], oracle.noise([token], 5, position)[0], rtol=2e-7)


def test_noise_is_a_prefix():
    assert np.array_equal(gumbel.noise(3, 1, 1000)[:37], gumbel.noise(3, 1, 37))
    assert gumbel.noise(3, 1, 0).shape == (0,)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: gumbel.noise(-1, 0, 4), ValueError, "seed: "),
        (lambda: gumbel.noise(2**64, 0, 4), ValueError, "seed: "),
        (lambda: gumbel.noise(0, 2**32, 4), ValueError, "position: "),
        (lambda: gumbel.noise(0, 0, -1), ValueError, "vocab_size: "),
        (lambda: gumbel.noise(0, 0, 4, sample=2**32), ValueError, "sample: "),
        (lambda: gumbel.noise(0, 0, 4, domain=2**31), ValueError, "domain: "),
        (lambda: gumbel.noise(0.5, 0, 4), TypeError, "seed: "),
        (lambda: gumbel.philox4x32([0] * 3, [0] * 2), ValueError, "counter: "),
        (lambda: gumbel.philox4x32([0] * 4, [0, 2**32]), ValueError, r"key\[1\]: "),
        (lambda: gumbel.philox4x32([0] * 4, [0] * 2, 17), ValueError, "rounds: "),
    ],
)
def test_bad_arguments_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()

# SPDX-License-Identifier: Apache-2.0
"""Screens: draws by them, and their certificates in exact rationals."""

import struct
import unittest
from fractions import Fraction

import gumbel
import numpy as np


def bfloat16(array):
    """The bits of float32 values, cut to bfloat16, and these values."""
    bits = (np.asarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32)


def weights(rows, columns):
    """Rows of many kinds: Gaussian, zero, one entry, an outlier, tiny, integers, half steps."""
    matrix = np.random.default_rng(3).standard_normal((rows, columns)).astype(np.float32)
    matrix[1::8] = 0
    matrix[2::8, 1:] = 0
    matrix[3::8, 5] = 300
    matrix[4::8] *= np.float32(1e-36)
    matrix[5::8] = np.rint(matrix[5::8] * 30)
    matrix[6::8] = (np.rint(matrix[6::8] * 30) + np.float32(0.499)) / 127
    return matrix


class Certificate(unittest.TestCase):
    """The layout and bounds of docs/maths.md, section 14, and src/maths/screen_bound.h."""

    def test_bounds_hold_exactly(self):
        rows, columns = 130, 70
        for bits, values in (bfloat16(weights(rows, columns)), (weights(rows, columns),) * 2):
            data = bytes(np.asarray(gumbel.Screen(bits)))
            self.assertEqual(data[:8], b"GBSCREEN")
            self.assertEqual(struct.unpack_from("<qq", data, 16), (rows, columns))
            blocks, padded = 3, 128
            steps = 64 + 64  # the header, and 24 bytes of bounds, each rounded up to 64
            dither_at = steps + 4 * 64 * blocks
            copy = dither_at + 4 * padded
            dither = struct.unpack_from(f"<{padded}i", data, dither_at)
            self.assertTrue(all(-(2**23) <= u < 2**23 for u in dither))
            self.assertEqual(dither[columns:], (0,) * (padded - columns))
            self.assertGreater(len(set(dither)), columns // 2)
            self.assertEqual(len(data), copy + 64 * blocks * padded)
            for row in range(rows):
                error, size = struct.unpack_from("<ff", data, 64 + 8 * (row // 64))
                (step,) = struct.unpack_from("<f", data, steps + 4 * row)
                tile = copy + row // 16 * 16 * padded + row % 16 * 4
                errors = sizes = largest = Fraction(0)
                for i in range(columns):
                    at = tile + i // 64 * 1024 + i % 64 // 4 * 64 + i % 4
                    q = data[at] - 128
                    u = Fraction(dither[i], 2**24)
                    e = Fraction(float(values[row, i])) / Fraction(step) - (q - u)
                    errors, sizes, largest = errors + e * e, sizes + q * q, max(largest, abs(e))
                self.assertLessEqual(errors, Fraction(error) ** 2)
                self.assertLessEqual(sizes, Fraction(size) ** 2)
                self.assertLessEqual(largest, Fraction(1, 2) + Fraction(1, 2**13))


class Draws(unittest.TestCase):
    def setUp(self):
        random = np.random.default_rng(1)
        self.hidden = random.standard_normal((5, 96)).astype(np.float32)
        self.weight = random.standard_normal((3000, 96)).astype(np.float32) / 8
        self.screen = gumbel.Screen(self.weight)

    def same(self, **how):
        plain = gumbel.sample(self.hidden, self.weight, **how)
        screened = gumbel.sample(self.hidden, self.screen, **how)
        for name in ("tokens", "status", "logprobs", "lse"):
            found = getattr(screened, name)
            np.testing.assert_array_equal(getattr(plain, name), found, err_msg=name)

    def test_same_tokens(self):
        for position in range(50):
            how = dict(seed=7, position=position, temperature=[0, 0.5, 1, 2, 100])
            self.same(logprobs=None, **how)
            self.same(logprobs=None, num_samples=3, logit_bias={5: 3.0}, banned=[7], **how)
            self.same(**how)  # by the full pass
            self.same(top_k=5, top_p=0.9, **how)

    def test_options(self):
        one, two = (gumbel.Screen(self.weight, seed=5) for _ in range(2))
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))
        other = gumbel.Screen(self.weight)
        self.assertFalse(np.array_equal(np.asarray(one), np.asarray(other)))
        self.screen = gumbel.Screen(self.weight, certificate="certain", seed=2**64 - 1)
        self.same(logprobs=None, seed=3)
        for wrong in (-1, 2**64):
            with self.assertRaisesRegex(ValueError, "seed"):
                gumbel.Screen(self.weight, seed=wrong)
        with self.assertRaisesRegex(TypeError, "seed"):
            gumbel.Screen(self.weight, seed=1.5)
        with self.assertRaisesRegex(ValueError, "certificate"):
            gumbel.Screen(self.weight, certificate="sure")
        with self.assertRaisesRegex(ValueError, "format"):
            gumbel.Screen(self.weight, format="bits")

    def test_nibbles(self):
        self.screen = gumbel.Screen(self.weight, format="nibbles", seed=4)
        self.screen.verify()
        self.test_same_tokens()
        self.hidden = self.hidden[:2]
        for position in range(50):
            self.same(logprobs=None, seed=2, position=position, temperature=[0.7, 0])

    def test_a_screen_of_bytes_is_updated_as_requested(self):
        for how in (
            {"certificate": "certain", "seed": 4},
            {"seed": 4},
            {"seed": 4, "format": "nibbles"},
        ):
            screen = gumbel.Screen(self.weight, **how)
            wanted = screen.bytes.copy()
            screen.bytes[:] = 0
            gumbel.Screen.of_bytes(self.weight, screen.bytes, **how).update()
            self.assertTrue(np.array_equal(screen.bytes, wanted))
        with self.assertRaisesRegex(ValueError, "certificate"):
            gumbel.Screen.of_bytes(self.weight, screen.bytes, certificate="sure")

    def test_prepared(self):
        position = np.zeros(5, np.uint64)
        how = dict(temperature=0.9, seed=1, logprobs=None)
        draw = gumbel.prepare_sample(self.hidden, self.screen, position=position, **how)
        for step in range(5):
            position[:] = step
            plain = gumbel.sample(self.hidden, self.weight, position=step, **how)
            np.testing.assert_array_equal(draw().tokens, plain.tokens)

    def test_explained(self):
        self.assertIn("rows: screen:", gumbel.explain(self.screen, self.hidden, logprobs=None))
        text = gumbel.explain(self.screen, self.hidden)
        self.assertIn("not screen: does not support log-normaliser", text)
        self.assertNotIn("screen", gumbel.explain(self.weight, self.hidden))

    def test_changed_weights(self):
        self.screen.verify()
        self.weight[1234] *= 2
        with self.assertRaisesRegex(ValueError, "row 1234 "):
            self.screen.verify()
        self.screen.update()
        self.screen.verify()
        self.same(logprobs=None, seed=3)

    def test_memory_is_kept(self):
        screen = gumbel.Screen(np.array(self.weight))
        plain = gumbel.sample(self.hidden, self.weight, seed=1, logprobs=None)
        found = gumbel.sample(self.hidden, screen, seed=1, logprobs=None)
        np.testing.assert_array_equal(plain.tokens, found.tokens)

    def test_replaced_memory(self):
        self.weight.resize((100000, 96), refcheck=False)
        for call in (
            lambda: gumbel.sample(self.hidden, self.screen, logprobs=None),
            lambda: gumbel.prepare_sample(self.hidden, self.screen, logprobs=None),
            lambda: gumbel.explain(self.screen, self.hidden, logprobs=None),
            self.screen.verify,
            self.screen.update,
        ):
            with self.assertRaisesRegex(ValueError, "weight: its memory was replaced"):
                call()

    def test_stale_weights(self):
        """NaN is not among the tokens' values, and a token is one of the vocabulary."""
        for change in (np.nan, np.inf, -1000.0, 0.0):
            weight = np.array(self.weight)
            screen = gumbel.Screen(weight)
            weight *= change
            for how in ({}, dict(top_k=40), dict(top_p=0.9), dict(min_p=0.1, num_samples=3)):
                drawn = gumbel.sample(self.hidden, screen, seed=2, logprobs=None, **how)
                tokens = np.asarray(drawn.tokens).reshape(5, -1)
                ok = np.asarray(drawn.status) == 0
                self.assertTrue(np.all((tokens[ok] >= 0) & (tokens[ok] < 3000)))
                self.assertTrue(np.all(tokens[~ok] == -1))
                if np.isnan(change):
                    self.assertFalse(ok.any())

    def test_refusals(self):
        with self.assertRaisesRegex(TypeError, "weight"):
            gumbel.Screen([[1.0, 2.0]])
        with self.assertRaisesRegex(ValueError, "weight"):
            gumbel.Screen(np.zeros((0, 5), np.float32))
        with self.assertRaisesRegex(ValueError, "65536 columns"):
            gumbel.Screen(np.zeros((2, 65536), np.float32))
        other = gumbel.Screen(np.zeros((3000, 97), np.float32))
        with self.assertRaisesRegex(ValueError, "97"):
            gumbel.sample(self.hidden, other)


if __name__ == "__main__":
    unittest.main()

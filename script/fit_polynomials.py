#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fit the polynomials of src/maths/elementary.h and print them as C hexadecimal floats.

Each is a weighted least-squares fit on Chebyshev nodes in double, rounded to float32 coefficient by
coefficient from the lowest degree up, the later ones fitted anew to what rounding left over.
Needs NumPy.
"""
import numpy as np


def fit(target, low, high, degree, weight):
    """Coefficients c[0..degree], float32, of the polynomial nearest to `target` on [low, high]."""
    k = np.arange(4096)
    x = 0.5 * (low + high) + 0.5 * (high - low) * np.cos(np.pi * (k + 0.5) / len(k))
    left, done = target(x), []
    for power in range(degree + 1):
        basis = np.stack([x**p for p in range(power, degree + 1)], axis=1) * weight(x)[:, None]
        c = np.linalg.lstsq(basis, left * weight(x), rcond=None)[0]
        done.append(np.float32(c[0]))
        left = left - float(done[-1]) * x**power
    return done, np.abs(left * weight(x)).max()


def log_tail(f):
    """(log1p(f) - f + f^2 / 2) / f^3, by its series near 0 where the difference cancels."""
    series = sum((-1) ** j * f**j / (j + 3) for j in range(40))
    with np.errstate(all="ignore"):
        return np.where(np.abs(f) < 0.3, series, (np.log1p(f) - f + 0.5 * f * f) / f**3)


def exp_tail(x):
    """(exp(x) - 1 - x) / x^2."""
    return sum(x**j / np.prod(np.arange(1.0, j + 3)) for j in range(20))


def tanh_tail(z):
    """(tanh(a) - a) / a^3 at a = sqrt(z)."""
    a = np.sqrt(z)
    return (np.tanh(a) - a) / a**3


def main():
    half = np.log(2.0) / 2
    for name, *problem in (
        ("log tail", log_tail, np.sqrt(0.5) - 1, np.sqrt(2.0) - 1, 8, lambda f: np.abs(f) ** 3),
        ("exp tail", exp_tail, -half, half, 4, lambda x: x**2),
        ("tanh tail", tanh_tail, 1e-4, 0.625**2, 4, lambda z: z),
    ):
        coefficients, error = fit(*problem)
        print(f"{name}: largest weighted error {error:.2e}")
        for power, c in enumerate(coefficients):
            print(f"  c{power} = {float(c).hex()}f  ({c:+.9e})")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""How much faster is sample_logits() than softmax and inverse CDF in NumPy?

One row of float32 logits, V = 151936. The answers are verified before anything is timed.
"""

import argparse
import json
import platform
import sys
import time

import gumbel
import numpy as np


def inverse_cdf(logits, rng):
    """The usual route: softmax, running sum, one uniform, binary search."""
    mass = np.exp(logits - logits.max())
    cdf = np.cumsum(mass)
    return int(np.searchsorted(cdf, rng.random() * cdf[-1], side="right"))


def verify(logits):
    """The draw is the argmax of logits + noise, and its log-probability is the softmax's."""
    wide = logits[0].astype(float)
    lse = wide.max() + np.log(np.exp(wide - wide.max()).sum())
    for position in range(8):
        out = gumbel.sample_logits(logits, seed=1, position=position)
        token = int(out.tokens[0, 0])
        score = logits[0] + gumbel.noise(1, position, logits.shape[1])
        if token != np.argmax(score) or abs(out.logprobs[0, 0] - (wide[token] - lse)) > 1e-4:
            sys.exit(f"bench: position {position}: token {token} is not the one of the contract")


def measure(call, seconds):
    """Microseconds of each call, at least 9 of them, for about `seconds`."""
    for _ in range(3):
        call()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 9 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, default=151936, help="V (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of libgumbel (default: 1)")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each row of the table")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()

    rng = np.random.default_rng(0)
    logits = rng.normal(scale=3.0, size=(1, arguments.vocab)).astype(np.float32)
    verify(logits)
    calls = {
        "numpy max (one read)": lambda: logits.max(),
        "numpy softmax + inverse CDF": lambda: inverse_cdf(logits[0], rng),
    }
    for isa in gumbel.info().isas:
        calls[f"gumbel {isa}"] = lambda isa=isa: gumbel.sample_logits(
            logits, seed=1, isa=isa, threads=arguments.threads
        )
    rows = []
    for name, call in calls.items():
        times = measure(call, arguments.seconds)
        low, median, high = np.percentile(times, [10, 50, 90])
        rows.append({"route": name, "median_us": median, "p10_us": low, "p90_us": high})
    baseline = rows[1]["median_us"]
    for row in rows:
        row["times_faster"] = baseline / row["median_us"]
        row["gb_per_s"] = logits.nbytes / row["median_us"] / 1e3
    about = gumbel.info()
    head = {
        "question": __doc__.splitlines()[0],
        "machine": about.description or platform.processor(),
        "versions": f"gumbel {gumbel.__version__}, numpy {np.__version__}",
        "ceiling": "one read of the row, as the first line of the table measures it",
        "shape": f"B = 1, V = {arguments.vocab}, float32, threads = {arguments.threads}",
    }
    if arguments.json:
        print(json.dumps({**head, "rows": rows}, indent=2))
        return
    for key, value in head.items():
        print(f"{key}: {value}")
    print(f"\n{'route':30}{'median us':>12}{'p10..p90':>20}{'GB/s':>9}{'vs NumPy':>11}")
    for row in rows:
        spread = f"{row['p10_us']:.1f}..{row['p90_us']:.1f}"
        print(
            f"{row['route']:30}{row['median_us']:12.1f}{spread:>20}"
            f"{row['gb_per_s']:9.2f}{row['times_faster']:10.1f}x"
        )


if __name__ == "__main__":
    main()

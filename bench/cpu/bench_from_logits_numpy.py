# SPDX-License-Identifier: Apache-2.0
"""How much faster is sample_logits() than softmax and inverse CDF in NumPy?

One row of float32 logits, V = 151936. The answers are verified before anything is timed. NumPy has
two routes: float32, which is fast and inexact, since the running sum drops what lies 2^-24 below
it, and float64, in which Generator.choice() computes.
"""

import argparse
import functools
import pathlib
import platform
import sys
import time

import gumbel
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import result_lines  # noqa: E402


def inverse_cdf(logits, rng):
    """Softmax, running sum, one uniform, binary search, all in the dtype of the logits."""
    mass = np.exp(logits - logits.max())
    cdf = np.cumsum(mass / mass.sum())
    return int(np.searchsorted(cdf, logits.dtype.type(rng.random()) * cdf[-1], side="right"))


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
    if arguments.vocab < 1 or arguments.threads < 1:
        parser.error("--vocab and --threads must be at least 1")

    rng = np.random.default_rng(0)
    logits = rng.normal(scale=3.0, size=(1, arguments.vocab)).astype(np.float32)
    verify(logits)
    row = logits[0]
    calls = {
        "numpy max, one read": lambda: row.max(),
        "numpy inverse CDF, float32": lambda: inverse_cdf(row, rng),
        "numpy inverse CDF, float64": lambda: inverse_cdf(row.astype(float), rng),
    }
    for isa in gumbel.info().isas:
        for logprobs in (None, "processed"):
            name = f"gumbel {isa}" + (" with logprobs" if logprobs else "")
            calls[name] = functools.partial(
                gumbel.sample_logits,
                logits,
                seed=1,
                logprobs=logprobs,
                isa=isa,
                threads=arguments.threads,
            )
    rows = [describe(name, measure(call, arguments.seconds)) for name, call in calls.items()]
    for entry in rows:
        entry["gb_per_s"] = logits.nbytes / entry["median_us"] / 1e3
        entry["times_float32"] = rows[1]["median_us"] / entry["median_us"]
        entry["times_float64"] = rows[2]["median_us"] / entry["median_us"]
    about = gumbel.info()
    head = {
        "question": __doc__.splitlines()[0],
        "machine": about.description or platform.processor(),
        "versions": f"gumbel {gumbel.__version__}, numpy {np.__version__}",
        "ceiling": "one read of the row, as the first line of the table measures it",
        "shape": f"B = 1, V = {arguments.vocab}, float32, threads = {arguments.threads}",
    }
    if arguments.json:
        print(result_lines.to_text({**head, "rows": rows}))
    else:
        print_table(head, rows)


def describe(name, times):
    low, median, high = np.percentile(times, [10, 50, 90])
    return {"route": name, "median_us": median, "p10_us": low, "p90_us": high}


def print_table(head, rows):
    for key, value in head.items():
        print(f"{key}: {value}")
    print(f"\n{'':32}{'median us':>10}{'p10..p90':>18}{'GB/s':>8}{'times faster than NumPy':>26}")
    print(f"{'route':68}{'float32':>13}{'float64':>13}")
    for row in rows:
        spread = f"{row['p10_us']:.1f}..{row['p90_us']:.1f}"
        print(
            f"{row['route']:32}{row['median_us']:10.1f}{spread:>18}{row['gb_per_s']:8.2f}"
            f"{row['times_float32']:13.1f}{row['times_float64']:13.1f}"
        )


if __name__ == "__main__":
    main()

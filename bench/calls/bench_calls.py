#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What does a call from Python cost beyond the draw? The gumbel package, on tiny problems.

usage: bench/calls/bench_calls.py [--json FILE] [--commit TEXT]

Requires a Python with the package; torch tensors are measured if torch is installed. The problem
is one row of 64 logits on one thread, plain and with five parameters. The C call alone, a
prepared call, a prepared call with other inputs, and sample_logits() take turns; the CPU time of
the thread is measured.
"""

import argparse
import ctypes
import pathlib
import platform
import statistics
import sys
import time

import gumbel
import numpy as np
from gumbel import _abi

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import result_lines  # noqa: E402

ROUNDS, CALLS = 41, 500
REQUESTS = {
    "plain": {"seed": 3},
    "plain, fresh seeds": {},
    "five parameters": {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "seed": 3, "position": 7},
}


def make_logits_by_library():
    """One row of logits as an array of each library."""
    logits = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    yield "NumPy", logits
    try:
        import torch
    except ImportError:
        return
    yield "torch", torch.from_numpy(logits.copy())


def make_contestants(logits, parameters):
    """The contestants; the first is the C call, by a function pointer without conversions."""
    call = gumbel.prepare_sample_logits(logits, threads=1, **parameters)
    function = ctypes.CDLL(_abi.lib._name).gumbel_sample_logits
    arguments = (call._arrays.device, None, *call._arguments)
    return {
        "C call": lambda: function(*arguments),
        "prepared": call,
        "prepared, other inputs": lambda: call(logits),
        "sample_logits()": lambda: gumbel.sample_logits(logits, threads=1, **parameters),
    }


def measure(timed):
    """Medians in microseconds, of rounds in turns."""
    times = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, way in timed.items():
            start = time.thread_time_ns()
            for _ in range(CALLS):
                way()
            times[name].append((time.thread_time_ns() - start) / CALLS / 1e3)
    return {name: round(statistics.median(each), 2) for name, each in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json")
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    rows = []
    for kind, logits in make_logits_by_library():
        for name, parameters in REQUESTS.items():
            found = measure(make_contestants(logits, parameters))
            rows.append({"arrays": kind, "request": name, "us": found})
            over = {name: us - found["C call"] for name, us in found.items()}
            print(f"{kind}, {name}: the C call {found['C call']:.1f} us; over it " +
                  ", ".join(f"{way} {us:.1f}" for way, us in over.items() if us))
    if options.json:
        about = {"question": "what does a call from Python cost beyond the draw?",
                 "version": gumbel.__version__, "commit": options.commit,
                 "cpu": result_lines.cpu_name(),
                 "python": platform.python_version(), "results": rows}
        result_lines.write(options.json, about)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""How much faster is sample_logits() than torch.multinomial(torch.softmax(logits / T, -1), 1)?

float32 logits on a CPU, V = 151936, Gaussian with deviation 2.5, T = 0.8; one thread, then all.
Both take torch tensors and return token ids. A round times each contestant once, on the same
logits, and gives one ratio. The tokens are verified before anything is timed. Wall times and
processor times of the whole process are reported: on a machine with other load, the ratio of
processor times varies less, and with one thread it is the fair one.

usage: python bench/cpu/bench_torch_logits.py [--json FILE --commit TEXT --date DATE]
"""

import argparse
import os
import sys
import time
from pathlib import Path

import gumbel
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import result_lines  # noqa: E402

VOCAB = 151936
TEMPERATURE = 0.8
BATCHES = (1, 8, 64)
BUFFERS = {1: 16, 8: 8, 64: 3}  # logits that rounds take in turns, so that none stay in a cache


def draw_by_torch(logits, threads, position):
    return torch.multinomial(torch.softmax(logits / TEMPERATURE, -1), 1)


def draw_by_gumbel(logits, threads, position, logprobs=None):
    out = gumbel.sample_logits(
        logits,
        temperature=TEMPERATURE,
        seed=1,
        position=position,
        logprobs=logprobs,
        threads=threads,
    )
    return out.tokens


def draw_by_gumbel_with_logprobs(logits, threads, position):
    return draw_by_gumbel(logits, threads, position, "processed")


CONTESTANTS = {
    "torch": draw_by_torch,
    "gumbel": draw_by_gumbel,
    "gumbel_with_logprobs": draw_by_gumbel_with_logprobs,
}


def verify_tokens(logits):
    """Checks that gumbel draws the argmax of logits / T + noise, and torch valid tokens."""
    for position in range(8):
        token = int(draw_by_gumbel(logits[:1], 1, position)[0, 0])
        score = logits[0].double().numpy() / TEMPERATURE
        score = score + gumbel.noise(1, position, VOCAB)
        assert token == np.argmax(score), f"position {position}: token {token}"
    tokens = draw_by_torch(logits, 1, 0)
    assert tokens.shape == (len(logits), 1) and int(tokens.max()) < VOCAB


def describe_spread(values):
    p10, median, p90 = np.percentile(values, (10, 50, 90))
    return {"median": round(median, 2), "p10": round(p10, 2), "p90": round(p90, 2)}


def measure(batch, threads, seconds):
    """One entry of the results: microseconds per call, and ratios of times of the same round."""
    generator = torch.Generator().manual_seed(batch)
    buffers = [
        2.5 * torch.randn(batch, VOCAB, generator=generator) for _ in range(BUFFERS[batch])
    ]
    verify_tokens(buffers[0])
    torch.set_num_threads(threads)
    times = {name: [] for name in CONTESTANTS}
    order = list(CONTESTANTS.items())
    end, rounds = time.perf_counter() + seconds, -3
    while rounds < 21 or time.perf_counter() < end:
        for name, call in order:
            start = time.perf_counter(), time.process_time()
            call(buffers[rounds % len(buffers)], threads, rounds + 3)
            stop = time.perf_counter(), time.process_time()
            if rounds >= 0:  # the first rounds warm up
                times[name].append([1e6 * (b - a) for a, b in zip(start, stop)])
        order.append(order.pop(0))  # each contestant is first in a third of the rounds
        rounds += 1
    entry = {"batch": batch, "threads": threads, "rounds": rounds}
    clocks = {name: np.transpose(samples) for name, samples in times.items()}  # [2, rounds]
    for at, clock in enumerate(("wall", "processor")):
        spreads = {f"{name}_us": describe_spread(clocks[name][at]) for name in times}
        for name in list(times)[1:]:
            ratios = clocks["torch"][at] / clocks[name][at]
            spreads[f"torch_over_{name}"] = describe_spread(ratios)
        entry[clock] = spreads
    return entry


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10, help="for each batch and thread count")
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--commit", default="", help="the commit that was measured")
    parser.add_argument("--date", default="", help="the day of the measurement")
    arguments = parser.parse_args()

    cores = len(os.sched_getaffinity(0))
    load = [round(os.getloadavg()[0], 1)]
    points = [
        measure(batch, threads, arguments.seconds)
        for threads in sorted({1, cores})
        for batch in BATCHES
    ]
    load.append(round(os.getloadavg()[0], 1))
    for point in points:
        for clock in ("wall", "processor"):
            spreads = point[clock]
            ratio = spreads["torch_over_gumbel"]
            print(
                f"B = {point['batch']:2}, {point['threads']} threads, {clock} time: "
                f"torch {spreads['torch_us']['median']:9.0f} us, "
                f"gumbel {spreads['gumbel_us']['median']:7.0f} us, "
                f"ratio {ratio['median']} ({ratio['p10']} to {ratio['p90']})"
            )
    results = {
        "question": __doc__.splitlines()[0],
        "version": gumbel.__version__,
        "commit": arguments.commit,
        "date": arguments.date,
        "cpu": result_lines.cpu_name(),
        "cores": cores,
        "load_average": load,
        "isa": gumbel.info().isa,
        "torch": torch.__version__,
        "vocab": VOCAB,
        "temperature": TEMPERATURE,
        "dtype": "f32",
        "results": points,
    }
    if arguments.json:
        result_lines.write(arguments.json, results)


if __name__ == "__main__":
    main()

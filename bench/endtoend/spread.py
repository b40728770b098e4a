# SPDX-License-Identifier: Apache-2.0
"""Measures contestants in turns."""

import argparse
import time

import numpy as np
import torch


def parser_of(question, rounds):
    """A parser of the options that all benchmarks of this folder share; `question` is the
    benchmark's."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--json", metavar="FILE", help="write the measurements to FILE")
    parser.add_argument("--commit", default="unknown", help="that they are of")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"of each ({rounds})")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the program")
    return parser


def parse(parser):
    """The parsed arguments; ends the program if the machine does not support them."""
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("no NVIDIA GPU is available")
    return arguments


def describe(microseconds):
    low, median, high = (round(float(x), 2) for x in np.percentile(microseconds, [10, 50, 90]))
    return {"median_us": median, "p10_us": low, "p90_us": high}


def in_turns(contestants, rounds):
    """Times of each contestant by name. A contestant is a function that returns a list of
    microseconds. The order rotates and reverses, so that no contestant always follows the same
    one."""
    names, times = list(contestants), {name: [] for name in contestants}
    for turn in range(rounds):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order if turn % 2 else reversed(order):
            times[name] += contestants[name]()
    return times


def reason(error):
    """One line of an error."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]


def capture(step, device, count):
    """Returns a function that runs `count` steps: by a graph, or on a CPU by calls."""
    def calls():
        for _ in range(count):
            step()

    if device == "cpu":
        return calls
    for _ in range(2):  # compiles and allocates before the capture
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def timer(replay, device, count):
    """Returns a function that gives [microseconds of a step] of a replay of `count` steps."""
    if device == "cpu":
        def on_host():
            begin = time.perf_counter()
            replay()
            return [(time.perf_counter() - begin) * 1e6 / count]

        return on_host

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def on_device():
        begin.record()
        replay()
        end.record()
        end.synchronize()
        return [begin.elapsed_time(end) * 1e3 / count]

    return on_device

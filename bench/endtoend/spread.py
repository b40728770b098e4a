# SPDX-License-Identifier: Apache-2.0
"""What contestants took, in turns."""

import time

import numpy as np
import torch


def describe(microseconds):
    low, median, high = (round(float(x), 2) for x in np.percentile(microseconds, [10, 50, 90]))
    return {"median_us": median, "p10_us": low, "p90_us": high}


def in_turns(contestants, rounds):
    """Times of each contestant, a function without arguments that returns a list of microseconds,
    by name; the order rotates and turns round, so that nobody always comes behind the same."""
    names, times = list(contestants), {name: [] for name in contestants}
    for turn in range(rounds):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order if turn % 2 else reversed(order):
            times[name] += contestants[name]()
    return times


def reason(error):
    """One line of what went wrong."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:200]


def capture(step, device, count):
    """A function that runs `count` steps: the replay of a graph, or on a CPU the calls."""
    def calls():
        for _ in range(count):
            step()

    if device == "cpu":
        return calls
    for _ in range(2):  # what is compiled and allocated the first time is so now
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        calls()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def timer(replay, device, count):
    """A function that gives [microseconds of a step], of a replay of `count`."""
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

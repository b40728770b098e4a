#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Are the calls of gumbel.flashinfer ever slower than FlashInfer's own?

usage: bench/calls/bench_flashinfer_calls.py [--json FILE] [--commit TEXT] [--batch B]...

Both packages draw from the same float32 rows, V = 151936, Gaussian with deviation 2.5, with seed
and offset in tensors, as graphs require. On an NVIDIA GPU each call is captured into a graph,
and replays of both take turns; the time of the calling thread, which only queues, is measured,
too. Tokens are checked first: gumbel's against gumbel.sample_logits(); both packages' for tokens
that must not be drawn, and by their mean log-probability. A contestant that cannot be imported,
fails or draws wrong tokens is reported as skipped. Without a GPU, the thread's time of gumbel's
calls is measured on a tiny row on the CPU.
"""

import argparse
import math
import pathlib
import statistics
import sys
import time

import gumbel
import gumbel.flashinfer
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import result_lines  # noqa: E402
from bench_peers import capture, describe, machine, measure  # noqa: E402

VOCAB, SMALL = 151936, 64
BATCHES = [1, 8, 64, 256]
DEVIATION = 2.5
REPLAYS, CALLS = 41, 8  # of each graph; calls a graph
QUEUED, ROUNDS = 64, 21  # calls of a timed round; fewer kernels than the launch queue holds
MAX_DEVIATIONS = 6.0
OURS, THEIRS = "gumbel", "flashinfer"


def list_cases(batch, place):
    """For each call: its function, whether it takes logits, its parameters, and the equivalent
    parameters of gumbel.sample_logits() for the check."""

    def repeat_for_rows(value, dtype):
        return torch.full((batch,), value, dtype=dtype, device=place)

    k, p = repeat_for_rows(50, torch.int32), repeat_for_rows(0.95, torch.float32)
    both = {"top_k": 50, "top_p": 0.95}
    of_logits = "top_k_top_p_sampling_from_logits"
    return {
        "Gumbel": ("sampling_from_logits", True, (), {}),
        "k = 50, p = 0.95": (of_logits, True, (50, 0.95), both),
        "k, p one a row": (of_logits, True, (k, p), both),
        "k, p one a row, joint": (of_logits, True, (k, p), {**both, "order": "joint"}),
        "probabilities": ("sampling_from_probs", False, (), {}),
        "p = 0.95": ("top_p_sampling_from_probs", False, (0.95,), {"top_p": 0.95}),
        "k = 50": ("top_k_sampling_from_probs", False, (50,), {"top_k": 50}),
        "min_p = 0.05": ("min_p_sampling_from_probs", False, (0.05,), {"min_p": 0.05}),
        "k, p of probabilities": ("top_k_top_p_sampling_from_probs", False, (k, p), both),
    }


def import_modules(skipped):
    """The modules that can be imported, by name."""
    found = {OURS: gumbel.flashinfer.sampling}
    if not torch.cuda.is_available():
        skipped.append({"contestant": THEIRS, "reason": "no NVIDIA GPU is available"})
        return found
    try:
        from flashinfer import sampling
    except Exception as error:  # an import may raise any exception
        skipped.append({"contestant": THEIRS, "reason": f"{type(error).__name__}: {error}"})
        return found
    return {**found, THEIRS: sampling}


class Case:
    """One call on one batch; call(module) returns a function that queues it."""

    def __init__(self, logits, probs, case):
        self.function, from_logits, self.more, self.rules = case
        self.rows, self.logits = (logits if from_logits else probs), logits
        self.from_logits = from_logits
        batch, place = len(logits), logits.device
        self.seed = torch.arange(batch, device=place) * 17 + 3
        self.offset = torch.arange(batch, device=place)
        self.joint = self.rules.get("order") == "joint"

    def call(self, module):
        function = getattr(module, self.function)
        keywords = {"filter_apply_order": "joint"} if self.joint else {}
        return lambda: function(
            self.rows, *self.more, seed=self.seed, offset=self.offset, **keywords
        )

    def check(self, name, tokens):
        """Raises ValueError for tokens that must not be drawn, or are not samples of the
        distribution.

        FlashInfer sums in another order, so that a few of its tokens may be just beyond a
        cutoff.
        """
        rules = {**self.rules, "temperature": 1.0}
        probs = gumbel.softmax(self.logits, **rules).double()
        drawn = tokens.view(-1, 1).long()
        logp = torch.where(probs > 0, probs, 1).log()
        means = (probs * logp).sum(-1)
        variance = (probs * (logp - means[:, None]) ** 2).sum().item()
        outside = int((probs.gather(1, drawn) == 0).sum())
        if tokens.shape != (len(probs),) or outside > (name != OURS) * (1 + len(probs) // 64):
            raise ValueError(f"{name}: {outside} tokens that may not be drawn")
        gap = logp.gather(1, drawn).sum().item() - means.sum().item()
        if not abs(gap) <= MAX_DEVIATIONS * math.sqrt(variance):
            raise ValueError(f"{name}: mean log-probability off by {gap:.2f}")
        if name == OURS:
            source = self.logits if self.from_logits else self.rows.log()
            given = {"seed": self.seed, "position": self.offset, **self.rules}
            wanted = gumbel.sample_logits(source, logprobs=None, **given)
            if not torch.equal(tokens, wanted.tokens[:, 0]):
                raise ValueError("other tokens than gumbel.sample_logits() has")


def thread_us(call, place):
    """Microseconds of its thread that a call takes, the median of rounds."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.thread_time_ns()
        for _ in range(QUEUED):
            call()
        times.append((time.thread_time_ns() - start) / QUEUED / 1e3)
        if place == "cuda":
            torch.cuda.synchronize()
    return round(statistics.median(times[1:]), 2)  # without the first, which initialises


def measure_call(title, case, who, skipped, place):
    """One entry: for each contestant the spread of its replays and its thread's time."""
    graphs, entry = {}, {}
    for name, module in who.items():
        call = case.call(module)
        try:
            case.check(name, call())
            entry[name] = {"thread_us": thread_us(call, place)}
            if place == "cuda":
                graphs[name], tokens = capture([call] * CALLS)
                case.check(name, tokens)
        except Exception as error:  # whatever a peer raises, the others are measured
            if name == OURS:
                raise
            entry.pop(name, None)
            graphs.pop(name, None)
            where = {"call": title, "B": len(case.logits)}
            reason = f"{type(error).__name__}: {error}"
            skipped.append({"contestant": name, **where, "reason": reason})
    for name, times in measure(graphs, REPLAYS).items() if graphs else ():
        entry[name].update(describe([us / CALLS for us in times]))
    return entry


def print_entry(title, batch, entry):
    line = f"{title:24} {batch:4}"
    for name in (OURS, THEIRS):
        spread = entry.get(name, {})
        for key in ("median_us", "thread_us"):
            line += f"{spread[key]:11.1f}" if key in spread else f"{'-':>11}"
    medians = [entry.get(name, {}).get("median_us") for name in (OURS, THEIRS)]
    print(line + (f"{medians[0] / medians[1]:9.3f}" if all(medians) else f"{'-':>9}"), flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the measurements to FILE")
    parser.add_argument("--commit", default="unknown", help="that they are of")
    parser.add_argument("--batch", type=int, action="append", metavar="B", help="only this one")
    return parser.parse_args()


def main():
    options, skipped = parse(), []
    place = "cuda" if torch.cuda.is_available() else "cpu"
    vocab = VOCAB if place == "cuda" else SMALL
    who = import_modules(skipped)
    head = {
        "question": __doc__.splitlines()[0],
        "version": gumbel.__version__,
        "commit": options.commit,
        **(machine() if place == "cuda" else {"processor": result_lines.cpu_name()}),
        "V": vocab,
        "replays": REPLAYS,
        "calls_a_replay": CALLS,
    }
    for key, value in head.items():
        print(f"{key}: {value}")
    print(f"{'':24} {'B':>4}{'ours us':>11}{'thread':>11}{'theirs us':>11}{'thread':>11}    ratio")
    entries = []
    for batch in options.batch or (BATCHES if place == "cuda" else BATCHES[:1]):
        torch.manual_seed(batch)
        logits = torch.randn(batch, vocab, device=place) * DEVIATION
        probs = torch.softmax(logits, -1)
        for title, case in list_cases(batch, place).items():
            entry = measure_call(title, Case(logits, probs, case), who, skipped, place)
            entries.append({"call": title, "B": batch, **entry})
            print_entry(title, batch, entry)
    for entry in skipped:
        print("skipped:", ", ".join(f"{key} {value}" for key, value in entry.items()))
    if options.json:
        result_lines.write(options.json, {**head, "skipped": skipped, "entries": entries})


if __name__ == "__main__":
    main()

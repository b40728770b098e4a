# SPDX-License-Identifier: Apache-2.0
"""How does the library compare with what PyTorch engines use today, in one run on one GPU?

Every contestant's step is captured into a CUDA graph; the graphs of one shape take turns, in an
order that rotates, and medians are compared. Weights are far larger than the L2. Answers are
checked before anything is timed: the fused draw against the draw from float32 logits, and every
exact sampler's tokens by their mean log-probability. Peers that cannot be imported, fail or answer
wrongly are reported as skipped. Needs PyTorch on an NVIDIA GPU and the package gumbel; FlashInfer
(flashinfer) and FlashSampling (fused_mm_sampling) take part where they are installed.
"""

import argparse
import math
import platform
import subprocess
import sys
from importlib import metadata

import gumbel
import numpy as np
import result_lines
import torch
from bench_peers_contestants import Contestants, reason

SHAPES = [(151936, 4096), (128256, 8192), (151936, 2048)]  # V, D
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
LOGITS_BATCHES = [1, 8, 64, 256]
CALLS = 5  # a replay, of the fused steps
WARM_CALLS = 16  # a replay, of draws from logits that stay in the L2
OURS = ("fused", "fused_with_logprobs", "logits", "logits_with_logprobs")
RIVALS = {"gemm": "/gemm", "argmax": "/max", "flashsampling": "/flashsamp", "fastest_peer": "/best"}
LOGIT_DEVIATION = 3.0
MAX_SCORE_ERROR = 2e-3  # float32 products of 8192 terms summed in two orders
MAX_DEVIATIONS = 6.0  # of a mean log-probability from its expectation


# ----------------------------------------------------------------------------------- checks ----


def check_fused(library, hidden, weight, logits):
    """The fused draw gives the tokens of the draw from float32 logits, except for near ties."""
    fused = library.fused(hidden, weight, ("scores", "logprobs"))
    plain = library.from_logits(logits, ("scores", "logprobs"))
    same = fused() == plain()
    error = (fused.outputs["scores"] - plain.outputs["scores"]).abs().max().item()
    gap = (fused.outputs["logprobs"] - plain.outputs["logprobs"]).abs()
    gap = gap.where(same, 0).max().item()
    differing = int((~same).sum())
    if not max(error, gap) <= MAX_SCORE_ERROR or differing > 1 + len(same) // 100:
        sys.exit(
            f"bench: B = {len(same)}: {differing} tokens differ between fused and from logits, "
            f"scores by {error:.2g}, log-probabilities by {gap:.2g}"
        )


class Expected:
    """The mean log-probability of exact samples of softmax(logits)."""

    def __init__(self, logits):
        self.logp = torch.log_softmax(logits, -1)
        mass = self.logp.exp()
        means = (mass * self.logp).sum(-1)
        self.mean = means.sum().item()
        variance = (mass * (self.logp - means[:, None]).square_()).sum().item()
        self.deviation = math.sqrt(variance)

    def check(self, tokens, exact):
        """Raises ValueError if `tokens` are not valid ids or, with `exact`, not samples of the
        softmax."""
        if tokens.is_floating_point():  # the contestant computes logits, and draws nothing
            return
        ids = tokens.reshape(-1, 1).long()
        rows, vocab = self.logp.shape
        if len(ids) != rows or ids.min() < 0 or ids.max() >= vocab:
            raise ValueError(f"{len(ids)} tokens for {rows} rows, or not in [0, {vocab})")
        deviations = (self.logp.gather(1, ids).sum().item() - self.mean) / self.deviation
        if exact and not abs(deviations) <= MAX_DEVIATIONS:
            raise ValueError(f"mean log-probability {deviations:.1f} deviations off")


# --------------------------------------------------------------------------------- measuring ----


def capture(calls):
    """A graph of `calls` in a row, replayed once, and the result of the last."""
    for _ in range(2):  # compilation, tuning and allocation happen in the first calls
        calls[0]()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            result = call()
    graph.replay()
    torch.cuda.synchronize()
    return graph, result


def measure(graphs, replays):
    """Microseconds of every replay of each graph: name -> list."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = {name: [] for name in graphs}
    names = list(graphs)
    for turn in range(replays):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        for name in order if turn % 2 else reversed(order):
            begin.record()
            graphs[name].replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1e3)
    return times


def describe(times):
    low, median, high = (round(float(x), 3) for x in np.percentile(times, [10, 50, 90]))
    return {"median_us": median, "p10_us": low, "p90_us": high}


def measure_contestants(bench, place, contestants, inputs, logits):
    """One row of a table: name -> spread of a call. `inputs` holds the arguments of each call of a
    replay, all equivalent to `logits`."""
    graphs, expected = {}, Expected(logits)
    for name, contestant in contestants.items():
        try:
            graphs[name], result = capture([contestant.prepare(*each) for each in inputs])
            expected.check(result, contestant.exact)
        except Exception as error:  # a failing peer is skipped; the others continue
            if name in OURS:
                raise
            graphs.pop(name, None)
            bench.skip(name, place, reason(error))
    del expected
    times = measure(graphs, bench.replays)
    return {name: describe(np.array(times[name]) / len(inputs)) for name in graphs}


class Bench:
    def __init__(self, replays):
        self.replays = replays
        self.contestants = Contestants()
        self.skipped = [
            {"contestant": name, "reason": why} for name, why in self.contestants.skipped.items()
        ]

    def skip(self, name, place, why):
        self.skipped.append({"contestant": name, **place, "reason": why})

    def fused(self, shapes, batches):
        """Hidden states and weight in: one entry for each shape and batch."""
        contestants, entries = self.contestants.from_hidden_states(), []
        for vocab, width in shapes:
            print(f"\nV = {vocab}, D = {width}, microseconds of a step")
            print_head(contestants)
            weight = torch.randn(vocab, width, dtype=torch.bfloat16, device="cuda")
            weight *= LOGIT_DEVIATION / math.sqrt(width)
            for batch in batches:
                hidden = torch.randn(batch, width, dtype=torch.bfloat16, device="cuda")
                logits = torch.mm(hidden, weight.t(), out_dtype=torch.float32)
                check_fused(self.contestants.library, hidden, weight, logits)
                place = {"vocab": vocab, "hidden": width, "batch": batch}
                inputs = [(hidden, weight)] * CALLS
                row = measure_contestants(self, place, contestants, inputs, logits)
                ratios = compare(row, "fused", contestants)
                print_row(batch, contestants, row, ratios)
                entries.append({**place, **row, **ratios})
        return entries

    def from_logits(self, vocab, batches):
        """Float32 logits in, read from memory, or from the L2 as just after a product."""
        contestants, entries = self.contestants.from_logits(), []
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        for cached in (False, True):
            where = "the same as often, so in the L2 if they fit" if cached else "never in the L2"
            print(f"\nfrom float32 logits, {where}, V = {vocab}, microseconds of a draw")
            print_head(contestants)
            for batch in batches:
                logits = LOGIT_DEVIATION * torch.randn(batch, vocab, device="cuda")
                copies = 1 + math.ceil(2 * l2_bytes / (4 * logits.numel()))
                if cached:
                    inputs = [(logits,)] * WARM_CALLS
                else:
                    inputs = [(logits.clone(),) for _ in range(copies)]
                place = {"vocab": vocab, "batch": batch, "cached": cached}
                row = measure_contestants(self, place, contestants, inputs, logits)
                ratios = compare(row, "logits", contestants)
                print_row(batch, contestants, row, ratios)
                entries.append({**place, **row, **ratios})
        return entries


# ----------------------------------------------------------------------------------- reports ----


def list_rivals(contestants):
    return {name: head for name, head in RIVALS.items() if name in (*contestants, "fastest_peer")}


def compare(row, ours, contestants):
    """The time of `ours` over that of each rival, null where that was skipped."""
    alike = [name for name in row if contestants[name].exact and name not in OURS]
    times = {name: spread["median_us"] for name, spread in row.items()}
    times["fastest_peer"] = min((times[name] for name in alike), default=None)
    return {
        f"{ours}_vs_{name}": round(times[ours] / times[name], 5) if times.get(name) else None
        for name in list_rivals(contestants)
    }


def print_head(contestants):
    columns = [contestant.column for contestant in contestants.values()]
    heads = (*columns, *list_rivals(contestants).values())
    print(f"{'B':>4}" + "".join(f"{head:>11}" for head in heads))


def print_row(batch, contestants, row, ratios):
    medians = (f"{row[n]['median_us']:.1f}" if n in row else "skipped" for n in contestants)
    numbers = (*medians, *(f"{ratio:.3f}" if ratio else "-" for ratio in ratios.values()))
    print(f"{batch:4}" + "".join(f"{number:>11}" for number in numbers), flush=True)


def machine():
    """GPU, driver, and the packages that take part."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    versions = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for package in ("torch", "triton", "flashinfer-python", "fused-mm-sampling"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass  # not installed, or imported from a folder without metadata
    return {
        "gpu": torch.cuda.get_device_name(0),
        "driver": subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip(),
        "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
        "versions": versions,
    }



def parse_shape(text):
    vocab, width = (int(part) for part in text.split(","))
    return vocab, width


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the measurements to FILE")
    parser.add_argument("--commit", default="unknown", help="that they are of")
    parser.add_argument(
        "--shape", type=parse_shape, action="append", metavar="V,D", help="only this one"
    )
    parser.add_argument("--batch", type=int, action="append", metavar="B", help="only this one")
    parser.add_argument("--replays", type=int, default=21, help="of each graph (21)")
    arguments = parser.parse_args()
    if arguments.replays < 1 or min(arguments.batch or [1]) < 1:
        parser.error("--replays and --batch must be at least 1")
    if any(V < 1 or D < 8 or D % 8 for V, D in arguments.shape or []):
        parser.error("--shape: V must be at least 1 and D a multiple of 8")
    if not torch.cuda.is_available():
        parser.error("no NVIDIA GPU is available")
    return arguments


def main():
    arguments = parse()
    torch.manual_seed(0)
    # Each shape is compiled separately, as for a graph; the default limit is 8.
    torch._dynamo.config.recompile_limit = 256
    bench = Bench(arguments.replays)
    everyone = {**bench.contestants.from_hidden_states(), **bench.contestants.from_logits()}
    head = {
        "question": __doc__.splitlines()[0],
        "version": gumbel.__version__,
        "commit": arguments.commit,
        **machine(),
        "ceiling": "gemm, which multiplies and draws nothing; max, which reads and draws nothing",
        "dtype": "bf16",
        "calls_a_replay": CALLS,
        "replays": arguments.replays,
        "contestants": {name: contestant.about for name, contestant in everyone.items()},
    }
    for key, value in head.items():
        if key != "contestants":
            print(f"{key}: {value}")
    for contestant in everyone.values():
        print(f"  {contestant.column:10} {contestant.about}")
    shapes, batches = arguments.shape or SHAPES, arguments.batch or BATCHES
    print("  /best      over the fastest peer that draws from the same distribution")
    fused = bench.fused(shapes, batches)
    logits = bench.from_logits(shapes[0][0], [B for B in LOGITS_BATCHES if B in batches])
    for entry in bench.skipped:
        print("skipped:", ", ".join(f"{key} {value}" for key, value in entry.items()))
    if arguments.json:
        result_lines.write(
            arguments.json,
            {**head, "skipped": bench.skipped, "fused": fused, "from_float32_logits": logits},
        )


if __name__ == "__main__":
    main()

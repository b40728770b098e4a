# SPDX-License-Identifier: Apache-2.0
"""How much faster does a draft model make decoding on one GPU, and does the model of costs hold?

A target of Qwen3-8B's shapes and a drafter of Qwen3-1.7B's, with random weights in bfloat16, decode
texts after a context of 1,024 tokens: without drafts, and with 2 to 6 drafts a cycle. Every step is
a CUDA graph. The library draws from hidden states and verifies by the coupled rule. The same is
done as in engines without the library: logits, softmax, torch.multinomial, rejection sampling.

Random models do not agree, so the acceptance rate is set (speculation_rates.py): the drafter runs
and draws, and its token is replaced by the text's own with this probability.

Checks: the text with drafts must equal the text without drafts, token for token. The latter is
first written by steps of as many rows as those of a cycle, which round alike. Steps of one row
round differently, and may draw another token at a near tie: the number of such tokens is reported.

The file is written after each batch size and number of drafts. A combination that fails is
reported, and the others continue. Requires torch, transformers and the package gumbel, built with
the CUDA kernels: script/bench-gpu --speculation builds and runs it, in about two minutes on an H100
(--quick: half a minute).
"""

import argparse
import gc
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are generated, not downloaded

import torch  # noqa: E402
from qwen_shapes import LOGIT_DEVIATION, SHAPES, TINY, make_model  # noqa: E402
from report import machine, write_json  # noqa: E402
from speculation_decoder import Decoder  # noqa: E402
from speculation_rates import choose_agreement, expect_tokens, predict_speed_up  # noqa: E402
from speculation_report import print_report  # noqa: E402
from speculation_steps import Graphs, Library, Steps, Texts, Torch  # noqa: E402
from spread import describe, in_turns, parse, parser_of, reason  # noqa: E402

TARGET, DRAFTER = "Qwen3-8B", "Qwen3-1.7B"
SECONDS = 125
PART_REPLAYS, PART_ROUNDS = 4, 5
NO_TIME = "no time was left"
# Largest fraction of tokens with drafts that differ from the record on a GPU. There, a kernel may
# treat rows of one product differently. On a CPU no token may differ.
MAX_DIFFERING = 0.02


@dataclass
class Plan:
    """What a run measures."""

    batches: tuple = (1, 32, 8)  # in the order of measurement
    drafts: tuple = (4, 2, 6, 3)
    rates: tuple = (0.5, 0.6, 0.7, 0.8, 0.9)
    torch_rate: float = 0.7  # of the cycles without the library, whose time no rate changes
    context: int = 1024
    tokens: int = 96  # of each text
    plain_steps: int = 32  # in one timing


QUICK = Plan(batches=(8,), drafts=(4,), rates=(0.7, 0.9), tokens=64, plain_steps=16)
SMALL = Plan(batches=(1, 4), drafts=(2, 3), rates=(0.5, 0.9), context=16, tokens=24, plain_steps=24)


def log(text):
    print(text, flush=True)


class Batch:
    """The steps of one batch size."""

    def __init__(self, target, drafter, batch, plan, device):
        self.plan, self.device, self.size = plan, device, batch
        most = max(plan.drafts)
        vocab = target.weight.shape[0]
        self.texts = texts = Texts(batch, plan.context, plan.tokens, most, vocab, device)
        for decoder in (target, drafter):
            decoder.set_batch(batch, -(-texts.width // 64) * 64)
        self.steps, self.graphs = Steps(target, drafter, texts), Graphs(device)
        self.samplers = {"": Library(texts), "torch: ": Torch(texts)}
        self.plain = {
            name: self._capture(lambda s=sampler: self.steps.decode(s))
            for name, sampler in self.samplers.items()
        }

    def _capture(self, step):
        self.texts.restart()
        return self.graphs.capture(step)

    def _time(self, replay, count):
        """[microseconds of a step]; the texts are then those of `count` steps."""
        begin, end = self._make_events()
        replay()  # keeps the GPU busy until the next replays are queued
        self.texts.restart()
        begin.record()
        for _ in range(count):
            replay()
        end.record()
        end.synchronize()
        return [begin.elapsed_time(end) * 1e3 / count]

    def _make_events(self):
        if self.device == "cuda":
            return (torch.cuda.Event(enable_timing=True) for _ in range(2))
        return HostEvent(), HostEvent()

    def write_record(self, drafts):
        """Write the record by steps of drafts + 1 rows."""
        step = self._capture(lambda: self.steps.record(self.samplers[""], drafts))
        self.texts.restart()
        for _ in range(self.plan.tokens):
            step()

    def measure_parts(self, drafts):
        """Median microseconds of each part of a cycle, by name."""
        self.texts.restart()
        parts = self.steps.list_parts(self.samplers, drafts)
        turns = {
            name: lambda r=self.graphs.capture(part): self._time(r, PART_REPLAYS)
            for name, part in parts.items()
        }
        times = in_turns(turns, PART_ROUNDS)
        return {name: describe(times[name])["median_us"] for name in times}

    def check_plain(self):
        """Checks texts after plain steps; returns the number of tokens that differ."""
        written, differing = self.texts.count_differing()
        if written != self.size * self.plan.plain_steps:
            raise ValueError(f"steps without drafts wrote {written} tokens")
        return differing

    def check_cycles(self, expected):
        """Checks texts after cycles that should emit `expected` tokens, and returns the number of
        tokens and of those that differ from the record."""
        written, differing = self.texts.count_differing()
        most = MAX_DIFFERING * written if self.device == "cuda" else 0
        if differing > most:
            raise ValueError(f"{differing} of {written} tokens with drafts differ from the text")
        if not differing and written < expected:
            raise ValueError(f"{written} tokens were emitted, at least {expected} are expected")
        return written, differing

    def measure(self, drafts, rounds):
        """(points by rate, the point of all parts) of one number of drafts."""
        plan, texts, start = self.plan, self.texts, self.texts.start
        self.write_record(drafts)
        parts = self.measure_parts(drafts)
        cycles = plan.tokens // (drafts + 1)
        cycle = {
            name: self._capture(lambda s=sampler: self.steps.speculate(s, drafts))
            for name, sampler in self.samplers.items()
        }
        tables = {
            rate: choose_agreement(rate, texts.agree.shape, start, drafts, cycles)
            for rate in {*plan.rates, plan.torch_rate}
        }
        counts = {}

        def run_cycles(name, rate):
            agree, emitted = tables[rate]
            texts.agree.copy_(torch.from_numpy(agree))
            found = self._time(cycle[name], cycles)
            if not name:
                counts[rate] = self.check_cycles(int(emitted.sum()))
            return found

        def run_plain(name):
            found = self._time(self.plain[name], plan.plain_steps)
            if not name:
                counts["plain"] = self.check_plain()
            return found

        turns = {"plain": lambda: run_plain(""), "torch: plain": lambda: run_plain("torch: ")}
        turns["torch: cycle"] = lambda: run_cycles("torch: ", plan.torch_rate)
        for rate in plan.rates:
            turns[rate] = lambda rate=rate: run_cycles("", rate)
        spreads = {name: describe(times) for name, times in in_turns(turns, rounds).items()}
        return self._make_points(drafts, cycles, parts, spreads, counts)

    def _make_points(self, drafts, cycles, parts, spreads, counts):
        place = {"batch": self.size, "drafts": drafts}
        plain = spreads["plain"]["median_us"]
        points = []
        for rate in self.plan.rates:
            written, differing = counts[rate]
            tokens, time_us = written / (self.size * cycles), spreads[rate]["median_us"]
            speed_up = tokens * plain / time_us
            predicted = predict_speed_up(expect_tokens(rate, drafts), parts, drafts)
            points.append({
                **place, "accept_rate": rate, "tokens_a_cycle": round(tokens, 4),
                "tokens_a_cycle_expected": round(expect_tokens(rate, drafts), 4),
                "mean_accepted": round(tokens - 1, 4), "cycle": spreads[rate],
                "tokens_a_second": round(self.size * tokens * 1e6 / time_us, 1),
                "plain_tokens_a_second": round(self.size * 1e6 / plain, 1),
                "speed_up": round(speed_up, 4), "predicted": round(predicted, 4),
                "measured_vs_predicted": round(speed_up / predicted, 4),
                "written": written, "differing": differing,
            })
        same = next((p for p in points if p["accept_rate"] == self.plan.torch_rate), points[0])
        whole = {
            **place, "cycles": cycles, "parts_us": parts, "plain": spreads["plain"],
            "plain_written": self.size * self.plan.plain_steps, "plain_differing": counts["plain"],
            "torch_plain": spreads["torch: plain"], "torch_cycle": spreads["torch: cycle"],
            "torch_plain_vs_plain": divide_medians(spreads["torch: plain"], spreads["plain"]),
            "torch_cycle_vs_cycle": divide_medians(spreads["torch: cycle"], same["cycle"]),
        }
        return points, whole


class HostEvent:
    """A CUDA event's methods, by the host's clock."""

    def record(self):
        self.time = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.time - self.time) * 1e3


def divide_medians(one, other):
    return round(one["median_us"] / other["median_us"], 4)


class Bench:
    def __init__(self, arguments, plan):
        self.arguments, self.plan = arguments, plan
        self.begin = time.monotonic()
        self.points, self.wholes, self.skipped, self.decoders = [], [], [], {}
        self.about = {
            "question": __doc__.splitlines()[0],
            "commit": arguments.commit,
            **machine(arguments.device),
            "dtype": "fp32" if arguments.device == "cpu" else "bf16",
            "target": TARGET, "drafter": DRAFTER, "logit_deviation": LOGIT_DEVIATION,
            "rounds": arguments.rounds, **asdict(plan),
        }

    def seconds(self):
        return time.monotonic() - self.begin

    def log(self, text):
        log(f"{self.seconds():5.1f} s  {text}")

    def skip(self, batch, drafts, why):
        self.skipped.append({"batch": batch, "drafts": drafts, "reason": why})
        self.log(f"skipped: batch {batch}, {drafts} drafts: {why}")

    def make_decoders(self):
        device, shapes = self.arguments.device, TINY if self.arguments.tiny else SHAPES
        for name in (TARGET, DRAFTER):
            model = make_model(shapes[name], device)
            if device == "cpu":
                model.float()  # products in float32 round less: no token differs
            decoder = self.decoders[name] = Decoder(model, device)
            self.log(f"{name}: made; attention by {decoder.attention}")
            if device == "cuda" and not self.arguments.eager:
                rows = [2] if min(self.plan.batches) > 1 else [1, 2]
                decoder.compile(rows)
                self.log(f"{name}: layers are {'' if decoder.compiled else 'not '}compiled")
        self.about["attention"] = {n: d.attention for n, d in self.decoders.items()}
        self.about["compiled"] = {n: d.compiled for n, d in self.decoders.items()}

    def run(self):
        self.make_decoders()
        for batch in self.plan.batches:
            steps = None  # frees graphs and caches of the last batch size first
            gc.collect()
            try:
                if self.seconds() > self.arguments.seconds:
                    raise TimeoutError(NO_TIME)
                steps = Batch(*self.decoders.values(), batch, self.plan, self.arguments.device)
                self.log(f"batch {batch}: steps without drafts are captured")
            except Exception as error:
                self._report(error)
                for drafts in self.plan.drafts:
                    self.skip(batch, drafts, reason(error))
                continue
            for drafts in self.plan.drafts:
                self._measure(steps, batch, drafts)

    def _measure(self, steps, batch, drafts):
        try:
            if self.seconds() > self.arguments.seconds:
                raise TimeoutError(NO_TIME)
            points, whole = steps.measure(drafts, self.arguments.rounds)
            self.points += points
            self.wholes.append(whole)
            best = max(points, key=lambda point: point["speed_up"])
            self.log(f"batch {batch}, {drafts} drafts: speed-up {best['speed_up']:.2f} at rate "
                     f"{best['accept_rate']}, predicted {best['predicted']:.2f}")
        except Exception as error:  # the others continue
            self._report(error)
            self.skip(batch, drafts, reason(error))
        self.write()

    def _report(self, error):
        if not isinstance(error, TimeoutError):
            traceback.print_exception(error)

    def write(self):
        if self.arguments.json:
            order = lambda point: (point["batch"], point["drafts"])  # noqa: E731
            write_json(self.arguments.json, {
                **self.about, "seconds": round(self.seconds(), 1), "skipped": self.skipped,
                "speculation": sorted(self.points, key=order),
                "speculation_parts": sorted(self.wholes, key=order),
            })


def list_numbers(text):
    return tuple(int(number) for number in text.split(","))


def make_plan(arguments):
    plan = SMALL if arguments.tiny else QUICK if arguments.quick else Plan()
    changes = {name: getattr(arguments, name) for name in ("batches", "drafts")}
    return Plan(**{**asdict(plan), **{name: v for name, v in changes.items() if v}})


def parse_arguments():
    parser = parser_of(__doc__.splitlines()[0], rounds=2)
    parser.formatter_class = argparse.HelpFormatter
    parser.add_argument("--quick", action="store_true", help="one batch size and draft length")
    parser.add_argument("--batches", type=list_numbers, metavar="B,...", help="only these")
    parser.add_argument("--drafts", type=list_numbers, metavar="K,...", help="only these")
    parser.add_argument("--eager", action="store_true", help="do not compile parts of layers")
    parser.add_argument("--seconds", type=float, default=SECONDS,
                        help=f"time after which no measurement begins ({SECONDS})")
    arguments = parse(parser)
    if arguments.device == "cpu" and not arguments.tiny:
        parser.error("--device cpu requires --tiny")
    if any(number < 1 for number in (*(arguments.batches or ()), *(arguments.drafts or ()))):
        parser.error("--batches and --drafts must be at least 1")
    if arguments.quick:
        arguments.rounds = 1
    return arguments


@torch.no_grad()
def main():
    arguments = parse_arguments()
    torch._dynamo.config.recompile_limit = 64
    bench = Bench(arguments, make_plan(arguments))
    for key, value in bench.about.items():
        log(f"{key}: {value}")
    try:
        bench.run()
    finally:
        bench.write()
    print_report(bench.points, bench.wholes, bench.skipped)
    return 0 if bench.points else 1


if __name__ == "__main__":
    sys.exit(main())

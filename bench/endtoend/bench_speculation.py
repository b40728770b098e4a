# SPDX-License-Identifier: Apache-2.0
"""How much faster does a draft model make decoding on one GPU, and does the model of costs hold?

A target of Qwen3-8B's shapes and a drafter of Qwen3-1.7B's, with random weights in bfloat16, decode
texts after a context of 1,024 tokens: without drafts, and with 2 to 6 drafts a cycle. Every step is
a CUDA graph. The library draws from hidden states and verifies by the coupled rule. For
comparison, the draws are also made as in engines without the library: logits, softmax,
torch.multinomial, and rejection sampling of the drafts.

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
from speculation_batch import Batch  # noqa: E402
from speculation_decoder import Decoder  # noqa: E402
from speculation_report import print_report  # noqa: E402
from spread import parse, parser_of, reason  # noqa: E402

TARGET, DRAFTER = "Qwen3-8B", "Qwen3-1.7B"
SECONDS = 125
NO_TIME = "no time was left"


@dataclass
class Plan:
    """The settings of a run."""

    batches: tuple = (1, 32, 8)  # in the order of measurement
    drafts: tuple = (4, 2, 6, 3)
    rates: tuple = (0.5, 0.6, 0.7, 0.8, 0.9)
    torch_rate: float = 0.7  # of the cycles without the library, whose time no rate changes
    context: int = 1024
    tokens: int = 64  # of each text
    plain_steps: int = 24  # in one timing


QUICK = Plan(batches=(8,), drafts=(4,), rates=(0.7, 0.9), plain_steps=16)
SMALL = Plan(batches=(1, 4), drafts=(2, 3), rates=(0.5, 0.9), context=16, tokens=24)


def log(text):
    print(text, flush=True)


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
            self.log(f"{name}: made")
            if device == "cuda" and not self.arguments.eager:
                rows = [2] if min(self.plan.batches) > 1 else [1, 2]
                decoder.compile(rows)
                self.log(f"{name}: layers are {'' if decoder.compiled else 'not '}compiled")
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
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers such as 1,8, got {text!r}") from None


def make_plan(arguments):
    plan = SMALL if arguments.tiny else QUICK if arguments.quick else Plan()
    changes = {name: getattr(arguments, name) for name in ("batches", "drafts")}
    return Plan(**{**asdict(plan), **{name: v for name, v in changes.items() if v}})


def parse_arguments():
    parser = parser_of(__doc__.splitlines()[0], rounds=2)
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
    tokens = make_plan(arguments).tokens
    if max(arguments.drafts or (1,)) >= tokens:
        parser.error(f"--drafts must be less than {tokens}, the tokens of a text")
    if arguments.quick:
        arguments.rounds = 1
    return arguments


@torch.no_grad()
def main():
    arguments = parse_arguments()
    torch._dynamo.config.recompile_limit = 64
    if arguments.device == "cpu":
        torch.set_num_threads(1)  # more threads only wait for each other in products this small
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

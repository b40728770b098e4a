# SPDX-License-Identifier: Apache-2.0
"""One model and number of sequences of bench_transformers.py, in a process of its own.

Several prepare side by side, since that compiles for a minute; then the parent has one at a time
measure, by a line of JSON each on standard input: {"way": ..., "rounds": ...}. Answers are lines of
JSON on standard output. All else that is written goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time

answers = os.fdopen(os.dup(1), "w", buffering=1)  # which no library prints to
os.dup2(2, 1)

import torch  # noqa: E402
from decode_steps import Steps  # noqa: E402
from generated_texts import Generate, GenerateBatch  # noqa: E402
from qwen_shapes import SHAPES, TINY, entropy, make, prompts  # noqa: E402
from spread import reason  # noqa: E402

WAYS = {"step": Steps, "generate": Generate, "generate_batch": GenerateBatch}


def say(**answer):
    answers.write(json.dumps(answer) + "\n")


def skipped(way, errors):
    return [{"way": way, "contestant": name, "reason": reason(e)} for name, e in errors.items()]


class Worker:
    def __init__(self, job):
        self.shape = (TINY if job["tiny"] else SHAPES)[job["model"]]
        self.device, self.batch = job["device"], job["batch"]
        self.model = make(self.shape, self.device)
        self.ready, self.failed = {}, []

    def prepare(self, way, until):
        begin = time.time()
        try:
            if begin > until:
                raise TimeoutError("no time was left to prepare it")
            self.ready[way] = WAYS[way](self.model, self.shape, self.batch, self.device)
            self.failed += skipped(way, self.ready[way].skipped)
        except Exception as error:  # the other ways are still measured
            self.failed += skipped(way, {"all": error})
        print(f"{way}: prepared in {time.time() - begin:.0f} s", file=sys.stderr, flush=True)

    def measure(self, way, rounds):
        failed, found = [], {}
        try:
            if way in self.ready:
                before = set(self.ready[way].skipped)
                found = self.ready[way].measure(rounds)
                new = {n: e for n, e in self.ready[way].skipped.items() if n not in before}
                failed = skipped(way, new)
        except Exception as error:
            failed = skipped(way, {"all": error})
        peak = getattr(self.ready.get(way), "peak_bytes", {})
        say(times=found, peak_bytes=peak, skipped=failed)


@torch.no_grad()
def main():
    job = json.loads(sys.argv[1])
    torch._dynamo.config.recompile_limit = 64  # a model's forward is compiled in several ways
    worker = Worker(job)
    nats = entropy(worker.model, prompts(worker.batch, worker.shape, worker.device))
    for way in job["ways"]:
        worker.prepare(way, job["prepare_until"])
    say(entropy=round(nats, 3), skipped=worker.failed)
    for line in sys.stdin:
        worker.measure(**json.loads(line))


if __name__ == "__main__":
    main()

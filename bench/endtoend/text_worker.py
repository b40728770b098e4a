# SPDX-License-Identifier: Apache-2.0
"""The worker process of bench_transformers.py for one model and number of sequences.

The worker reads commands as lines of JSON on standard input: {"prepare": way}, which compiles
for a minute, and which several workers do at the same time; then {"measure": way, "rounds":
...}, which one worker does at a time. Each answer is one line of JSON on standard output; other
output goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback

answers = os.fdopen(os.dup(1), "w", buffering=1)  # a copy that no library prints to
os.dup2(2, 1)
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are generated, not downloaded

import torch  # noqa: E402
from decode_steps import Steps  # noqa: E402
from generated_texts import Generate, GenerateBatch  # noqa: E402
from qwen_shapes import SHAPES, TINY, make_model, make_prompts, measure_entropy  # noqa: E402
from spread import reason  # noqa: E402

WAYS = {"step": Steps, "generate": Generate, "generate_batch": GenerateBatch}


def send_answer(**answer):
    answers.write(json.dumps(answer) + "\n")


def list_skipped(way, errors):
    for error in errors.values():
        traceback.print_exception(error)
    return [{"way": way, "contestant": name, "reason": reason(e)} for name, e in errors.items()]


class Worker:
    def __init__(self, model, batch, device, tiny):
        self.shape = (TINY if tiny else SHAPES)[model]
        self.device, self.batch = device, batch
        self.model = make_model(self.shape, device)
        self.ready = {}

    def entropy(self):
        ids = make_prompts(self.batch, self.shape, self.device)
        return round(measure_entropy(self.model, ids), 3)

    def prepare(self, way):
        begin, failed = time.time(), []
        try:
            self.ready[way] = WAYS[way](self.model, self.shape, self.batch, self.device)
            failed = list_skipped(way, self.ready[way].skipped)
        except Exception as error:  # the other ways continue
            failed = list_skipped(way, {"all": error})
        return {"skipped": failed, "seconds": round(time.time() - begin, 1)}

    def measure(self, way, rounds):
        if way not in self.ready:
            return {"times": {}, "peak_bytes": {}, "skipped": []}
        ready, found, failed = self.ready[way], {}, []
        before = set(ready.skipped)
        try:
            found = ready.measure(rounds)
            new = {name: e for name, e in ready.skipped.items() if name not in before}
            failed = list_skipped(way, new)
        except Exception as error:
            failed = list_skipped(way, {"all": error})
        return {"times": found, "peak_bytes": ready.peak_bytes, "skipped": failed}


@torch.no_grad()
def main():
    torch._dynamo.config.recompile_limit = 64  # a model's forward is compiled several times
    worker = Worker(**json.loads(sys.argv[1]))
    send_answer(entropy=worker.entropy())
    for line in sys.stdin:
        command = json.loads(line)
        if "prepare" in command:
            send_answer(**worker.prepare(command["prepare"]))
        else:
            send_answer(**worker.measure(command["measure"], command["rounds"]))


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The process of one engine of bench_vllm_gpu.py.

usage: vllm_worker.py JSON, {"llm": arguments of LLM, "vocab": size of the vocabulary,
"logit_deviation": of Gaussian weights; null: the weights stay as they were loaded}

Writes one line of JSON when the engine has started, and one for each command of the input:
{"command": a method of Worker, and its arguments}. All other output goes to stderr.
"""

import json
import os
import sys
import time
import traceback

from vllm_requests import RandomRequests, make_parameters, make_prompt

MOST_TOKENS = 40  # of a request in batches that change
STEPS_BETWEEN_NUMBERS = 20  # steps until the number of requests at a time changes


class Worker:
    """An engine, and the time at which each of its steps ended."""

    def __init__(self, options):
        from vllm import LLM

        begin = time.time()
        self.vocab = options["vocab"]
        self.engine = LLM(**options["llm"])
        self.about = self._rpc("bench_init", options["logit_deviation"])
        self.about["start_s"] = round(time.time() - begin, 1)
        self.stamps = []
        stock_step = self.engine.llm_engine.step

        def step(*arguments, **named):
            found = stock_step(*arguments, **named)
            self.stamps.append(time.perf_counter())
            return found

        self.engine.llm_engine.step = step

    def _rpc(self, method, *arguments):
        """The result of a method of Extension on the first rank."""
        return self.engine.collective_rpc(method, args=arguments)[0]

    def _generate(self, kind, rows, tokens, changes=None):
        from vllm import SamplingParams

        prompts = [{"prompt_token_ids": make_prompt(row, self.vocab)} for row in rows]
        how = [SamplingParams(**make_parameters(kind, row, tokens, changes)) for row in rows]
        self.stamps.clear()
        begin = time.perf_counter()
        written = self.engine.generate(prompts, how, use_tqdm=False)
        return written, time.perf_counter() - begin

    def write(self, kind, requests, tokens, host=False):
        """Seconds of a run, microseconds between its steps, and its host times."""
        if host:
            self._rpc("bench_start_host_times")
        _, seconds = self._generate(kind, range(requests), tokens)
        gaps = [1e6 * (b - a) for a, b in zip(self.stamps[4:], self.stamps[5:])]
        found = {"seconds": seconds, "gaps": [round(gap, 1) for gap in gaps]}
        if host:
            found["host"] = self._rpc("bench_stop_host_times")
        return found

    def texts(self, kind, rows, tokens, changes=None):
        """Token ids of the texts of these rows, and log-probabilities that were requested."""
        written, _ = self._generate(kind, rows, tokens, changes)
        outputs = [request.outputs[0] for request in written]
        found = {"ids": [list(text.token_ids) for text in outputs]}
        if outputs[0].logprobs:
            found["logprobs"] = [
                [{str(t): each.logprob for t, each in step.items()} for step in text.logprobs]
                for text in outputs
            ]
        return found

    def counts(self):
        return self._rpc("bench_counts")

    def profile(self, kind, requests, tokens):
        """{kernel: [microseconds, calls]} of a run."""
        self._rpc("bench_start_profile")
        self._generate(kind, range(requests), tokens)
        return self._rpc("bench_stop_profile")

    def change_batches(self, steps, requests, samples, time_limit):
        """Memory at intervals of `steps` steps whose requests start and end at different times."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        last = {"output_kind": RequestOutputKind.FINAL_ONLY}
        engine, source = self.engine.llm_engine, RandomRequests(self.vocab, requests, MOST_TOKENS)
        found, running, number, end = [], 0, 0, time.time() + time_limit
        every = max(1, steps // samples)
        for step in range(steps + 1):
            if step % every == 0:
                found.append({"step": step, "requests": running, **self._rpc("bench_memory")})
            if step == steps or time.time() > end:
                break
            if step % STEPS_BETWEEN_NUMBERS == 0:
                number = source.draw_batch_size()
            while running < number:
                name, ids, parameters = source.next()
                how = SamplingParams(**parameters, **last)
                engine.add_request(name, {"prompt_token_ids": ids}, how)
                running += 1
            running -= sum(request.finished for request in engine.step())
        while engine.has_unfinished_requests():
            engine.step()
        return {"samples": found, "steps": step, "written": source.count}


def main():
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM's processes write to stdout

    def reply(found):
        print(json.dumps(found), file=results, flush=True)

    worker = Worker(json.loads(sys.argv[1]))
    reply(worker.about)
    for line in sys.stdin:
        arguments = json.loads(line)
        try:
            reply(getattr(worker, arguments.pop("command"))(**arguments))
        except Exception:  # the parent decides whether to go on
            reply({"error": traceback.format_exc()[-1500:]})


if __name__ == "__main__":
    main()

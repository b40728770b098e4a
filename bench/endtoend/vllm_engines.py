# SPDX-License-Identifier: Apache-2.0
"""Engines of bench_vllm_gpu.py: processes of their own, with the plug-in and without."""

import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading

HERE = pathlib.Path(__file__).resolve().parent
WORKER = HERE / "vllm_worker.py"
CAPTURED = [1, 2, 4, 8, 16, 32, 64, 128, 256]  # batch sizes with a CUDA graph
LAST_LINES = 15  # of a log that are printed if its engine fails
NGRAM_DRAFTS = {
    "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3,
}

# Without --flashinfer-all-reduce ranks use vLLM's own all-reduce kernel and NCCL. FlashInfer
# compiles its kernels when they are first used; they and symmetric memory use NVLink multicast.
ALL_REDUCE = {"VLLM_ALLREDUCE_USE_FLASHINFER": "0", "VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}


class EngineError(RuntimeError):
    """An engine that ended, failed a command, or took longer than allowed."""


def limits_all_reduce(options):
    """Whether the ranks of all engines must not use FlashInfer's all-reduce."""
    return options.tp > 1 and options.device == "cuda" and not options.flashinfer_all_reduce


def make_variables(options, runner, plugin, folder):
    """Environment variables of an engine; each has caches of its own, as they start together."""
    found = dict(os.environ)
    found.pop("VLLM_PLUGINS", None)
    paths = [str(HERE), *filter(None, [found.get("PYTHONPATH")])]
    found.update(
        PYTHONPATH=os.pathsep.join(paths),
        VLLM_USE_V2_MODEL_RUNNER=str(int(runner == "V2")),
        VLLM_CACHE_ROOT=str(folder / "vllm"),
        TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor"),
        TRITON_CACHE_DIR=str(folder / "triton"),
        VLLM_NO_USAGE_STATS="1",
        DO_NOT_TRACK="1",
        HF_HUB_OFFLINE="1",
    )
    if not plugin:
        found["VLLM_PLUGINS"] = ""
    if limits_all_reduce(options):
        found.update(ALL_REDUCE)
    if options.device == "cpu":
        found.update(VLLM_CPU_KVCACHE_SPACE="1", OMP_NUM_THREADS="1")
        if options.tp > 1:  # vLLM would require a NUMA node for each rank
            cores = sorted(os.sched_getaffinity(0))
            bound = [str(cores[rank % len(cores)]) for rank in range(options.tp)]
            found["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(bound)
    return found


def kv_cache_bytes(shape, requests, tokens, element_bytes, ranks):
    """Size of a rank's KV cache that holds this many texts of this length, with some room."""
    token = 2 * shape.layers * shape.kv_heads * shape.head_size * element_bytes // ranks
    blocks = requests * (-(-tokens // 16) + 1)
    return int(1.1 * 16 * blocks * token) + (1 << 28)


def make_llm_arguments(options, shape, folder, engines, length):
    """Arguments of vllm.LLM; those of --llm, and of the objects in it, replace them."""
    requests = options.requests_max
    found = {
        "model": str(folder),
        "load_format": "auto" if options.tiny else "dummy",
        "dtype": options.dtype,
        "max_model_len": options.max_model_len,
        "max_num_seqs": requests,
        "max_logprobs": 20,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        "generation_config": "vllm",
        "disable_log_stats": True,
        "seed": 0,
        "worker_extension_cls": "vllm_extension.Extension",
        "tensor_parallel_size": options.tp,
    }
    if options.device == "cpu":
        found["enforce_eager"] = True
    else:
        captured = sorted({size for size in CAPTURED if size < requests} | {requests})
        element_bytes = 4 if options.dtype == "float32" else 2
        texts = max(requests, -(-options.max_model_len // length))
        size = kv_cache_bytes(shape, texts, length, element_bytes, options.tp)
        found["compilation_config"] = {"cudagraph_capture_sizes": captured}
        if limits_all_reduce(options):
            found["compilation_config"]["pass_config"] = {"fuse_allreduce_rms": False}
        found["kv_cache_memory_bytes"] = int(options.kv_gib * 2**30) if options.kv_gib else size
        utilization = options.gpu_memory_utilization or int(88 / engines) / 100
        found["gpu_memory_utilization"] = utilization
    for name, value in options.llm.items():
        both = isinstance(value, dict) and isinstance(found.get(name), dict)
        found[name] = {**found[name], **value} if both else value
    return found


class Engine:
    """A process with an engine. No method waits without a limit."""

    def __init__(self, runner, kind, options, variables, log):
        self.runner, self.kind, self.name = runner, kind, f"{runner} {kind}"
        self.log, self.about, self.results = log, {}, queue.Queue()
        self._started = False
        with open(log, "w", encoding="utf-8") as file:
            self.process = subprocess.Popen(
                [sys.executable, WORKER, json.dumps(options)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True,
                env=variables, start_new_session=True,
            )
        threading.Thread(target=self._read_results, daemon=True).start()

    def _read_results(self):
        for line in self.process.stdout:
            self.results.put(json.loads(line))
        self.results.put(None)

    def _result(self, seconds):
        try:
            found = self.results.get(timeout=max(seconds, 0.01))
        except queue.Empty:
            raise EngineError(f"no result within {max(seconds, 0):.0f} s") from None
        if found is None:
            raise EngineError("its process ended")
        if isinstance(found, dict) and "error" in found:
            raise EngineError(found["error"].strip())
        return found

    def wait_for_start(self, seconds):
        """Wait until the engine has started; the plug-in must be there exactly if requested."""
        self.about = self._result(seconds)
        if self.about["plugin"] != (self.kind != "stock"):
            raise EngineError("the plug-in is " + ("there" if self.kind == "stock" else "missing"))
        self._started = True

    def run(self, command, limit, **arguments):
        """The result of a command; an EngineError after `limit` seconds."""
        try:
            self.process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # _result() reports that the process ended
        return self._result(limit)

    def log_lines(self):
        text = pathlib.Path(self.log).read_text(encoding="utf-8", errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    def last_log_lines(self):
        return [line[:300] for line in self.log_lines()[-LAST_LINES:]]

    def plugin_log_lines(self):
        """The distinct lines of the plug-in."""
        return list(dict.fromkeys(
            line[line.index("gumbel:"):][:200] for line in self.log_lines() if "gumbel:" in line
        ))

    def close_input(self):
        """Request the end of the process."""
        try:
            self.process.stdin.close()
        except OSError:
            pass

    def end(self, seconds=20):
        """Wait for the end of the process, then kill what remains of its group."""
        self.close_input()
        try:
            self.process.wait(seconds if self._started else 0.01)
        except subprocess.TimeoutExpired:
            if self._started:
                print(f"{self.name}: killed, as the process did not end in {seconds} s")
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

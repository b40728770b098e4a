# SPDX-License-Identifier: Apache-2.0
"""Methods that bench_vllm_gpu.py adds to vLLM's worker of each GPU: weights, counts, times, memory.

vLLM mixes `Extension` into its worker class (worker_extension_cls); collective_rpc() calls its
methods by name.
"""

import functools
import math
import os
import sys
import time
from collections import defaultdict

import torch

WEIGHT_DEVIATION = 0.02


class HostTimes:
    """Host time of each step's LM head and sampler, in microseconds.

    The runner calls compute_logits() before its sampling function (V1) or within it (V2). The
    plug-in may defer the product of the LM head to the draw, so that only their sum compares.
    """

    def __init__(self, runner):
        self.sample, self.head_and_sample = [], []
        self._before, self._inside = 0.0, False
        self._wrapped = []
        self._wrap(runner.model, "compute_logits", self._time_head)
        self._wrap(runner, "_sample" if hasattr(runner, "_sample") else "sample", self._time_sample)

    def _wrap(self, owner, name, timed):
        stock = getattr(owner, name)
        setattr(owner, name, functools.wraps(stock)(functools.partial(timed, stock)))
        self._wrapped.append((owner, name))

    def _time_head(self, stock, *arguments, **named):
        if self._inside:
            return stock(*arguments, **named)
        begin = time.perf_counter()
        try:
            return stock(*arguments, **named)
        finally:
            self._before += time.perf_counter() - begin

    def _time_sample(self, stock, *arguments, **named):
        self._inside = True
        begin = time.perf_counter()
        try:
            return stock(*arguments, **named)
        finally:
            took = time.perf_counter() - begin
            self._inside = False
            self.sample.append(round(1e6 * took, 2))
            self.head_and_sample.append(round(1e6 * (took + self._before), 2))
            self._before = 0.0

    def stop(self):
        """Restore the runner's functions; the times of all steps."""
        for owner, name in self._wrapped:
            delattr(owner, name)
        return {"sample": self.sample, "head_and_sample": self.head_and_sample}


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Extension:
    """Methods of vLLM's worker."""

    def bench_init(self, logit_deviation):
        """Give the model Gaussian weights whose logits have this deviation, unless it is None."""
        runner = self.model_runner
        if logit_deviation is not None:
            seed = 1234 + self.rank  # shards of the LM head differ
            generator = torch.Generator(device=runner.device).manual_seed(seed)
            hidden = self.vllm_config.model_config.get_hidden_size()
            last_norm = logit_deviation / (WEIGHT_DEVIATION * math.sqrt(hidden))
            with torch.no_grad():
                for name, weight in sorted(runner.get_model().named_parameters()):
                    if "norm" in name:
                        weight.fill_(last_norm if name.endswith("model.norm.weight") else 1.0)
                    elif weight.is_floating_point():
                        weight.normal_(0, WEIGHT_DEVIATION, generator=generator)
            synchronize()
        sampler = type(getattr(runner, "sampler", None))
        return {
            "runner": type(runner).__module__,
            "sampler": f"{sampler.__module__}.{sampler.__name__}",
            "plugin": "gumbel._vllm.counts" in sys.modules,
            "vllm": sys.modules["vllm"].__version__,
        }

    def bench_counts(self):
        """The plug-in's counts of steps; empty without the plug-in."""
        module = sys.modules.get("gumbel._vllm.counts")
        return {**vars(module.counts), "steps": module.counts.steps} if module else {}

    def bench_memory(self):
        """Bytes in use: by torch, of the whole GPU, and of this process on the host."""
        with open("/proc/self/statm", encoding="ascii") as file:
            found = {"host": int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")}
        if self.model_runner.device.type == "cuda":
            synchronize()
            free, total = torch.cuda.mem_get_info()
            found["device"] = total - free
            found["reserved"] = torch.cuda.memory_reserved()
            found["allocated"] = torch.cuda.memory_allocated()
        return found

    def bench_start_host_times(self):
        self.bench_host_times = HostTimes(self.model_runner)

    def bench_stop_host_times(self):
        return self.bench_host_times.stop()

    def bench_start_profile(self):
        cuda = self.model_runner.device.type == "cuda"
        activity = "CUDA" if cuda else "CPU"
        self.bench_profile = torch.profiler.profile(
            activities=[getattr(torch.profiler.ProfilerActivity, activity)]
        )
        synchronize()
        self.bench_profile.start()

    def bench_stop_profile(self):
        """{kernel: [microseconds, calls]}; of operators on a CPU."""
        synchronize()
        self.bench_profile.stop()
        cuda = self.model_runner.device.type == "cuda"
        kind = torch.autograd.DeviceType.CUDA if cuda else torch.autograd.DeviceType.CPU
        found = defaultdict(lambda: [0.0, 0])
        for event in self.bench_profile.events():
            if event.device_type == kind:
                entry = found[event.name[:160]]
                entry[0] += event.time_range.elapsed_us() if cuda else event.self_cpu_time_total
                entry[1] += 1
        del self.bench_profile
        return dict(found)

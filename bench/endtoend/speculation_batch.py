# SPDX-License-Identifier: Apache-2.0
"""The measurements of bench_speculation.py for one batch size."""

from __future__ import annotations

import time

import torch
from speculation_rates import choose_agreement, expect_tokens, predict_speed_up
from speculation_steps import Graphs, Library, Steps, Texts, Torch
from spread import describe, in_turns, reason

TORCH = "torch: "  # begins the names of steps without the library
PART_REPLAYS, PART_ROUNDS = 4, 5
# Largest fraction of tokens with drafts that differ from the record on a GPU. There, a kernel may
# treat rows of one product differently. On a CPU no token may differ.
MAX_DIFFERING = 0.02


class HostEvent:
    """A CUDA event's methods, by the host's clock."""

    def record(self):
        self.time = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.time - self.time) * 1e3


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
        self.samplers, self.failed = {"": Library(texts), TORCH: Torch(texts)}, {}
        self.plain = self._capture_all({
            f"{name}plain": lambda s=sampler: self.steps.decode(s)
            for name, sampler in self.samplers.items()
        })

    def _capture(self, step):
        self.texts.restart()
        return self.graphs.capture(step)

    def _capture_all(self, steps):
        """Replays of steps by name. A step without the library that fails is left out, and its
        reason kept."""
        found = {}
        for name, step in steps.items():
            try:
                found[name] = self._capture(step)
            except Exception as error:
                if not name.startswith(TORCH):
                    raise
                self.failed[name] = reason(error)
        return found

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
            name: lambda r=replay: self._time(r, PART_REPLAYS)
            for name, replay in self._capture_all(parts).items()
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
        replays = {**self.plain, **self._capture_all({
            f"{name}cycle": lambda s=sampler: self.steps.speculate(s, drafts)
            for name, sampler in self.samplers.items()
        })}
        tables = {
            rate: choose_agreement(rate, texts.agree.shape, start, drafts, cycles)
            for rate in {*plan.rates, plan.torch_rate}
        }
        counts = {}

        def run_cycles(name, rate):
            agree, emitted = tables[rate]
            texts.agree.copy_(torch.from_numpy(agree))
            found = self._time(replays[name], cycles)
            if name == "cycle":
                counts[rate] = self.check_cycles(int(emitted.sum()))
            return found

        def run_plain(name):
            found = self._time(replays[name], plan.plain_steps)
            if name == "plain":
                counts["plain"] = self.check_plain()
            return found

        turns = {rate: lambda rate=rate: run_cycles("cycle", rate) for rate in plan.rates}
        for name in self.plain:
            turns[name] = lambda name=name: run_plain(name)
        if f"{TORCH}cycle" in replays:
            turns[f"{TORCH}cycle"] = lambda: run_cycles(f"{TORCH}cycle", plan.torch_rate)
        spreads = {name: describe(times) for name, times in in_turns(turns, rounds).items()}
        points = self._make_points(drafts, cycles, parts, spreads, counts)
        return points, self._make_whole(drafts, cycles, parts, spreads, counts)

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
        return points

    def _make_whole(self, drafts, cycles, parts, spreads, counts):
        """The point of all parts: the times that no rate changes."""
        rates = self.plan.rates
        rate = self.plan.torch_rate if self.plan.torch_rate in rates else rates[0]
        whole = {
            "batch": self.size, "drafts": drafts, "cycles": cycles, "parts_us": parts,
            "plain": spreads["plain"], "plain_written": self.size * self.plan.plain_steps,
            "plain_differing": counts["plain"], "torch_failed": dict(self.failed),
        }
        for name, ours in (("plain", spreads["plain"]), ("cycle", spreads[rate])):
            if f"{TORCH}{name}" in spreads:
                whole[f"torch_{name}"] = theirs = spreads[f"{TORCH}{name}"]
                ratio = theirs["median_us"] / ours["median_us"]
                whole[f"torch_{name}_vs_{name}"] = round(ratio, 4)
        return whole

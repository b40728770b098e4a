# SPDX-License-Identifier: Apache-2.0
"""How much of the time per token does the library save end to end, with transformers?

Hugging Face transformers with models of Qwen3-1.7B's and Qwen3-8B's shapes, random weights,
bf16: generate() with a static cache and a compiled forward, generate_batch(), and the whole
decode step as one CUDA graph. Each is measured with transformers alone ("stock"), with gumbel's
draw from logits, and fused. Tokens are checked before anything is timed; a contestant that fails
is reported and skipped. Each model and batch size has its own process. The processes prepare at
the same time and measure one at a time, with the contestants in turns.

Takes 250 seconds, and reports each measurement for which no time remained; another run with
--way, --model or --batch adds to the same file. Each point has its commit. Requires torch,
transformers and the package gumbel, built with the CUDA kernels: script/bench-gpu --transformers
builds and runs it.
"""

import argparse
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time

import torch
from qwen_shapes import LOGIT_DEVIATION, REQUESTS, SHAPES, TINY
from report import machine, write_json

BATCHES = [1, 64, 8, 32]  # in the order of measurement
ROUNDS = {"step": 12, "generate": 3, "generate_batch": 2}
WORKER_BYTES = 5 << 30  # memory of a process besides its weights: context, cache, graphs, logits
HERE = pathlib.Path(__file__).resolve().parent
NO_TIME = "no time was left"
PREPARE_FRACTION = 0.7  # of the remaining time; a worker that prepares for longer is skipped
MEASURE_SECONDS_MAX = 90  # seconds that a worker may measure


class Worker:
    """A process for one model and batch size. Every wait has a time limit."""

    def __init__(self, place, options):
        self.place, self.answers = place, queue.Queue()
        job = {**place, **options}
        self.process = subprocess.Popen(
            [sys.executable, HERE / "text_worker.py", json.dumps(job)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        self.log = []
        threading.Thread(target=self._read_answers, daemon=True).start()
        threading.Thread(target=self._read_log, daemon=True).start()

    def _read_answers(self):
        for line in self.process.stdout:
            self.answers.put(json.loads(line))
        self.answers.put(None)

    def _read_log(self):
        for line in self.process.stderr:
            self.log = [*self.log[-59:], line.rstrip()]

    def wait_for_answer(self, seconds):
        """The next answer; raises RuntimeError if the process ended or took longer."""
        try:
            found = self.answers.get(timeout=max(seconds, 0.01))
        except queue.Empty:
            self.end()
            raise RuntimeError(NO_TIME) from None
        if found is None:
            last = next((line for line in reversed(self.log) if line.strip()), "no output")
            raise RuntimeError(f"its process ended: {last}"[:200])
        return found

    def send(self, **command):
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # wait_for_answer() reports that the process ended

    def end(self):
        self.process.kill()
        self.process.wait()


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.end = time.time() + arguments.seconds
        self.shapes = TINY if arguments.tiny else SHAPES
        self.ways = arguments.way or list(ROUNDS)
        self.points, self.skipped, self.entropies = [], [], {}

    def skip(self, place, why):
        self.skipped.append({**place, "reason": why})
        print("skipped:", ", ".join(str(value) for value in (*place.values(), why)), flush=True)

    def skip_ways(self, place, ways, why):
        for way in ways:
            self.skip({**place, "way": way}, why)

    def run(self):
        """Runs waves of as many workers as fit into the GPU's memory."""
        waiting = [
            {"model": model, "batch": batch}
            for batch in self.arguments.batch or BATCHES
            for model in self.arguments.model or SHAPES
        ]
        while waiting:
            wave, waiting = self._split_fitting(waiting)
            if self._seconds_left() < 50:
                for place in wave:
                    self.skip_ways(place, self.ways, NO_TIME)
            else:
                self._run_wave(wave)

    def _split_fitting(self, places):
        """Splits places into the first ones, which fit into the GPU together, and the others."""
        if self.arguments.device == "cpu":
            return places[:2], places[2:]  # two workers at once, as such machines are small
        room, count = torch.cuda.mem_get_info()[0], 0
        for place in places:
            room -= SHAPES[place["model"]].weight_bytes() + WORKER_BYTES
            if room < 0 and count:
                break
            count += 1
        return places[:count], places[count:]

    def _run_wave(self, places):
        """Starts a worker for each place. For each way, all prepare at the same time, then measure
        one at a time."""
        options = {"device": self.arguments.device, "tiny": self.arguments.tiny}
        threads = str(max(1, (os.cpu_count() or 1) // len(places)))
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"], os.environ["OMP_NUM_THREADS"] = threads, "1"
        workers = [Worker(place, options) for place in places]
        try:
            running = self._collect_answers(workers, self.ways)
            for worker, answer in running.items():
                self.entropies[worker.place["model"]] = answer["entropy"]
            for at, way in enumerate(self.ways):
                for worker in running:
                    worker.send(prepare=way)
                running = self._collect_answers(running, self.ways[at:])
                took = max((answer["seconds"] for answer in running.values()), default=0)
                remaining = self._seconds_left()
                print(f"{way}: {len(running)} prepared in {took:.0f} s, {remaining:.0f} s remain")
                for worker, answer in running.items():
                    self._skip_all(worker.place, answer)
                running = [each for each in running if self._measure(each, self.ways[at:])]
        finally:
            for worker in workers:
                worker.end()
                if any(worker.place.items() <= entry.items() for entry in self.skipped):
                    print(worker.place, *worker.log, sep="\n", file=sys.stderr)

    def _seconds_left(self):
        return self.end - time.time()

    def _collect_answers(self, workers, ways):
        """The answers that arrive in time; workers without one are ended."""
        found, until = {}, time.time() + PREPARE_FRACTION * self._seconds_left()
        for worker in workers:
            try:
                found[worker] = worker.wait_for_answer(until - time.time())
            except RuntimeError as error:
                self.skip_ways(worker.place, ways, str(error))
        return found

    def _skip_all(self, place, answer):
        for each in answer["skipped"]:
            self.skip({**place, "way": each["way"], "contestant": each["contestant"]},
                      each["reason"])

    def _measure(self, worker, ways):
        """Measures the first of these ways; returns whether the worker still answers."""
        way = ways[0]
        place = {**worker.place, "way": way}
        if self._seconds_left() < 0:
            self.skip(place, NO_TIME)
            return True
        worker.send(measure=way, rounds=self.arguments.rounds or ROUNDS[way])
        try:
            answer = worker.wait_for_answer(min(MEASURE_SECONDS_MAX, self._seconds_left() + 10))
        except RuntimeError as error:
            self.skip_ways(worker.place, ways, str(error))
            return False
        self._skip_all(worker.place, answer)
        for request in REQUESTS:
            point = make_point(answer["times"], answer["peak_bytes"], request)
            if point:
                commit = {"commit": self.arguments.commit}
                self.points.append({**place, "request": request, **commit, **point})
                print_point(self.points[-1])
        return True


def make_point(times, peak_bytes, request):
    """The spreads of one way, gumbel's draws relative to stock, and the percentage of the step that
    LM head and draw take."""
    point = {}
    for name in ("stock", "logits", "fused"):
        key = f"{name}, {request}"
        if key in times:
            point[name] = times[key]
            if peak_bytes.get(key):
                point[f"{name}_peak_bytes"] = peak_bytes[key]
    for name in ("logits", "fused"):
        if name in point and "stock" in point:
            ratio = point[name]["median_us"] / point["stock"]["median_us"]
            point[f"{name}_vs_stock"] = round(ratio, 4)
    if point and "trunk" in times:
        point["trunk"], trunk = times["trunk"], times["trunk"]["median_us"]
        if "head" in times:
            point["head"] = times["head"]
        for name in ("stock", "logits", "fused"):
            if name in point:
                share = 100 * (1 - trunk / point[name]["median_us"])
                point[f"{name}_percent_of_head_and_draw"] = round(share, 2)
    return point


def print_point(point):
    place = f"{point['model']:10} {point['batch']:3} {point['way']:14} {point['request']:12}"
    cells = []
    for name in ("trunk", "head", "stock", "logits", "fused"):
        if name in point:
            spread = point[name]
            low, high = spread["p10_us"], spread["p90_us"]
            cells.append(f"{name} {spread['median_us']:.0f} ({low:.0f}..{high:.0f})")
    for name in ("stock", "fused"):
        if f"{name}_peak_bytes" in point:
            cells.append(f"{name} peak {point[f'{name}_peak_bytes'] >> 20} MiB")
    for name in ("logits", "fused"):
        if f"{name}_vs_stock" in point:
            cells.append(f"{name}/stock {point[f'{name}_vs_stock']:.3f}")
    print(place, "  ".join(cells), flush=True)


def get_key(entry):
    return entry["model"], entry["batch"], entry["way"]


def merge_points(path, about, points, skipped):
    """The new points, and points of the file that this machine has not measured again."""
    try:
        old = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        old = {}
    same = all(old.get(name) == about[name] for name in ("gpu", "versions"))
    measured = {get_key(point) for point in points}
    tried = measured | {get_key(entry) for entry in skipped}
    if same:
        points = [p for p in old["transformers"] if get_key(p) not in measured] + points
        skipped = [s for s in old["skipped"] if get_key(s) not in tried] + skipped
        about = {**about, "entropy_nats": {**old["entropy_nats"], **about["entropy_nats"]}}
    points = sorted(points, key=lambda p: (p["way"], p["model"], p["request"], p["batch"]))
    return {**about, "skipped": skipped, "transformers": points}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the measurements to FILE, or add")
    parser.add_argument("--commit", default="unknown", help="the commit that is measured")
    parser.add_argument("--model", action="append", choices=list(SHAPES), help="only this one")
    parser.add_argument("--batch", type=int, action="append", metavar="B", help="only this one")
    parser.add_argument("--way", action="append", choices=list(ROUNDS), help="only this one")
    parser.add_argument("--rounds", type=int, help="of each contestant")
    parser.add_argument("--seconds", type=float, default=240, help="of the whole run (240)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try the program")
    arguments = parser.parse_args()
    if min(arguments.batch or [1]) < 1 or (arguments.rounds or 1) < 1:
        parser.error("--batch and --rounds must be at least 1")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("no NVIDIA GPU is available")
    return arguments


def main():
    arguments = parse()
    about = {
        "question": __doc__.splitlines()[0],
        "commit": arguments.commit,
        **machine(arguments.device),
        "dtype": "bf16",
        "models": {name: vars(shape) for name, shape in SHAPES.items()},
        "logit_deviation": LOGIT_DEVIATION,
        "request_parameters": REQUESTS,
    }
    for key, value in about.items():
        print(f"{key}: {value}")
    bench = Bench(arguments)
    try:
        bench.run()
    finally:  # writes the measurements before a failure
        about["entropy_nats"] = bench.entropies
        if arguments.json:
            write_json(
                arguments.json, merge_points(arguments.json, about, bench.points, bench.skipped)
            )
    return 0 if bench.points else 1


if __name__ == "__main__":
    sys.exit(main())

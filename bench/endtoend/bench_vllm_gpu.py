# SPDX-License-Identifier: Apache-2.0
"""Does vLLM on a GPU take less time per output token with the plug-in, and as much memory?

Engines with and without the plug-in, for vLLM's V1 and V2 runners, start together in processes of
their own and then take turns. The models have Qwen3's shapes and Gaussian weights. A time per
output token is the wall time of a run of N tokens minus that of 1 token, over N - 1: the median of
all rounds, with p10..p90. Options add measurements, and --no-times leaves out these times:

  --check           compares texts: alone, in batches, sent twice, with the plug-in and without
  --drafts          with --check: also compares the plug-in's texts with and without n-gram drafts
  --profile K:N     kernel time of a step, of N requests of kind K
  --host            host time of the LM head and the sampler in each step
  --memory STEPS    memory while batches change

Needs vLLM, torch, transformers and the package gumbel, built with the CUDA kernels. Each wait has a
limit; the results name each measurement that --seconds left no time for. --json adds to its file.
"""

import argparse
import datetime
import json
import pathlib
import sys
import tempfile
import time

from qwen_shapes import LOGIT_DEVIATION, SHAPES, TINY, make_model
from report import machine, write_json
from spread import in_turns
from vllm_engines import (
    ALL_REDUCE,
    NGRAM_DRAFTS,
    Engine,
    EngineError,
    limits_all_reduce,
    make_llm_arguments,
    make_variables,
)
from vllm_points import (
    format_host,
    format_kernels,
    format_memory,
    format_time,
    host_point,
    kernel_point,
    memory_point,
    merge,
    subtract_counts,
    time_point,
)
from vllm_requests import KINDS, MEASURED, PROMPT_TOKENS
from vllm_texts import TOKENS as CHECKED_TOKENS
from vllm_texts import check_engine, compare_drafts, compare_engines, find_faults, format_texts

RUNNERS, ENGINES = ["V2", "V1"], ["stock", "plugin"]
REQUESTS = [1, 8, 32, 64, 128, 256]
WARM_TOKENS, PROFILED_TOKENS = 8, 33
COMMAND_SECONDS_MAX = 120
MEASURE_SECONDS_MIN = 15  # that must remain to begin a measurement
MEMORY_SAMPLES = 20
NO_TIME = "no time was left"


class Bench:
    def __init__(self, options):
        self.options = options
        self.begin = time.time()
        self.shape = (TINY if options.tiny else SHAPES)[options.model]
        self.engines, self.about = [], {}
        self.lists, self.faults = {}, []

    @property
    def measured(self):
        """Whether anything was measured."""
        return any(points for name, points in self.lists.items() if name != "skipped")

    def seconds_left(self):
        return self.options.seconds - (time.time() - self.begin)

    def log(self, text):
        print(f"[{time.time() - self.begin:.0f} s] {text}", flush=True)

    # ------------------------------------------------------------------------------- results ----

    def place(self, **more):
        found = {"model": self.options.model, "dtype": self.options.dtype}
        return {**found, "tensor_parallel": self.options.tp, **more}

    def add(self, name, place, point, text):
        """Adds a point to a list of the results, prints it, and writes the results."""
        entry = {**place, "commit": self.options.commit, **point}
        self.lists.setdefault(name, []).append(entry)
        self.log(text(entry))
        self.write()

    def skip(self, name, place, reason):
        entry = {"of": name, **place, "reason": reason}
        self.lists.setdefault("skipped", []).append(entry)
        self.log("skipped: " + ", ".join(str(value) for value in entry.values()))

    def write(self):
        if self.options.json and self.measured:
            write_json(self.options.json, merge(self.options.json, self.about, self.lists))

    # ------------------------------------------------------------------------------- engines ----

    def start(self):
        """Starts all engines together; engines that fail are reported and dropped."""
        options, root = self.options, pathlib.Path(self.options.cache)
        folder = self.write_model(root)
        kinds = [*options.engine, *(["drafts"] if options.drafts else [])]
        count = len(options.runner) * len(kinds)
        llm = make_llm_arguments(options, self.shape, folder, count, PROMPT_TOKENS + options.tokens)
        deviation = None if options.tiny else LOGIT_DEVIATION
        worker_options = {"llm": llm, "vocab": self.shape.vocab, "logit_deviation": deviation}
        for runner in options.runner:
            for kind in kinds:
                engine_folder = root / f"{runner}-{kind}"
                engine_folder.mkdir(exist_ok=True)
                variables = make_variables(options, runner, kind != "stock", engine_folder)
                drafts = {"speculative_config": NGRAM_DRAFTS} if kind == "drafts" else {}
                given = {**worker_options, "llm": {**llm, **drafts}}
                log = engine_folder / "log.txt"
                self.engines.append(Engine(runner, kind, given, variables, log))
        name = f"{options.model}, {options.dtype}, tensor_parallel {options.tp}"
        described = {key: llm[key] for key in llm if key != "model"}
        if limits_all_reduce(options):
            described["environment"] = ALL_REDUCE
        self.about = self.describe({name: described})
        deadline = self.begin + options.start_seconds
        for engine in list(self.engines):
            try:
                engine.wait_for_start(deadline - time.time())
                self.about["versions"]["vllm"] = engine.about["vllm"]
                self.log(f"{engine.name}: started, {engine.about}")
            except EngineError as error:
                self.drop(engine, "start", self.place(runner=engine.runner), error)

    def write_model(self, root):
        """Writes the model's configuration; with --tiny also its weights."""
        folder = root / ("tiny" if self.options.tiny else "models") / self.options.model
        folder.mkdir(parents=True, exist_ok=True)
        if self.options.tiny:
            make_model(self.shape, "cpu").save_pretrained(folder)
        else:
            config = self.shape.make_config()
            config.architectures = ["Qwen3ForCausalLM"]
            config.save_pretrained(folder)
        return folder

    def describe(self, llm):
        about = {
            "question": __doc__.splitlines()[0],
            "commit": self.options.commit,
            "date": datetime.date.today().isoformat(),
            **machine(self.options.device),
            "prompt": PROMPT_TOKENS,
            "models": {name: vars(shape) for name, shape in SHAPES.items()},
            "logit_deviation": LOGIT_DEVIATION,
            "request_parameters": KINDS,
            "engine_arguments": llm,
        }
        for key, value in about.items():
            print(f"{key}: {value}")
        return about

    def drop(self, engine, name, place, error):
        """Ends an engine that failed, and names it in the results."""
        lines = [line for line in str(error).splitlines() if line.strip()]
        self.skip(name, {**place, "engine": engine.kind}, lines[-1][:200])
        print(error, *engine.last_log_lines(), sep="\n", file=sys.stderr)
        self.engines.remove(engine)
        engine.end(2)
        self.faults.append(f"{engine.name} failed")

    def end(self):
        for engine in self.engines:
            engine.close_input()
        for engine in self.engines:
            engine.end()
            for line in engine.plugin_log_lines():
                print(f"{engine.name}: {line}")

    def run_command(self, engine, command, limit=None, **arguments):
        try:
            limit = min(limit or COMMAND_SECONDS_MAX, max(5, self.seconds_left() + 10))
            return engine.run(command, limit, **arguments)
        except EngineError as error:
            error.engine = engine
            raise

    # -------------------------------------------------------------------------- measurements ----

    def points(self, name, places):
        """Yields (place, engines) while time remains."""
        for runner in self.options.runner:
            for request, requests in places:
                place = self.place(runner=runner, request=request, requests=requests)
                engines = self.engines_of(runner, ENGINES)
                if self.seconds_left() < MEASURE_SECONDS_MIN:
                    self.skip(name, place, NO_TIME)
                elif engines:
                    yield place, engines

    def engines_of(self, runner, kinds):
        return {e.kind: e for e in self.engines if e.runner == runner and e.kind in kinds}

    def measure(self, name, places, measure, text):
        for place, engines in self.points(name, places):
            try:
                self.add(name, place, measure(place, engines), text)
            except EngineError as error:
                self.drop(error.engine, name, place, error)

    def measure_times(self, place, engines):
        self.warm(place, engines)
        counted = engines.get("plugin")
        before = self.run_command(counted, "counts") if counted else {}

        def run(engine):
            first = self.write_texts(engine, place, 1)["seconds"]
            return [{"first": first, **self.write_texts(engine, place, self.options.tokens)}]

        point = {"rounds": self.options.rounds, "tokens": self.options.tokens}
        point.update(time_point(self.take_turns(engines, run), self.options.tokens))
        if counted:
            after = self.run_command(counted, "counts")
            point["counts"] = subtract_counts(after, before)
        return point

    def measure_host(self, place, engines):
        self.warm(place, engines)

        def run(engine):
            return [self.write_texts(engine, place, self.options.tokens, host=True)["host"]]

        return host_point(self.take_turns(engines, run))

    def measure_kernels(self, place, engines):
        self.warm(place, engines)
        request, requests = place["request"], place["requests"]
        found = {}
        for kind, engine in engines.items():
            found[kind] = [
                self.run_command(engine, "profile", kind=request, requests=requests, tokens=tokens)
                for tokens in (PROFILED_TOKENS, 1)
            ]
        return kernel_point(found, PROFILED_TOKENS)

    def take_turns(self, engines, run):
        turns = {kind: lambda engine=engine: run(engine) for kind, engine in engines.items()}
        return in_turns(turns, self.options.rounds)

    def warm(self, place, engines):
        for engine in engines.values():
            self.write_texts(engine, place, WARM_TOKENS)

    def write_texts(self, engine, place, tokens, **more):
        request, requests = place["request"], place["requests"]
        return self.run_command(
            engine, "write", kind=request, requests=requests, tokens=tokens, **more
        )

    def measure_memory(self):
        """Measures one engine at a time, as the others must not change the memory of the GPU."""
        for engine in [each for each in self.engines if each.kind in ENGINES]:
            place = self.place(
                runner=engine.runner, engine=engine.kind, requests=self.options.requests_max
            )
            seconds = self.seconds_left()
            if seconds < MEASURE_SECONDS_MIN:
                self.skip("memory", place, NO_TIME)
                continue
            try:
                found = self.run_command(
                    engine, "change_batches", seconds + 5, steps=self.options.memory,
                    requests=self.options.requests_max, samples=MEMORY_SAMPLES, time_limit=seconds,
                )
                if found["steps"] < self.options.memory:
                    self.skip("memory", place, f"{found['steps']} steps, then {NO_TIME}")
                self.add("memory", place, memory_point(found), format_memory)
            except EngineError as error:
                self.drop(engine, "memory", place, error)

    def check_texts(self):
        for runner in self.options.runner:
            engines = self.engines_of(runner, (*ENGINES, "drafts"))
            writers = {kind: self.writer(engine) for kind, engine in engines.items()}
            checks = [(kind, check_engine(write)) for kind, write in writers.items()]
            if writers.keys() >= {"stock", "plugin"}:
                both = compare_engines(writers["stock"], writers["plugin"])
                checks.append(("plugin and stock", both))
            if writers.keys() >= {"plugin", "drafts"}:
                both = compare_drafts(writers["plugin"], writers["drafts"])
                checks.append(("plugin and drafts", both))
            for engine, found in checks:
                place = self.place(runner=runner, engine=engine)
                try:
                    self.check(place, found)
                except EngineError as error:
                    self.drop(error.engine, "texts", place, error)
                    break

    def check(self, place, comparisons):
        for name, found in comparisons:
            where = {**place, "request": name}
            self.add("texts", where, {"found": found}, format_texts)
            if self.options.dtype == "float32":
                faults = find_faults({**where, "found": found})
                self.faults += [f"{place['runner']} {name}: {fault}" for fault in faults]
            if self.seconds_left() < MEASURE_SECONDS_MIN:
                self.skip("texts", place, f"after {name} {NO_TIME}")
                return

    def writer(self, engine):
        return lambda kind, rows, changes=None: self.run_command(
            engine, "texts", kind=kind, rows=list(rows), tokens=CHECKED_TOKENS, changes=changes
        )

    def run(self):
        options = self.options
        if options.check:
            self.check_texts()
        self.measure("kernels", options.profile, self.measure_kernels, format_kernels)
        places = [(kind, requests) for kind in options.kind for requests in options.requests]
        if options.host:
            self.measure("host", places, self.measure_host, format_host)
        if not options.no_times:
            self.measure("vllm", places, self.measure_times, format_time)
        if options.memory:
            self.measure_memory()


def read_profile(text):
    kind, _, requests = text.partition(":")
    if kind not in KINDS or not requests.isdigit() or int(requests) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected KIND:REQUESTS")
    return kind, int(requests)


def read_names(choices):
    def read(text):
        found = text.split(",")
        if not set(found) <= set(choices):
            raise argparse.ArgumentTypeError(f"{text}: not of {', '.join(choices)}")
        return found

    return read


def read_numbers(text):
    found = [int(number) for number in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError("numbers of requests must be at least 1")
    return found


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--json", metavar="FILE", help="write the measurements to FILE, or add to it")
    add("--commit", default="unknown", help="the commit that is measured")
    add("--model", choices=list(SHAPES), default="Qwen3-8B")
    add("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    add("--tp", type=int, default=1, metavar="N", help="tensor parallel size (1)")
    add("--flashinfer-all-reduce", action="store_true",
        help="of ranks; default: vLLM's own kernel and NCCL, for all engines")
    add("--runner", type=read_names(RUNNERS), default=RUNNERS, help="V2,V1")
    add("--engine", type=read_names(ENGINES), default=ENGINES, help="stock,plugin")
    add("--kind", type=read_names(KINDS), default=MEASURED, help=",".join(KINDS))
    add("--requests", type=read_numbers, default=REQUESTS, help="1,8,32,64,128,256")
    add("--tokens", type=int, default=129, help="output tokens of each text (129)")
    add("--rounds", type=int, default=3, help="rounds of each measurement (3)")
    add("--seconds", type=float, default=500, help="limit of the run, with the start (500)")
    add("--start-seconds", type=float, default=240, help="limit of the start (240)")
    add("--no-times", action="store_true", help="measure only what other options select")
    add("--host", action="store_true", help="host time of the LM head and the sampler")
    add("--profile", type=read_profile, action="append", default=[], metavar="KIND:REQUESTS",
        help="kernel time of a step; may be repeated")
    add("--memory", type=int, default=0, metavar="STEPS", help="memory while batches change")
    add("--check", action="store_true", help="compare texts; exit 1 if they differ in float32")
    add("--drafts", action="store_true", help="with --check: also texts with n-gram drafts")
    add("--gpu-memory-utilization", type=float, help="of each engine (0.88 over their number)")
    add("--kv-gib", type=float, help="KV cache of each engine (enough for all requests)")
    add("--max-model-len", type=int, default=1024)
    add("--llm", type=json.loads, default={}, metavar="JSON", help="more arguments of vllm.LLM")
    add("--cache", default=str(pathlib.Path(tempfile.gettempdir()) / "gumbel_bench_vllm"),
        help="folder for compiled code, which makes the next start faster, and logs")
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--tiny", action="store_true", help="small shapes, to test the program")
    options = parser.parse_args(arguments)
    if options.tokens < 2 or options.rounds < 1 or options.tp < 1:
        parser.error("--tokens must be at least 2, --rounds and --tp at least 1")
    if options.drafts and not (options.check and "plugin" in options.engine):
        parser.error("--drafts requires --check and the engine plugin")
    if PROMPT_TOKENS + options.tokens > options.max_model_len:
        parser.error(f"a text has {PROMPT_TOKENS} + --tokens tokens, more than --max-model-len")
    numbers = [*options.requests, *(requests for _, requests in options.profile)]
    options.requests_max = max(*numbers, 64 if options.check else 1)
    return options


def main():
    options = parse()
    bench = Bench(options)
    try:
        bench.start()
        bench.run()
    finally:  # results before a failure remain
        bench.end()
        bench.write()
    for fault in bench.faults:
        print("fault:", fault)
    return 1 if bench.faults or not bench.measured else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Points of bench_vllm_gpu.py: from what engines measured to a line of the results."""

import json
import pathlib
import statistics

import numpy as np
from spread import describe

PLACE = ("model", "dtype", "tensor_parallel", "runner", "request", "requests", "engine")
LISTS = ("vllm", "host", "kernels", "memory", "texts", "skipped")
KERNELS = 12  # of an engine that a point names
COUNTS = {"fused": "fused", "logits": "from logits", "processed": "processed by vLLM",
          "stock": "by vLLM", "materialised": "products computed after all"}


def median_ratio(plugin, stock):
    """{median, p10, p90} of plug-in over stock, in the rounds of equal number."""
    ratios = np.percentile([a / b for a, b in zip(plugin, stock)], [10, 50, 90])
    return {name: round(float(x), 4) for name, x in zip(("p10", "median", "p90"), ratios)}


def time_point(records, tokens):
    """Time per output token. `records`: engine -> [{"first": s, "seconds": s, "gaps": [us]}]."""
    point, times = {}, {}
    for engine, rounds in records.items():
        first = statistics.median(one["first"] for one in rounds)
        times[engine] = [1e6 * (one["seconds"] - first) / (tokens - 1) for one in rounds]
        point[engine] = describe(times[engine])
        gaps = [gap for one in rounds for gap in one["gaps"]]
        if gaps:
            point[f"{engine}_step"] = describe(gaps)
    if len(times) == 2 and min(min(each) for each in times.values()) > 0:
        ratio = point["plugin"]["median_us"] / point["stock"]["median_us"]
        point["plugin_vs_stock"] = round(ratio, 4)
        point["plugin_vs_stock_rounds"] = median_ratio(times["plugin"], times["stock"])
    return point


def host_point(records):
    """Host times of a step. `records`: engine -> [{"sample": [us], "head_and_sample": [us]}]."""
    point = {}
    for engine, rounds in records.items():
        for name in ("sample", "head_and_sample"):
            times = [us for one in rounds for us in one[name][1:]]  # the first step has the prompts
            if times:
                point[f"{engine}_{name}"] = describe(times)
    for name in ("sample", "head_and_sample"):
        both = [point.get(f"{engine}_{name}") for engine in ("plugin", "stock")]
        if all(both):
            ratio = both[0]["median_us"] / both[1]["median_us"]
            point[f"{name}_plugin_vs_stock"] = round(ratio, 4)
    return point


def kernel_point(profiles, tokens):
    """Kernel time of a step. `profiles`: engine -> (kernels of a run, and of one of 1 token)."""
    point = {}
    for engine, (run, first) in profiles.items():
        kernels = []
        for name, (us, calls) in run.items():
            first_us, first_calls = first.get(name, (0, 0))
            kernels.append((round((us - first_us) / (tokens - 1), 2),
                            round((calls - first_calls) / (tokens - 1), 2), name))
        point[f"{engine}_us"] = round(sum(us for us, _, _ in kernels), 1)
        point[f"{engine}_kernels"] = sorted(kernels, reverse=True)[:KERNELS]
    if {"stock_us", "plugin_us"} <= point.keys():
        point["plugin_vs_stock"] = round(point["plugin_us"] / point["stock_us"], 4)
    return point


def memory_point(found):
    """Growth of memory from the first half of the steps to the second: by the largest samples."""
    samples, growth = found["samples"], {}
    half = len(samples) // 2
    for name in ("device", "reserved", "allocated", "host"):
        values = [sample[name] for sample in samples if name in sample]
        if half and len(values) == len(samples):
            growth[name] = max(values[half:]) - max(values[1:half] or values[:half])
    return {"steps": found["steps"], "written": found["written"], "growth_bytes": growth,
            "samples": samples}


def subtract_counts(after, before):
    return {name: count - before.get(name, 0) for name, count in after.items()}


def format_place(point):
    return " ".join(str(point[name]) for name in PLACE[3:] if name in point)


def format_counts(counts):
    parts = [f"{counts[name]} {words}" for name, words in COUNTS.items() if counts.get(name)]
    return f"{counts['steps']} steps: {', '.join(parts)}" if counts.get("steps") else ""


def format_spread(spread):
    return f"{spread['median_us']:.0f} us ({spread['p10_us']:.0f}..{spread['p90_us']:.0f})"


def format_time(point):
    cells = [f"{name} {format_spread(point[name])}" for name in ("stock", "plugin")
             if name in point]
    if "plugin_vs_stock" in point:
        rounds = point["plugin_vs_stock_rounds"]
        cells.append(f"plugin/stock {point['plugin_vs_stock']:.3f} "
                     f"({rounds['p10']:.2f}..{rounds['p90']:.2f})")
    return "  ".join([format_place(point), *cells, format_counts(point.get("counts", {}))])


def format_host(point):
    cells = [f"{name} {format_spread(value)}" for name, value in point.items()
             if isinstance(value, dict) and "median_us" in value]
    cells += [f"{name} {point[f'{name}_plugin_vs_stock']:.2f}"
              for name in ("sample", "head_and_sample") if f"{name}_plugin_vs_stock" in point]
    return "  ".join([format_place(point), "host:", *cells])


def format_kernels(point):
    cells = [f"{engine} {point[f'{engine}_us']:.1f} us" for engine in ("stock", "plugin")
             if f"{engine}_us" in point]
    if "plugin_vs_stock" in point:
        cells.append(f"plugin/stock {point['plugin_vs_stock']:.3f}")
    lines = ["  ".join([format_place(point), "kernels:", *cells])]
    for engine in ("stock", "plugin"):
        lines += [f"  {engine} {us:9.2f} us x {calls:7.2f}  {name[:100]}"
                  for us, calls, name in point.get(f"{engine}_kernels", [])]
    return "\n".join(lines)


def format_memory(point):
    growth = ", ".join(f"{name} {size / 2**20:+.1f} MiB"
                       for name, size in point["growth_bytes"].items())
    lines = [f"{format_place(point)} memory: {point['steps']} steps, {point['written']} requests; "
             f"growth of the second half: {growth}"]
    for sample in point["samples"]:
        cells = [f"{name} {sample[name] / 2**20:.1f}" for name in
                 ("device", "reserved", "allocated", "host") if name in sample]
        lines.append(f"  step {sample['step']:6} of {sample['requests']:3} requests, MiB: "
                     + ", ".join(cells))
    return "\n".join(lines)


def key_of(entry, engine=True):
    return tuple(entry.get(name) for name in PLACE[: None if engine else -1])


def merge(path, head, lists):
    """A report, with what the file at `path` holds of the same machine and was not measured now."""
    try:
        old = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        old = {}
    if any(old.get(name) != head[name] for name in ("gpu", "versions")):
        old = {}
    report = {**head}
    report["engine_arguments"] = {**old.get("engine_arguments", {}), **head["engine_arguments"]}
    for name in LISTS[:-1]:
        new = lists.get(name, [])
        known = set(map(key_of, new))
        report[name] = [each for each in old.get(name, []) if key_of(each) not in known] + new
    tried = {(name, key_of(each, name == "memory")) for name in LISTS[:-1]
             for each in lists.get(name, [])}
    new = lists.get("skipped", [])
    tried |= {(each["of"], key_of(each, each["of"] == "memory")) for each in new}
    report["skipped"] = [
        each for each in old.get("skipped", []) if each["of"] != "start"
        and (each["of"], key_of(each, each["of"] == "memory")) not in tried
    ] + new
    return report

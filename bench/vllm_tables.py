# SPDX-License-Identifier: Apache-2.0
"""Heads and rows of the tables of vLLM on a GPU, from the results of bench_vllm_gpu.py."""

REQUESTS = {
    "greedy": "greedy", "temperature": "temperature 1", "top_k_top_p": "top_k, top_p",
    "top_p": "top_p", "min_p": "min_p", "penalties": "penalties",
    "penalties_logprobs": "penalties, 5 log-probabilities", "seeds": "temperature 1, seeds",
    "seeds_top_k_top_p": "top_k, top_p, seeds", "logprobs": "5 log-probabilities",
}
MEMORY = {"device": "GPU", "reserved": "reserved by torch", "allocated": "allocated by torch"}


def name_model(point):
    """The model, with its dtype and number of ranks if these are not bfloat16 and 1."""
    dtype = "" if point["dtype"] == "bfloat16" else f", {point['dtype']}"
    ranks = point["tensor_parallel"]
    return point["model"] + dtype + (f", TP {ranks}" if ranks > 1 else "")


def wide_table(points, format_cell):
    """One row a model, runner and kind of requests; one column a number of requests."""
    numbers = sorted({point["requests"] for point in points})
    rows = {}
    for point in points:
        key = name_model(point), point["runner"], point["request"]
        rows.setdefault(key, {})[point["requests"]] = format_cell(point)
    order = list(REQUESTS)
    lines = [[model, runner, REQUESTS[kind], *(rows[model, runner, kind].get(number, "")
                                               for number in numbers)]
             for model, runner, kind in sorted(rows, key=lambda k: (*k[:2], order.index(k[2])))]
    return ["model", "runner", "requests", *map(str, numbers)], lines


def format_pair(point, name="", unit=1.0, digits=0):
    """stock / plug-in (ratio) of a pair of spreads."""
    pair = [point.get(engine + name) for engine in ("stock", "plugin")]
    cells = [f"{spread['median_us'] / unit:.{digits}f}" if spread else "-" for spread in pair]
    both = all(spread and spread["median_us"] > 0 for spread in pair)
    ratio = f" ({pair[1]['median_us'] / pair[0]['median_us']:.3f})" if both else ""
    return " / ".join(cells) + ratio


def times(results):
    return wide_table(results["vllm"], lambda point: format_pair(point, "", 1e3, 2))


def host_times(results):
    return wide_table(results["host"], lambda point: format_pair(point, "_head_and_sample"))


def kernels(results):
    rows = [[name_model(p), p["runner"], REQUESTS[p["request"]], p["requests"],
             *(f"{p[name]:.0f}" if name in p else "" for name in ("stock_us", "plugin_us")),
             f"{p['plugin_vs_stock']:.3f}" if "plugin_vs_stock" in p else ""]
            for p in results["kernels"]]
    return ["model", "runner", "request", "requests", "stock", "plug-in", "plug-in / stock"], rows


def memory(results):
    rows = [[name_model(p), p["runner"], p["engine"], p["steps"], p["written"],
             *(f"{p['growth_bytes'][name] / 2**20:+.1f}" if name in p["growth_bytes"] else ""
               for name in MEMORY)]
            for p in results["memory"]]
    return ["model", "runner", "engine", "steps", "requests", *MEMORY.values()], rows


def source(results):
    """Date, commits, machine and versions; how many measurements are missing."""
    points = [p for name in ("vllm", "host", "kernels", "memory") for p in results[name]]
    commits = sorted({point["commit"] for point in points})
    versions, lacking = results["versions"], len(results["skipped"])
    text = (f"{results['date']}, commit{'s' * (len(commits) > 1)} {', '.join(commits)}, "
            f"{results['gpu']}, vLLM {versions['vllm']}, torch {versions['torch']}, FlashInfer "
            f"{versions.get('flashinfer-python', 'none')}; {results['prompt']} tokens of prompt.\n")
    return text + (f"Missing measurements: {lacking}; the results name them.\n" if lacking else "")

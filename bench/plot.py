#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw the measurements in bench/results/ as SVG into docs/plots/. Drawing needs matplotlib.

usage: bench/plot.py [--check]

Three plots a device: time over the batch, percent of the read bandwidth over the batch, and the
roofline; from a file of contestants one, their times over that of the fused draw; from one of
requests one, their times over batch, k and p; from one of texts one, the time of a token; from one
of screens' formats one, which screen_tables.py defines; from those of ranks one, which
rank_tables.py defines; and overview.svg, the README's chart, which headlines.py defines. Git tracks
the plots that pages show in the repository (list_tracked()); script/docs draws all of them for the
site.

--check draws nothing: it exits 1 if a tracked plot is missing, or does not match today's results
and script, which each plot names by a digest, or if a plot has no results. If matplotlib is the
version that drew a tracked plot, --check also compares every byte.
"""

import dataclasses
import hashlib
import io
import json
import pathlib
import re
import sys

import headlines
import rank_tables
import screen_tables

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PLOTS = ROOT / "docs" / "plots"
TRACKED = ("overview", "cuda-h200-time", "cuda-h200-ranks")

ELEMENT_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
# Names of series in the files, and the names in plots.
NAMES = {"fused draw": "fused", "cuBLAS alone": "gemm"}
LEGEND = {
    "fused": "fused draw",
    "fused_with_logprobs": "fused draw, log-probabilities too",
    "gemm": "cuBLAS writing logits, no draw",
    "product": "the same product, no draw",
    "flashsampling": "FlashSampling (Triton)",
    "materialised": "product, stored logits, draw from them",
}
# Series without a product: plain reads, and draws from logits.
ELSEWHERE = {"read weights", "from logits", "from logits, 1 thread"}

# Okabe and Ito's colours, which the colour-blind can distinguish; gumbel's series first.
OURS = {"fused": "#D55E00", "fused_with_logprobs": "#E69F00"}
OTHERS = ["#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#8C6D1F", "#7F7F7F", "#882255"]
SHAPES = ["#D55E00", "#0072B2", "#009E73", "#CC79A7"]
GREY = "#999999"


# --------------------------------------------------------------------------------- results ----


@dataclasses.dataclass
class Requests:
    """A file of times of requests."""

    machine: str
    commit: str
    points: list  # {way, table, request, rows, top_k, top_p, batch, median_us}

    def line(self, key, **conditions):
        """[values of key], [microseconds] of the points that meet the conditions."""
        found = [
            (point[key], point["median_us"])
            for point in self.points
            if all(point[name] == value for name, value in conditions.items())
        ]
        return zip(*sorted(found))


@dataclasses.dataclass
class Texts:
    """A file of times a token of texts: stock, from logits and fused."""

    machine: str
    commit: str
    points: list  # {model, batch, way, request, fused_vs_stock}


@dataclasses.dataclass
class Results:
    """One file: microseconds by shape (V, D), series and batch."""

    machine: str
    commit: str
    element_bytes: int
    bandwidth: float | None  # bytes a second
    peak: float | None  # operations a second
    times: dict  # (V, D) -> series -> {B: microseconds}

    def bytes_read(self, shape, batch):
        vocab, hidden = shape
        return self.element_bytes * hidden * (vocab + batch)

    def operations(self, shape, batch):
        vocab, hidden = shape
        return 2 * vocab * hidden * batch

    def floor_us(self, shape, batch):
        """Reading the weights once, or multiplying, whichever takes longer."""
        reading = self.bytes_read(shape, batch) / self.bandwidth
        computing = self.operations(shape, batch) / self.peak if self.peak else 0
        return 1e6 * max(reading, computing)


def rows_of(data):
    """(V, D, B, series, microseconds) of a file by a benchmark program, with one entry a shape and
    batch, or by `gumbel bench --json`, with one file a shape. Empty for other files."""
    for entry in data.get("fused", []):
        for series, spread in entry.items():
            if isinstance(spread, dict) and "median_us" in spread:
                place = entry["vocab"], entry["hidden"], entry["batch"]
                yield *place, series, spread["median_us"]
    for result in data.get("results", []):
        for series, spread in result.get("ways", {}).items():
            yield data["vocab"], data["hidden"], result["batch"], series, spread["median_us"]


def peak_of(data):
    """Operations a second: measured, or read from the text of the ceiling."""
    words = re.search(r"([\d.]+) TFLOP/s", data.get("ceiling", ""))
    return data.get("float_operations_per_second") or (float(words[1]) * 1e12 if words else None)


def read_results(path):
    """None if no plot shows what the file measured."""
    data = json.loads(path.read_text(encoding="utf-8"))
    if "transformers" in data:
        points = [point for point in data["transformers"] if "fused_vs_stock" in point]
        return Texts(data["gpu"], data["commit"], points)
    if "requests" in data:
        return Requests(data["gpu"], data["commit"], data["requests"])
    others = screen_tables.read_screens(data) or rank_tables.read_ranks(data)
    if others:
        return others
    times = {}
    for vocab, hidden, batch, series, us in rows_of(data):
        if series not in ELSEWHERE:
            shape = times.setdefault((vocab, hidden), {})
            shape.setdefault(NAMES.get(series, series), {})[batch] = us
    if not times:
        return None
    return Results(
        machine=data.get("gpu") or data["cpu"],
        commit=data["commit"],
        element_bytes=ELEMENT_BYTES[data["dtype"]],
        bandwidth=data.get("read_bytes_per_second"),
        peak=peak_of(data),
        times=times,
    )


def plots_of(folder):
    """Name of a plot -> (its draw function, its results, their files). Files whose names differ in
    the hidden size or the number of GPUs alone, as cpu-bf16-d2048 and cpu-bf16-d4096, share their
    plots."""
    groups = {}
    for path in sorted(folder.glob("*.json"), key=lambda path: (len(path.stem), path.stem)):
        groups.setdefault(re.sub(r"-d?\d+$", "", path.stem), []).append(path)
    plots = {}
    for group, paths in groups.items():
        results = [read_results(path) for path in paths]
        if not all(results):
            continue
        if isinstance(results[0], Requests):
            plots[group] = draw_requests, results, paths
        elif isinstance(results[0], Texts):
            plots[group] = draw_texts, results, paths
        elif isinstance(results[0], screen_tables.Screens):
            script = pathlib.Path(screen_tables.__file__)
            plots[group] = screen_tables.draw_screens, results, [*paths, script]
        elif isinstance(results[0], rank_tables.Ranks):
            script = pathlib.Path(rank_tables.__file__)
            plots[group] = rank_tables.plot_ranks, results, [*paths, script]
        elif all(each.bandwidth for each in results):
            plots[f"{group}-time"] = draw_time, results, paths
            plots[f"{group}-bandwidth"] = draw_bandwidth, results, paths
            plots[f"{group}-roofline"] = draw_roofline, results, paths
        else:
            plots[f"{group}-ratio"] = draw_ratio, results, paths
            if group == headlines.CHART:
                script = pathlib.Path(headlines.__file__)
                plots["overview"] = headlines.draw_chart, results, [*paths, script]
    return plots


def shapes_of(results):
    return [(each, shape) for each in results for shape in each.times]


# --------------------------------------------------------------------------------- drawing ----


def label_of(shape):
    return f"V = {shape[0]}, D = {shape[1]}"


def source_of(results):
    commits = sorted({each.commit for each in results})
    return f"{results[0].machine}, commit {', '.join(commits)}"


def legend_of(name):
    words = name.replace("gemm_", "cuBLAS, then ").replace("_", " ")
    return LEGEND.get(name, words)


def styles_of(results):
    """A colour for each series, the same in every panel; ours stand out."""
    names = dict.fromkeys(name for each, shape in shapes_of(results) for name in each.times[shape])
    others = [name for name in names if name not in OURS]
    styles = {name: {"color": colour, "marker": "o"} for name, colour in OURS.items()}
    for i, name in enumerate(others):
        round_, place = divmod(i, len(OTHERS))
        styles[name] = {"color": OTHERS[place], "marker": "s^v"[round_ % 3]}
    return styles


def set_batches(axes, batches):
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    axes.set_xlabel("batch B")


def panels_of(pyplot, results):
    """A panel a shape, side by side: the figure, and the panels with their results."""
    shapes = shapes_of(results)
    figure, panels = pyplot.subplots(
        1, len(shapes), figsize=(4.4 * len(shapes), 4.6), squeeze=False
    )
    for axes, (each, shape) in zip(panels[0], shapes):
        axes.set_title(label_of(shape))
        set_batches(
            axes, sorted({batch for times in each.times[shape].values() for batch in times})
        )
    figure.suptitle(source_of(results), fontsize="medium")
    return figure, [(axes, *shape) for axes, shape in zip(panels[0], shapes)]


def finish_panels(figure, panels):
    """One legend for all panels, below them."""
    handles, labels = panels[0][0].get_legend_handles_labels()
    columns = 3
    rows = -(-len(labels) // columns)
    figure.legend(handles, labels, loc="lower center", ncols=columns, frameon=False)
    figure.tight_layout(rect=(0, 0.055 * rows, 1, 1))
    return figure


def draw_time(pyplot, results):
    """Microseconds of a step over the batch, and the floor."""
    styles = styles_of(results)
    figure, panels = panels_of(pyplot, results)
    for axes, each, shape in panels:
        batches = axes.get_xticks()
        floor = [each.floor_us(shape, batch) for batch in batches]
        axes.plot(batches, floor, color=GREY, linestyle="--", label="floor: read or multiply")
        for name, times in each.times[shape].items():
            points = zip(*sorted(times.items()))
            axes.plot(*points, label=legend_of(name), markersize=3, **styles[name])
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda us, _: f"{us:,.0f}")
    panels[0][0].set_ylabel("microseconds of a step")
    return finish_panels(figure, panels)


def draw_ratio(pyplot, results):
    """The time of each contestant over that of the fused draw, in the same run."""
    styles = styles_of(results)
    figure, panels = panels_of(pyplot, results)
    for axes, each, shape in panels:
        fused = each.times[shape]["fused"]
        for name, times in each.times[shape].items():
            points = zip(*sorted((batch, us / fused[batch]) for batch, us in times.items()))
            axes.plot(*points, label=legend_of(name), markersize=3, **styles[name])
        axes.set_ylim(bottom=0)
    panels[0][0].set_ylabel("time of a step / that of the fused draw")
    return finish_panels(figure, panels)


def draw_requests(pyplot, results):
    """Microseconds of a request from logits, over batch, k and p; flat rows and peaked ones."""
    each = results[0]
    rows = list(dict.fromkeys(point["rows"] for point in each.points))
    batches = sorted({point["batch"] for point in each.points})
    requests = list(dict.fromkeys(p["request"] for p in each.points if p["table"] == "requests"))
    figure, (over_batch, over_k, over_p) = pyplot.subplots(1, 3, figsize=(13.2, 5.4), sharey=True)
    colours = [*OURS.values(), *OTHERS, GREY]
    for i, name in enumerate(requests):
        style = {"color": colours[i % len(colours)], "marker": "os^vD"[i // 4], "markersize": 3}
        line = each.line("batch", way="logits", table="requests", request=name, rows=rows[0])
        over_batch.plot(*line, label=name, **style)
    for axes, table, key in ((over_k, "k", "top_k"), (over_p, "p", "top_p")):
        for colour, batch in zip(SHAPES, batches):
            for kind, stroke in zip(rows, ("-", ":")):
                line = each.line(key, table=table, rows=kind, batch=batch)
                axes.plot(
                    *line, stroke, color=colour, marker="o", markersize=3,
                    label=f"B = {batch}, {kind}",
                )
        axes.set_xlabel(table)
        axes.legend(frameon=False, fontsize="x-small")
    set_batches(over_batch, batches)
    over_batch.set_yscale("log")
    over_batch.set_ylabel(f"microseconds; left: {rows[0]}")
    over_batch.legend(frameon=False, fontsize="x-small")
    over_k.set_xscale("log")
    figure.suptitle(f"Requests from float32 logits, {source_of(results)}", fontsize="medium")
    figure.tight_layout()
    return figure


def draw_texts(pyplot, results):
    """Time a token of fused draws relative to stock, over the number of sequences."""
    points = results[0].points
    models = sorted({point["model"] for point in points})
    kinds = sorted({(point["way"], point["request"]) for point in points})
    figure, panels = pyplot.subplots(
        1, len(models), figsize=(4.4 * len(models), 4.6), squeeze=False, sharey=True
    )
    for axes, model in zip(panels[0], models):
        for i, (way, request) in enumerate(kinds):
            line = sorted(
                (point["batch"], 100 * (point["fused_vs_stock"] - 1))
                for point in points
                if (point["model"], point["way"], point["request"]) == (model, way, request)
            )
            style = {"color": [*OURS.values(), *OTHERS][i], "marker": "o", "markersize": 3}
            axes.plot(*zip(*line), label=f"{way}, {request}", **style)
        axes.axhline(0, color=GREY, linestyle="--")
        axes.set_title(model)
        set_batches(axes, sorted({point["batch"] for point in points}))
        axes.set_xlabel("sequences")
    panels[0][0].set_ylabel("time a token, fused over stock, %")
    figure.suptitle(f"transformers, {source_of(results)}", fontsize="medium")
    return finish_panels(figure, [panels[0]])


def draw_bandwidth(pyplot, results):
    """The bytes that must be read, over the time, as a share of the bandwidth measured in the same
    run. The share falls where the product is limited by multiply-adds."""
    figure, axes = pyplot.subplots(figsize=(6.4, 4.6))
    batches = set()
    for colour, (each, shape) in zip(SHAPES, shapes_of(results)):
        for name, line in (("fused", "-"), ("gemm", ":"), ("product", ":")):
            times = each.times[shape].get(name, {})
            share = [
                100 * each.bytes_read(shape, batch) / (us * 1e-6) / each.bandwidth
                for batch, us in times.items()
            ]
            label = f"{LEGEND[name]}, {label_of(shape)}"
            if times:
                axes.plot(
                    list(times), share, line, color=colour, marker="o", markersize=3, label=label
                )
            batches |= times.keys()
    axes.axhline(100, color=GREY, linestyle="--")
    axes.set_ylim(0, 105)
    axes.set_ylabel("% of the read bandwidth")
    axes.set_title(source_of(results), fontsize="medium")
    set_batches(axes, sorted(batches))
    axes.legend(frameon=False, fontsize="small")
    figure.tight_layout()
    return figure


def draw_roof(axes, each, at_most):
    """The roof: bandwidth up to the ridge, multiply-adds from there on."""
    ridge = each.peak / each.bandwidth if each.peak else at_most
    intensities = [1, ridge, max(ridge, at_most)]
    speeds = [min(x, ridge) * each.bandwidth / 1e12 for x in intensities]
    label = "roof: read bandwidth, multiply-adds"
    axes.plot(intensities, speeds, color=GREY, linestyle="--", label=label)


def draw_roofline(pyplot, results):
    """Operations a second over operations a byte, under what memory and arithmetic allow."""
    figure, axes = pyplot.subplots(figsize=(6.4, 4.6))
    at_most = 1.0
    for colour, (each, shape) in zip(SHAPES, shapes_of(results)):
        for name, marker in (("fused", "o"), ("gemm", "x"), ("product", "x")):
            times = each.times[shape].get(name, {})
            work = [each.operations(shape, batch) for batch in times]
            intensity = [
                operations / each.bytes_read(shape, batch) for operations, batch in zip(work, times)
            ]
            speed = [operations / us * 1e-6 for operations, us in zip(work, times.values())]
            label = f"{LEGEND[name]}, {label_of(shape)}"
            if times:
                axes.plot(intensity, speed, marker, color=colour, markersize=5, label=label)
                at_most = max(at_most, *intensity)
    draw_roof(axes, results[0], at_most)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=10)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(lambda value, _: "")
    axes.yaxis.set_major_locator(pyplot.matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(source_of(results), fontsize="medium")
    axes.legend(frameon=False, fontsize="small", loc="lower right")
    figure.tight_layout()
    return figure


def digest_of(paths):
    """Digest of the script and of the results that a plot shows, independent of their layout."""
    found = hashlib.sha256(pathlib.Path(__file__).read_bytes())
    for path in paths:
        text = path.read_text(encoding="utf-8")
        found.update((json.dumps(json.loads(text)) if path.suffix == ".json" else text).encode())
    return found.hexdigest()


def render(draw, results, paths):
    """The plot as SVG; the bytes depend on the version of matplotlib alone."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    style = {
        "svg.hashsalt": "gumbel",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.grid": True,
        "grid.color": "#DDDDDD",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **style}):
        figure = draw(pyplot, results)
        file = io.BytesIO()
        metadata = {"Date": None, "Source": f"sha256 {digest_of(paths)}"}
        figure.savefig(file, format="svg", metadata=metadata)
        pyplot.close(figure)
    lines = file.getvalue().decode().splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


# --------------------------------------------------------------------------------- command ----


def matplotlib_version():
    try:
        import matplotlib
    except ImportError:
        return None
    return matplotlib.__version__


def list_tracked(plots):
    return [*TRACKED, *(name for name in plots if name.endswith(screen_tables.QUESTION))]


def faults(plots):
    """Lines about plots in docs/plots/ that are missing, outdated or without results."""
    for path in sorted(PLOTS.glob("*.svg")):
        if path.stem not in plots:
            yield f"{path.name}: no results that it could be of"
    for name in list_tracked(plots):
        plot, path = plots[name], PLOTS / f"{name}.svg"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        drawn_by = re.search(r"Matplotlib v([\w.]+)", text)
        if not text:
            yield f"{path.name}: missing"
        elif f"sha256 {digest_of(plot[2])}" not in text:
            yield f"{path.name}: not of today's results and script"
        elif drawn_by and drawn_by[1] == matplotlib_version() and text != render(*plot):
            yield f"{path.name}: differs from what bench/plot.py draws"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__.strip())
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    plots = plots_of(RESULTS)
    if sys.argv[1:]:
        found = list(faults(plots))
        print(*found, f"plots: {len(plots)}, {len(found)} faults", sep="\n", file=sys.stderr)
        return 1 if found else 0
    if not matplotlib_version():
        sys.exit("plot: matplotlib is needed: pip install matplotlib")
    for name, plot in plots.items():
        (PLOTS / f"{name}.svg").write_text(render(*plot), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

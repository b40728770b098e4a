# SPDX-License-Identifier: Apache-2.0
"""Plot, tables and time model of bench_ranks: draws over 1, 2 and 4 GPUs of one host."""

import dataclasses
import math
import statistics

from result_tables import load, stamp, table

FILES = {ranks: f"cuda-h200-ranks-{ranks}" for ranks in (1, 2, 4)}
# The ways to draw over ranks, each with its label and colour. "k, p" is k = 50 with p = 0.95.
WAYS = {
    "peers": ("peer memory", "#D55E00"),
    "nccl": ("NCCL", "#E69F00"),
    "peers_k50_p95": ("k, p, peer memory", "#0072B2"),
    "nccl_k50_p95": ("k, p, NCCL", "#56B4E9"),
}
SHOWN_BATCHES = 1, 16, 64

# FlashSampling's own measurements: microseconds over 2, 4 and 8 B200, by shape and batch.
FLASHSAMPLING_B200 = {
    (151936, 4096): {1: (139, 96, 95), 8: (145, 102, 95), 64: (156, 114, 129)},
    (128256, 8192): {1: (200, 121, 84), 8: (205, 127, 88), 64: (216, 136, 96)},
}

# Assumed for exchanges between hosts of 8 GPUs, by recursive doubling; not measured.
GPUS_OF_HOST = 8
STEP_US = 10
BYTES_PER_US = 50_000


@dataclasses.dataclass
class Ranks:
    """A file of bench_ranks."""

    machine: str
    commit: str
    ranks: int
    rows: list  # {V, D, B, shard_us, gather_us, nccl_us, ...}


def read_ranks(data):
    """The measurements of a file of bench_ranks; None for other files."""
    rows = data.get("rows", [])
    if not rows or not {"shard_us", "gather_us"} <= rows[0].keys():
        return None
    return Ranks(data["machine"], data["commit"], data["ranks"], rows)


def index_times(results):
    """Times of several files by case (V, D, B) and number of ranks."""
    times = {}
    for each in results:
        for row in each.rows:
            times.setdefault((row["V"], row["D"], row["B"]), {})[each.ranks] = row
    return times


def load_times():
    return index_times([read_ranks(load(name)) for name in FILES.values()])


def time_beyond_shard(row, way):
    """Microseconds that a draw takes beyond one shard's plain draw."""
    return row[f"{way}_us"] - row["shard_us"]


# -------------------------------------------------------------------------------------- plot ----


def plot_ranks(pyplot, results):
    """Plots time over the number of ranks: a panel per shape and batch size, a line per way."""
    times = index_times(results)
    shapes = list(dict.fromkeys(case[:2] for case in times))
    figure, panels = pyplot.subplots(
        len(shapes), len(SHOWN_BATCHES), figsize=(9.6, 6.2), squeeze=False, sharey="row"
    )
    for line, (vocab, hidden) in zip(panels, shapes):
        for axes, batch in zip(line, SHOWN_BATCHES):
            plot_case(axes, times[vocab, hidden, batch])
            axes.set_title(f"V = {vocab}, D = {hidden}, B = {batch}")
        line[0].set_ylim(bottom=0)
        line[0].set_ylabel("microseconds")
    for axes in panels[-1]:
        axes.set_xlabel("GPUs")
    machine, commits = results[0].machine, sorted({each.commit for each in results})
    figure.suptitle(f"{machine}, commit {', '.join(commits)}", fontsize="medium")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, frameon=False)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    return figure


def plot_case(axes, times):
    counts = sorted(times)

    def plot(way, **style):
        axes.plot(counts, [times[ranks][f"{way}_us"] for ranks in counts], markersize=3, **style)

    plot("gather", label="product and gather of logits, no draw", color="#555555", marker="s")
    for way, (label, colour) in WAYS.items():
        plot(way, label=f"draw: {label}", color=colour, marker="o")
    plot("shard", label="plain draw of one shard", color="#999999", linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(ranks) for ranks in counts])
    axes.minorticks_off()


# ------------------------------------------------------------------------------------- model ----


def fit_shard(times):
    """(constant, time of the whole head) of a shard's draw, from the times for 1 and 4 ranks."""
    whole = (times[1]["shard_us"] - times[4]["shard_us"]) / (1 - 1 / 4)
    return times[1]["shard_us"] - whole, whole


def list_exchanges(times, way):
    """Microseconds of the exchanges of four ranks up to 64 rows."""
    return [
        time_beyond_shard(case[4], way) - time_beyond_shard(case[1], way)
        for (_, _, batch), case in times.items()
        if batch <= 64
    ]


def count_exchanged_bytes(vocab, batch, ranks, way):
    """Bytes that a rank sends: summaries, top-64 candidates, or whole rows."""
    if not way.endswith("k50_p95"):
        return 48 * batch
    return batch * (516 if batch >= 8 and ranks <= 16 else 4 * vocab / ranks)


def predict_addition(times, case, ranks, way):
    """Microseconds beyond one shard's draw: what a group of one rank adds, and the exchange."""
    vocab, _, batch = case
    addition = time_beyond_shard(times[case][1], way)
    addition += statistics.median(list_exchanges(times, way))
    if ranks > GPUS_OF_HOST:
        sent = count_exchanged_bytes(vocab, batch, ranks, way)
        addition += STEP_US * math.log2(ranks / GPUS_OF_HOST)
        addition += (ranks - GPUS_OF_HOST) * sent / BYTES_PER_US
    return addition


def predict_time(times, case, ranks, way):
    """Microseconds of a draw over ranks."""
    constant, whole = fit_shard(times[case])
    return constant + whole / ranks + predict_addition(times, case, ranks, way)


# ------------------------------------------------------------------------------------ tables ----


def format_source():
    files = [load(name) for name in FILES.values()]
    (stamped,) = {stamp(results) for results in files}
    return (f"{stamped}, four {files[0]['machine']} of one host, `{FILES[1]}.json`, `-2` and\n"
            "`-4`; medians in microseconds.\n")  # fmt: skip


def format_draws():
    """One row a shape, batch and number of ranks."""
    cells = [
        [f"{vocab}, {hidden}", batch, ranks, f"{row['shard_us']:.0f}", f"{row['gather_us']:.0f}",
         *(f"{time_beyond_shard(row, way):+.1f}" for way in WAYS)]
        for (vocab, hidden, batch), case in load_times().items()
        for ranks, row in sorted(case.items())
    ]  # fmt: skip
    return table(["V, D", "B", "GPUs", "one shard", "product and gather of logits",
                  *(label for label, _ in WAYS.values())], cells)  # fmt: skip


def format_flashsampling():
    """One row a shape and batch: FlashSampling on B200 beside draws by peer memory on H200."""
    times = load_times()
    cells = [
        [f"{shape[0]}, {shape[1]}", batch, " / ".join(map(str, theirs)),
         " / ".join(f"{times[*shape, batch][ranks]['peers_us']:.0f}" for ranks in (2, 4))]
        for shape, batches in FLASHSAMPLING_B200.items()
        for batch, theirs in batches.items()
    ]  # fmt: skip
    return table(["V, D", "B", "FlashSampling, 2 / 4 / 8 B200", "libgumbel, 2 / 4 H200"], cells)


def format_shards():
    """One row a batch: the model of the shard's draw for each shape, and how well it predicts."""
    times = load_times()
    cells = []
    for (vocab, hidden, batch), case in times.items():
        constant, whole = fit_shard(case)
        cells.append([f"{vocab}, {hidden}", batch, f"{constant:.1f}", f"{whole:.0f}",
                      f"{constant + whole / 2:.0f}", f"{case[2]['shard_us']:.0f}"])  # fmt: skip
    return table(["V, D", "B", "c", "w", "R = 2, predicted", "measured"], cells)


def format_model_errors():
    """One row a way: the model's exchange, and its predictions for two ranks over the measured
    times."""
    times = load_times()
    cells = []
    for way, (label, _) in WAYS.items():
        exchanges = list_exchanges(times, way)
        wholes = [predict_time(times, case, 2, way) / times[case][2][f"{way}_us"]
                  for case in times]  # fmt: skip
        additions = [predict_addition(times, case, 2, way) / time_beyond_shard(times[case][2], way)
                     for case in times]  # fmt: skip
        cells.append([label, f"{statistics.median(exchanges):.1f}",
                      *(f"{min(each):{form}} to {max(each):{form}}" for each, form in
                        ((exchanges, ".1f"), (wholes, ".2f"), (additions, ".2f")))])  # fmt: skip
    return table(["draw", "x", "its range", "predicted / measured time",
                  "predicted / measured time beyond one shard"], cells)  # fmt: skip


def format_predictions():
    """One row a batch and way: predicted microseconds for more ranks, D = 4096."""
    times = load_times()
    counts = 8, 16, 32, 64
    cells = [
        [batch, label,
         *("-" if way.startswith("peers") and ranks > GPUS_OF_HOST else
           f"{predict_time(times, (151936, 4096, batch), ranks, way):.0f}" for ranks in counts)]
        for batch in SHOWN_BATCHES
        for way, (label, _) in WAYS.items()
    ]  # fmt: skip
    return table(["B", "draw", *(f"{ranks} ranks" for ranks in counts)], cells)

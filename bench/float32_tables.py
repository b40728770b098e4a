# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/guides/float32_logits.md, from cpu-float32-logits.json."""

from result_tables import load, stamp, table

ROLLOUTS = {"fused": "fused draw", "bfloat16": "bfloat16", "float16": "float16"}


def percent(share):
    return f"{100 * share:.2f}%" if share else "0"


def small(value):
    """A difference of log-probabilities, which spans many decades."""
    return f"{value:.4f}" if value >= 1e-3 else f"{value:.1e}"


def list_points():
    """(model, rollout, its title, its figures) of all models."""
    for point in load("cpu-float32-logits")["results"]:
        for name, title in ROLLOUTS.items():
            yield point, title, point[name]


def answer():
    """The last model's figures, a column a rollout."""
    point = load("cpu-float32-logits")["results"][-1]
    found = [point[name] for name in ROLLOUTS]
    rows = [
        ["greedy tokens changed", *(percent(each["greedy_changed"]) for each in found)],
        ["drawn tokens changed, T = 1, equal noise",
         *(percent(each["plain"]["drawn_changed"]) for each in found)],
        ["log-probability, trainer minus rollout: mean absolute value",
         *(small(each["plain"]["mean_abs"]) for each in found)],
        ["its largest absolute value", *(small(each["plain"]["max_abs"]) for each in found)],
        ["kept sets changed, T = 0.8, top_p = 0.95",
         *(percent(each["top_p"]["set_changed"]) for each in found)],
    ]
    return table([point["model"], *ROLLOUTS.values()], rows)


def tokens():
    rows = [
        [point["model"], title, percent(each["greedy_changed"]), percent(each["maximum_shared"]),
         percent(each["plain"]["drawn_changed"]), percent(each["top_p"]["drawn_changed"])]
        for point, title, each in list_points()
    ]
    return table(["model", "logits", "greedy tokens changed", "maximum shared by several tokens",
                  "drawn tokens changed, T = 1", "T = 0.8, top_p = 0.95"], rows)


def list_ratios(each):
    """Cells of the differences of a rollout and a trainer."""
    return [small(each["mean_abs"]), small(each["max_abs"]),
            f"{each['ratio_mean']:.5f} ± {small(each['ratio_deviation'])}",
            small(each["text_log_ratio_deviation"])]


RATIO_HEADS = ["mean difference", "largest", "ratio of a token",
               "deviation of a text's log-ratio"]


def ratios():
    rows = [[point["model"], title, *list_ratios(each["plain"])]
            for point, title, each in list_points()]
    return table(["model", "rollout's logits", *RATIO_HEADS], rows)


def truncated():
    rows = []
    for point, title, each in list_points():
        found = each["top_p"]
        rows.append([point["model"], title, percent(found["set_changed"]),
                     percent(found["outside_own_set"]), small(found["own_set_mean_abs"]),
                     small(found["mean_abs"]), small(found["max_abs"])])
    return table(["model", "rollout's logits", "kept sets changed",
                  "tokens outside the trainer's set", "mean difference, trainer's set",
                  "rollout's set", "largest, rollout's set"], rows)


def replay():
    rows = []
    for point in load("cpu-float32-logits")["results"]:
        for case, each in point.get("replay", {}).items():
            rows.append([point["model"], *case.split(", "), *list_ratios(each)])
    return table(["model", "rollout's logits", "trainer's logits", *RATIO_HEADS], rows)


def models():
    rows = [
        [point["model"], f"{point['vocab']}, {point['hidden']}", point["texts"],
         f"{point['rows']:,}", f"{point['top_probability']:.2f}", f"{point['top_logit']:.1f}"]
        for point in load("cpu-float32-logits")["results"]
    ]
    return table(["model", "V, D", "texts", "tokens", "mean of the largest probability",
                  "mean of the largest logit"], rows)


def source():
    results = load("cpu-float32-logits")
    return f"{stamp(results)}, {results['cpu']} ({results['isa']}), torch {results['torch']}.\n"

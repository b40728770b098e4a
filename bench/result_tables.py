# SPDX-License-Identifier: Apache-2.0
"""Reads the files of bench/results/, and formats tables of Markdown."""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"


def load(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def newest(question):
    """The latest results of a question on any GPU; None if it has not been measured."""
    path = max(RESULTS.glob(f"cuda-*-{question}.json"), default=None)
    return json.loads(path.read_text()) if path else None


def table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(str(cell) for cell in line) + " |\n" for line in lines)


def median(way):
    return way["median_us"]


def stamp(results, commits=None):
    """When and at which commit a file was measured."""
    commits = commits or [results["commit"]]
    return f"{results['date']}, commit{'s' * (len(commits) > 1)} {', '.join(commits)}"

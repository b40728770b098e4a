# SPDX-License-Identifier: Apache-2.0
"""The layout of files in bench/results/: one line for each field and for each measured point; and
the name of the CPU, which these files have."""

import json
import pathlib
import platform


def cpu_name():
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def holds_points(value):
    """True for a list of objects, and for an object that contains such a list at any depth."""
    if isinstance(value, dict):
        return any(holds_points(each) for each in value.values())
    return isinstance(value, list) and bool(value) and all(isinstance(e, dict) for e in value)


def to_text(value, indent=0, flat=json.dumps):
    """JSON of a report: fields of the report on lines of their own, each point on one line."""
    gap = "\n" + " " * (indent + 1)
    end = "\n" + " " * indent
    if isinstance(value, dict) and value and (indent == 0 or holds_points(value)):
        lines = (f"{flat(key)}: {to_text(each, indent + 1, flat)}" for key, each in value.items())
        return "{" + gap + ("," + gap).join(lines) + end + "}"
    if holds_points(value):
        return "[" + gap + ("," + gap).join(map(flat, value)) + end + "]"
    return flat(value)


def write(path, report):
    with open(path, "w", encoding="utf-8") as file:
        file.write(to_text(report) + "\n")

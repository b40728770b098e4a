# SPDX-License-Identifier: Apache-2.0
"""No module of the package imports itself through others, and its rooms import in one direction."""

import ast
from pathlib import Path

import gumbel

PACKAGE = Path(gumbel.__file__).parent
# Room: rooms that it must not import.
FORBIDDEN = {
    "_inputs": ("_calls", "_dist", "_explain", "_command"),
    "_calls": ("_dist", "_explain", "_command"),
    "_explain": ("_dist", "_command"),
}


def list_modules():
    """{dotted name: file}, and the set of names that are packages."""
    modules, packages = {}, set()
    for path in PACKAGE.rglob("*.py"):
        parts = ["gumbel", *path.relative_to(PACKAGE).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
            packages.add(".".join(parts))
        modules[".".join(parts)] = path
    return modules, packages


def read_imports(name, modules, packages):
    """Modules of the package that a module imports, within functions, too."""
    found = set()
    for node in ast.walk(ast.parse(modules[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = name.split(".")
            base = parts[: len(parts) - node.level + (name in packages)]
            base = ".".join([*base, node.module] if node.module else base)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in modules else base)
    return found & set(modules)


MODULES, PACKAGES = list_modules()
IMPORTS = {name: read_imports(name, MODULES, PACKAGES) for name in MODULES}


def find_cycle(name, path, done):
    if name in path:
        return [*path[path.index(name) :], name]
    if name not in done:
        for imported in sorted(IMPORTS[name]):
            cycle = find_cycle(imported, [*path, name], done)
            if cycle:
                return cycle
        done.add(name)
    return None


def test_no_cycles():
    done = set()
    cycles = [find_cycle(name, [], done) for name in sorted(MODULES)]
    assert [" -> ".join(cycle) for cycle in cycles if cycle] == []


def test_rooms_import_in_one_direction():
    wrong = [
        f"{name} imports {imported}"
        for name in MODULES
        for imported in IMPORTS[name]
        if imported.split(".")[1:2]
        and imported.split(".")[1] in FORBIDDEN.get((name.split(".")[1:2] or [""])[0], ())
    ]
    assert wrong == []


def test_imports_are_found():
    assert "gumbel._inputs.history" in IMPORTS["gumbel._inputs.parameters"]
    assert "gumbel._vllm.lazy" in IMPORTS["gumbel._vllm.vllm_hooks"]

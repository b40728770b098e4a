# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/guides run unchanged, and print the text of their pages."""

import ast
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "engines"))
from gumbel_command import find_command  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(page for page in (ROOT / "docs/guides").glob("*.md") if page.stem != "README")
CONTINUED = ("speculative_decoding",)  # pages whose blocks of Python are one program
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def program_of(page):
    """(language, program, its output or None): the first block of each kind."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    programs = [at for at, block in enumerate(blocks) if block[0] in ("c", "python")]
    if not programs:
        return None, None, None
    language, text = blocks[programs[0]]
    printed = [text_printed for kind, text_printed in blocks[programs[0] :] if kind == "text"]
    return language, text, printed[0] if printed else None


def modules_of(text):
    """Every module that a program in Python imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def skip_without(module):
    try:
        importlib.import_module(module)
    except ImportError as missing:
        pytest.skip(f"{module}: {missing}")


def run_program(command):
    """The output of a command at the root of the tree."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def compiled(text, folder):
    """A program in C, built as on its page; headers of other projects may be missing."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    (folder / "program.c").write_text(text)
    found = subprocess.run(
        [sys.executable, "-m", "gumbel", "--cflags", "--libs"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    flags = found.stdout.split()
    command = ["cc", "-std=c17", "-Wall", "-Wextra", "-Werror", "program.c", "-o", "program"]
    for header in re.findall(r"^#include [<\"]([^>\"]+)[>\"]", text, re.M):
        (folder / "one.c").write_text(f"#include <{header}>\n")
        tried = subprocess.run(["cc", "-E", "one.c", *flags], cwd=folder, capture_output=True)
        if tried.returncode:
            pytest.skip(f"no header {header} (CPATH and LIBRARY_PATH say where others lie)")
    done = subprocess.run([*command, *flags], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [str(folder / "program")]


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_guide_shows_what_its_program_prints(page, tmp_path):
    language, text, printed = program_of(page)
    if printed is None:
        pytest.skip(f"{page.name} has no program that runs here")
    if language == "python":
        for module in modules_of(text):
            skip_without(module)
        (tmp_path / "program.py").write_text(text)
        command = [sys.executable, str(tmp_path / "program.py")]
    else:
        command = compiled(text, tmp_path)
    assert run_program(command) == printed, f"{page.name} shows another text"


@pytest.mark.parametrize("name", CONTINUED)
def test_further_blocks_continue_the_program(name, tmp_path):
    blocks = BLOCK.findall((ROOT / f"docs/guides/{name}.md").read_text(encoding="utf-8"))
    programs, printed = (
        [text for kind, text in blocks if kind == wanted] for wanted in ("python", "text")
    )
    assert len(programs) == len(printed) > 1
    (tmp_path / "program.py").write_text("\n\n".join(programs))
    assert run_program([sys.executable, str(tmp_path / "program.py")]) == "".join(printed)


# Row j of the hidden states has the largest logit at expected[j]; the drafts are 3, 5 and 7.
VERIFY_MAIN = """
int main(void)
{
    enum { V = 8, M = 4 };
    static float hidden[M][V], weight[V][V];
    static _Alignas(64) char workspace[1 << 20];
    const int32_t expected[M] = {3, 5, 1, 2}, nodes[M] = {0, 3, 5, 7};
    const float greedy = 0;
    int32_t tokens[M];
    gumbel_device *device;
    gumbel_error error;
    for (int i = 0; i < V; i++)
        weight[i][i] = 1;
    for (int j = 0; j < M; j++)
        hidden[j][expected[j]] = 1;
    gumbel_head head = {sizeof head, .hidden = {hidden, GUMBEL_FLOAT32, M, V, 0, {0, 0}},
                        .weight = {weight, GUMBEL_FLOAT32, V, V, 0, {0, 0}}};
    gumbel_sampling sampling = {sizeof sampling, .temperature = {&greedy, GUMBEL_SAME}};
    if (gumbel_open(NULL, &device, &error) != GUMBEL_OK)
        return 1;
    printf("%d:", verify_chain(device, &head, &sampling, nodes, M, tokens, workspace,
                               sizeof workspace, &error));
    for (int i = 0; i < M; i++)
        printf(" %d", (int)tokens[i]);
    puts("");
    gumbel_close(device);
}
"""


def test_the_function_in_c_verifies_a_chain(tmp_path):
    """The function of the page in a greedy program: two of three drafts are accepted."""
    page = (ROOT / "docs/guides/speculative_decoding.md").read_text(encoding="utf-8")
    (function,) = (text for kind, text in BLOCK.findall(page) if kind == "c")
    (program,) = compiled(f"#include <stdio.h>\n{function}{VERIFY_MAIN}", tmp_path)
    assert run_program([program]) == "3: 3 5 1 -1\n"


def test_the_command_writes_the_text_of_transformers():
    """The command shown on the page writes the text of the page."""
    command = find_command()
    page = (ROOT / "docs/guides/transformers.md").read_text(encoding="utf-8")
    shown = shlex.split(re.search(r"`(gumbel generate [^`]*)`", page)[1])
    shown[shown.index("FOLDER")] = str(ROOT / "tests/models/kjv-target")
    options = ["--echo", "--max-tokens", re.search(r'"max_new_tokens": (\d+)', page)[1]]
    done = subprocess.run(
        [command, *shown[1:], *options], check=True, capture_output=True, text=True, timeout=120
    )
    printed = program_of(ROOT / "docs/guides/transformers.md")[2]
    assert done.stdout.splitlines()[0] == printed.splitlines()[0]


def test_every_guide_is_in_the_index():
    """Each page has its line in the index, with a program that this test finds."""
    index = (ROOT / "docs/guides/README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[[^\]]+\]\(([\w.]+\.md)\)", index, re.M)) == [
        page.name for page in PAGES
    ]
    for page in PAGES:
        assert program_of(page)[2], page.name


def test_engines_print_one_text():
    """The guides of engines show the text of one seed and prompt."""
    pages = [ROOT / f"docs/guides/{name}.md" for name in ("transformers", "vllm", "llama.cpp")]
    assert len({program_of(page)[2].splitlines()[0] for page in pages}) == 1

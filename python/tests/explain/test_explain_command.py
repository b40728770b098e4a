# SPDX-License-Identifier: Apache-2.0
"""The command `gumbel explain LOGITS.npy`, and its errors."""

import json
import os
import stat
import subprocess
import sys

import gumbel
import numpy as np
import pytest
from gumbel._command.explain_draw import load_vocabulary, write_file

RANDOM = np.random.default_rng(3)
LOGITS = (RANDOM.normal(size=(3, 50)) * 3).astype(np.float32)


def run_command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "gumbel", "explain", *map(str, arguments)],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def run_succeeding(*arguments, **environment):
    done = run_command(*arguments, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(name="file")
def make_file(tmp_path):
    np.save(tmp_path / "logits.npy", LOGITS)
    return tmp_path / "logits.npy"


def test_the_table_is_that_of_the_function(file):
    text = run_succeeding(file, "--seed", 7, "--top-k", 5, "--temperature", 0.5)
    assert text == f"{gumbel.explain_draw(LOGITS, seed=7, top_k=5, temperature=0.5)}\n"
    np.save(file, LOGITS[1])
    found = gumbel.explain_draw(LOGITS[1], seed=7)
    assert run_succeeding(file, "--seed", 7) == f"{found}\n"


def test_all_options_reach_the_draw(file, tmp_path):
    rules = {
        "temperature": 0.8, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.97,
        "top_n_sigma": 3.0, "epsilon": 1e-5, "eta": 1e-5, "top_a": 0.01, "xtc_probability": 0.5,
        "xtc_threshold": 0.2, "order": "top_n_sigma,top_k,typical_p,top_p,min_p,epsilon,eta,top_a,"
        "temperature,xtc", "seed": 2**64 - 1,
    }  # fmt: skip
    options = [f"--{name.replace('_', '-')}={value}" for name, value in rules.items()]
    texts = [f"t{token}" for token in range(49)] + [None]
    (tmp_path / "words.json").write_text(json.dumps(texts))
    options += ["--row=2", "--position=40", f"--vocabulary={tmp_path / 'words.json'}", "--json"]
    expected = gumbel.explain_draw(LOGITS[2:], vocabulary=texts, position=42, **rules)
    assert json.loads(run_succeeding(file, *options)) == expected.to_dict()


@pytest.mark.parametrize(
    ("samplers", "order"),
    [
        ("top_k;top_p;min_p;temperature", "top_k,top_p,min_p,temperature"),
        ("penalties;dry;typ;top-k;min-p;temp", "typical_p,top_k,min_p,temperature"),
        ("temp;top-n-sigma;top-k;typical-p;xtc", "temperature,top_n_sigma,top_k,typical_p,xtc"),
    ],
)
def test_samplers_are_an_order_in_words_of_llama_cpp(file, samplers, order):
    rules = {"top_k": 9, "temperature": 0.5}
    options = ["--top-k=9", "--temperature=0.5", "--seed=7", "--json", f"--samplers={samplers}"]
    expected = gumbel.explain_draw(LOGITS, order=order, seed=7, **rules).to_dict()
    assert json.loads(run_succeeding(file, *options)) == expected
    other = ",".join(reversed(order.split(",")))
    if "xtc" not in order:  # XTC must be last: the order matters to the result
        assert gumbel.explain_draw(LOGITS, order=other, seed=7, **rules).to_dict() != expected


def test_order_and_samplers_exclude_each_other(file):
    done = run_command(file, "--order=hf", "--samplers=temp")
    assert done.returncode == 2 and "--samplers: not allowed with argument --order" in done.stderr


def test_a_page_replaces_the_old_file(file, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("old")
    text = run_succeeding(file, "--seed", 7, "--html", page)
    assert text == f"{page}: 3 steps\n"
    assert page.read_text(encoding="utf-8") == gumbel.explain_draw(LOGITS, seed=7).to_html()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["logits.npy", "page.html"]
    assert stat.S_IMODE(page.stat().st_mode) == 0o666 & ~_read_umask()


def _read_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_links_modes_and_pipes_are_kept(tmp_path):
    page, link, pipe = (tmp_path / name for name in ("page.html", "link.html", "pipe"))
    page.write_text("old")
    page.chmod(0o600)
    link.symlink_to(page.name)
    write_file(str(link), "new")
    assert link.is_symlink() and page.read_text() == "new"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(str(pipe), "page")
        assert stat.S_ISFIFO(pipe.stat().st_mode) and os.read(reader, 99) == b"page"
    finally:
        os.close(reader)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ValueError, match="--html: cannot write .*No space left"):
        write_file(str(page), "new")
    assert page.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_an_output_without_unicode(file, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("é\n" * 50, encoding="utf-8")
    options = ("--seed", 1, "--vocabulary", words)
    assert '"\\xe9"' in run_succeeding(file, *options, PYTHONIOENCODING="ascii")


def test_vocabularies(tmp_path):
    path = tmp_path / "words"
    for text, expected in (
        ("a\r\n b\nc", ["a", " b", "c"]),
        ("a\n\nc\n", ["a", "", "c"]),
        ("a\n\u2028\nc\n", ["a", "\u2028", "c"]),
        ('["\\n", "\\ud800", null]', ["\n", "\ud800", None]),
    ):
        path.write_bytes(text.encode())
        assert load_vocabulary(str(path), 3) == expected


def save(path, kind):
    values = {
        "float64": np.zeros((1, 5)), "int": np.zeros((1, 5), np.int64),
        "empty": np.zeros((0, 5), np.float32), "3-D": np.zeros((1, 1, 5), np.float32),
        "scalar": np.float32(1), "objects": np.array([[1, "a"]], object),
        "columns": np.asfortranarray(LOGITS),
    }  # fmt: skip
    if kind == "text":
        path.write_text("0.5 0.5")
    elif kind == "short":
        np.save(path, LOGITS)
        path.write_bytes(path.read_bytes()[:-8])
    elif kind == "archive":
        with path.open("wb") as file:
            np.savez(file, LOGITS)
    elif kind != "missing":
        np.save(path, values[kind], allow_pickle=True)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "No such file"),
        ("text", "not a .npy file; write it by numpy.save()"),
        ("archive", "not a .npy file"),
        ("short", "cannot read"),
        ("objects", "pickled Python objects, which are not loaded"),
        ("float64", "has dtype float64; save logits.astype(numpy.float32)"),
        ("int", "has dtype int64"),
        ("empty", "has the shape [0, 5]; expected [V] or [T, V], not empty"),
        ("3-D", "has the shape [1, 1, 5]"),
        ("scalar", "has the shape []"),
        ("columns", "contiguous"),
    ],
)
def test_files_that_are_no_logits(tmp_path, kind, message):
    save(tmp_path / "x.npy", kind)
    done = run_command(tmp_path / "x.npy")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gumbel explain: LOGITS.npy: ") and message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--row=3"], "--row: 3 is not in 0 to 2, the rows of the file"),
        (["--row=-1"], "--row: -1 is not in 0 to 2"),
        (["--position=-1"], "--position: -1 is not in 0 to"),
        (["--seed=-1"], "--seed: -1 is not in"),
        (["--top-p=1.5"], "--top-p: is 1.5"),
        (["--temperature=nan"], "--temperature: "),
        (["--order=mirostat"], "--order: 'mirostat' is none of"),
        (["--typical-p=0.5"], "--typical-p: the order 'min_p,top_k,top_p' does not list"),
        (["--samplers=top_k;mirostat"], "--samplers: 'mirostat' is none of penalties, dry, "),
        (["--samplers="], "--samplers: '' is none of"),
        (["--samplers=temp;"], "--samplers: '' is none of"),
        (["--samplers=top_k"], "--samplers: lists no temperature; name the place"),
        (["--samplers=temp;dry"], "--samplers: lists dry after other words; penalties, then dry"),
        (["--samplers=temp;top-k;top_k"], "--samplers: lists 'top_k' twice"),
        (["--samplers=temp;xtc;top_k"], "--samplers: lists 'top_k' after 'xtc'"),
        (
            ["--samplers=top_k;temp", "--typical-p=0.5"],
            "--typical-p: the order 'top_k,temperature' does not list 'typical_p'; name the place "
            "of the rule, as in --samplers 'top_k;temperature;typical_p'",
        ),
        (["--batch=2"], "--batch: cannot be combined with LOGITS.npy"),
        (["--vocabulary=missing.txt"], "--vocabulary: cannot read missing.txt: No such file"),
        (["--html=missing/page.html"], "--html: cannot write missing/page.html: No such file"),
        (["--html=/"], "--html: cannot write /: "),
        (["--html="], "--html: expected the name of a file"),
    ],
)
def test_errors_name_the_option(file, options, message):
    done = run_command(file, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"gumbel explain: {message}"), done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\n", "has 2 tokens, but the logits have 50; write one for each token id"),
        (b"[1, 2", "begins with [ and is not a JSON list"),
        (b'["a", 2]', "entry 1 of .* is int; expected a string"),
        (b"\xff\n" * 50, "is not UTF-8"),
    ],
)
def test_vocabularies_that_do_not_fit(file, tmp_path, content, message):
    (tmp_path / "words").write_bytes(content)
    done = run_command(file, "--vocabulary", tmp_path / "words")
    assert done.returncode == 2 and done.stderr.startswith("gumbel explain: --vocabulary: ")
    with pytest.raises(ValueError, match=message.replace("[", r"\[")):
        load_vocabulary(str(tmp_path / "words"), 50)


@pytest.mark.parametrize(
    "option", ["--seed=1", "--json", "--html=x", "--order=hf", "--samplers=temp", "--row=0"]
)
def test_options_that_require_a_file(option):
    done = run_command(option)
    assert done.returncode == 2 and "requires a file: gumbel explain LOGITS.npy" in done.stderr

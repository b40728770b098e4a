# SPDX-License-Identifier: Apache-2.0
"""The page: balanced HTML that loads nothing, escapes every text and fits a narrow window."""

import html.parser
import json
import re
import shutil
import subprocess

import gumbel
import numpy as np
import pytest

HOSTILE = [
    "<script>alert(1)</script>", "</code></section>", '" onload="alert(1)', "'", "&amp;", "a\nb",
    "\x00\x07\x1b[31m", "\ud800", "\u202egnirts", "\u200b", "", " ", "\\n", "<!--", "]]>",
    "W" * 5000, "日本語の長いトークンです", "e\u0301" * 50, "{color:red}", "\u2028",
]  # fmt: skip
VOCAB = 60
RANDOM = np.random.default_rng(9)
RULES = {
    "order": "llama.cpp", "top_k": 30, "typical_p": 0.95, "min_p": 0.01, "temperature": 0.9,
    "xtc_probability": 0.5, "xtc_threshold": 0.05, "banned": [4],
}  # fmt: skip
VOID = ("meta", "br", "link", "img", "input")


def make_draws():
    """Steps of every kind, whose winners have hostile texts."""
    logits = (RANDOM.normal(size=(len(HOSTILE) + 3, VOCAB)) * 2).astype(np.float32)
    for row in range(len(HOSTILE)):
        logits[row, row] = 18
    logits[-3], logits[-2], logits[-1, 1:] = np.nan, -np.inf, -np.inf
    texts = [*HOSTILE, *[f" word{token}" for token in range(len(HOSTILE), VOCAB - 1)], None]
    temperature = [0.9] * len(logits)
    temperature[2] = 0
    return gumbel.explain_draw(
        logits, vocabulary=texts, seed=5, **{**RULES, "temperature": temperature}
    )


DRAWS = make_draws()
PAGE = DRAWS.to_html()


class Reader(html.parser.HTMLParser):
    """Checks that elements are balanced, and collects them."""

    def __init__(self):
        super().__init__()
        self.open, self.elements, self.text = [], [], ""

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["script"], ["style"]):
            self.text += data


def read_page(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_is_balanced_and_loads_nothing():
    reader = read_page(PAGE)
    assert not re.search(r"https?:|@import|url\((?!#)|//\w", PAGE)
    known = {"html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "h3", "p"}
    known |= {"nav", "a", "code", "div", "section", "ol", "li", "span", "small", "svg", "defs", "i"}
    known |= {"marker", "path", "line", "text", "tspan", "rect", "g", "details", "summary"}
    known |= {"table", "tr", "th", "td", "script"}
    assert {tag for tag, _ in reader.elements} <= known
    for _, attributes in reader.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "src"]
        assert attributes.get("href", "#").startswith("#")
    assert [tag for tag, _ in reader.elements].count("script") == 1


def test_texts_of_the_vocabulary_are_escaped():
    text = read_page(PAGE).text
    for shown in ("<script>alert(1)</script>", "</code></section>", '" onload="alert(1)', "&amp;",
                  '"\\" onload=\\"alert(1)"'):  # fmt: skip
        assert shown in text
    for shown in ("a\\nb", "\\x00\\x07\\x1b[31m", "\\ud800", "\\u202egnirts", "\\u200b", "\\\\n"):
        assert shown in text
    assert all(each.isprintable() or each == "\n" for each in PAGE)
    assert "W" * 50 not in PAGE
    PAGE.encode("utf-8")


def test_all_steps_are_visible_without_a_script():
    reader = read_page(PAGE)
    sections = [each for tag, each in reader.elements if tag == "section"]
    assert [each["id"] for each in sections] == [f"step-{row}" for row in range(len(DRAWS.steps))]
    assert not any("hidden" in each for each in sections)
    links = [each["href"] for tag, each in reader.elements if tag == "a"]
    assert links == [f"#{each['id']}" for each in sections]
    assert "no token: " in reader.text and "Greedy (temperature 0)" in reader.text


def test_tables_and_json_of_hostile_texts():
    text = str(DRAWS)
    assert all(each.isprintable() or each == "\n" for each in text)
    json.dumps(DRAWS.to_dict(), allow_nan=False).encode()


def test_two_hundred_steps_stay_below_three_megabytes():
    logits = (RANDOM.normal(size=(200, 2000)) * 2).astype(np.float32)
    texts = [f" token {token}" for token in range(2000)]
    found = gumbel.explain_draw(logits, vocabulary=texts, seed=1, **RULES)
    assert len(found.to_html().encode()) < 3e6


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
MEASURE = """<script>
var root = document.documentElement, found = [innerWidth, root.scrollWidth];
document.querySelectorAll("details").forEach(function (each) { each.open = true; });
parent.document.title = found.concat(root.scrollWidth).join();
</script></body>"""
# Chromium's own windows have at least 500 columns.
FRAME = """<!doctype html><title>none</title><body style="margin:0">
<iframe style="border:0;width:{}px;height:{}px" srcdoc="{}"></iframe>"""


def open_page(path, width, height, *options, fragment=""):
    """The standard output of Chromium with this page."""
    if BROWSER is None:
        pytest.skip("no Chromium")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={path.parent / 'profile'}", f"--window-size={width},{height}", *options,
        path.as_uri() + fragment,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.decode()


@pytest.mark.parametrize(("width", "height"), [(360, 800), (1200, 900)])
@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_no_window_scrolls_sideways(tmp_path, width, height, script):
    page = re.sub(r"<meta http-equiv=[^>]*>", "", PAGE)
    if not script:
        page = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    page = html.escape(page.replace("</body>", MEASURE), quote=True)
    frame, picture = tmp_path / "frame.html", tmp_path / "page.png"
    frame.write_text(FRAME.format(width, height, page), encoding="utf-8")
    document = open_page(frame, width, height, "--dump-dom")
    widths = re.search(r"<title>(\d+),(\d+),(\d+)</title>", document).groups()
    assert list(map(int, widths)) == [width] * 3
    open_page(frame, width, height, f"--screenshot={picture}")
    assert picture.stat().st_size > 5000


def test_the_script_shows_one_step(tmp_path):
    """The policy of the page allows its own script."""
    (tmp_path / "page.html").write_text(PAGE, encoding="utf-8")
    document = open_page(tmp_path / "page.html", 360, 800, "--dump-dom")
    hidden = re.findall(r'<section id="step-(\d+)" hidden', document)
    assert hidden == [str(row) for row in range(1, len(DRAWS.steps))]
    assert document.count('aria-current="step"') == 1 and "step 1 of" in document
    document = open_page(tmp_path / "page.html", 360, 800, "--dump-dom", fragment="#step-2")
    hidden = re.findall(r'<section id="step-(\d+)" hidden', document)
    assert "2" not in hidden and len(hidden) == len(DRAWS.steps) - 1 and "step 3 of" in document

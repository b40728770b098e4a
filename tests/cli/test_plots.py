# SPDX-License-Identifier: Apache-2.0
"""The plots in docs/plots/ and the tables in documents show the results in bench/results/, whose
files have one line per point. Matplotlib is not required."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import result_lines  # noqa: E402


def copy_tree(test, *paths):
    """A temporary folder with copies of these folders and files; removed after the test."""
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    root = pathlib.Path(folder.name)
    for path in paths:
        copy = shutil.copytree if (ROOT / path).is_dir() else shutil.copy
        copy(ROOT / path, root / path)
    return root


def check_plots(root):
    """(exit code, lines of faults) of bench/plot.py --check in a tree."""
    done = subprocess.run([sys.executable, root / "bench" / "plot.py", "--check"],
                          capture_output=True, text=True)
    return done.returncode, done.stderr.splitlines()[:-1]


class Tables(unittest.TestCase):
    def test_pages_have_the_results(self):
        done = subprocess.run([sys.executable, ROOT / "bench" / "tables.py", "--check"],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_tables_appear_with_their_result_files(self):
        root = copy_tree(self, "bench", "docs", "findings", "src/cuda/plan", "README.md")
        for old in root.glob("bench/results/cuda-*-transformers.json"):
            old.unlink()
        page = root / "docs" / "performance" / "engines.md"
        tables = [sys.executable, root / "bench" / "tables.py"]
        subprocess.run(tables, check=True)
        self.assertNotIn("| Qwen3-1.7B |", page.read_text())
        self.assertNotIn("transformers", self.read_headlines(root))
        point = {"model": "Qwen3-1.7B", "batch": 64, "request": "plain", "way": "generate",
                 "stock": {"median_us": 8000}, "fused": {"median_us": 6000},
                 "fused_vs_stock": 0.75}
        results = {"commit": "c", "date": "2026-11-26", "gpu": "g",
                   "versions": {"torch": "2", "transformers": "5"},
                   "request_parameters": {
                       "top_k, top_p": {"temperature": 1, "top_k": 2, "top_p": 1}},
                   "skipped": [], "transformers": [point]}
        file = root / "bench" / "results" / "cuda-g-transformers.json"
        file.write_text(json.dumps(results))
        self.assertEqual(subprocess.run([*tables, "--check"], capture_output=True).returncode, 1)
        subprocess.run(tables, check=True)
        self.assertRegex(page.read_text(),
                         r"\| Qwen3-1.7B \| plain \| 64 \| 8.00 \|  \| 6.00 \| -25.0% \|")
        subprocess.run([*tables, "--check"], check=True)

    @staticmethod
    def read_headlines(root):
        return (root / "README.md").read_text().partition("<!-- table headline -->")[2]

    def test_tables_of_vllm(self):
        root = copy_tree(self, "bench", "docs", "findings", "src/cuda/plan", "README.md")
        for old in root.glob("bench/results/cuda-*-vllm.json"):
            old.unlink()
        place = {"model": "Qwen3-8B", "dtype": "bfloat16", "tensor_parallel": 2, "runner": "V2",
                 "request": "top_k_top_p", "requests": 8, "commit": "c"}
        pair = {"stock": {"median_us": 5000}, "plugin": {"median_us": 4800}}
        host = {f"{name}_head_and_sample": {"median_us": us}
                for name, us in (("stock", 200), ("plugin", 150))}
        kernels = {"stock_us": 490.2, "plugin_us": 177.1, "plugin_vs_stock": 0.3613}
        memory = {"engine": "plugin", "steps": 10000, "written": 600,
                  "growth_bytes": {"device": 2 << 20, "reserved": 0, "allocated": 0, "host": 1}}
        results = {"date": "2026-11-27", "gpu": "g", "prompt": 16,
                   "versions": {"torch": "2", "vllm": "0.32.0"}, "skipped": [{}], "texts": [],
                   "vllm": [{**place, **pair}, {**place, "requests": 1, "plugin": pair["plugin"]}],
                   "host": [{**place, **host}], "kernels": [{**place, **kernels}],
                   "memory": [{**place, **memory}]}
        file = root / "bench" / "results" / "cuda-g-vllm.json"
        file.write_text(json.dumps(results))
        subprocess.run([sys.executable, root / "bench" / "tables.py"], check=True)
        text = (root / "docs" / "performance" / "vllm_on_gpu.md").read_text()
        model = "| Qwen3-8B, TP 2 | V2 |"
        for line in ("2026-11-27, commit c, g, vLLM 0.32.0", "Missing measurements: 1;",
                     f"{model} top_k, top_p | - / 4.80 | 5.00 / 4.80 (0.960) |",
                     f"{model} top_k, top_p | 200 / 150 (0.750) |",
                     f"{model} top_k, top_p | 8 | 490 | 177 | 0.361 |",
                     f"{model} plugin | 10000 | 600 | +2.0 | +0.0 | +0.0 |"):
            self.assertIn(line, text)

    def test_screen_formats(self):
        root = copy_tree(self, "bench", "docs", "findings", "src/cuda/plan", "README.md")
        for old in [*root.glob("bench/results/cuda-*-screen-formats.json"),
                    *root.glob("docs/plots/cuda-*-screen-formats.svg")]:
            old.unlink()
        tables = [sys.executable, root / "bench" / "tables.py"]
        page = root / "docs" / "performance" / "cuda.md"
        subprocess.run(tables, check=True)
        self.assertNotIn("| cuBLAS | full pass (/ cuBLAS) |", page.read_text())
        self.assertEqual(check_plots(root), (0, []))
        row = {"d": 4096, "b": 8, "head": "Gaussian", "rules": "none", "gemm": [390, 400, 410],
               "full": [370, 380, 390], "bytes": [210, 220, 230], "nibbles": [130, 140, 150]}
        others = [{**row, "rules": "k 50"}, {**row, "head": "structured"}, {**row, "d": 2048}]
        results = {"date": "2026-11-28", "commit": "c", "gpu": "g", "vocab": 151936,
                   "rows": [*others, row]}
        file = root / "bench" / "results" / "cuda-g-screen-formats.json"
        file.write_text(json.dumps(results))
        self.assertEqual(check_plots(root), (1, ["cuda-g-screen-formats.svg: missing"]))
        subprocess.run(tables, check=True)
        lines = [line for line in page.read_text().splitlines()
                 if re.match(r"\| \d+ \| \d+ \| \d+ \| \d+ \(", line)]
        self.assertEqual(lines, ["| 4096 | 8 | 400 | 380 (0.95) | 220 (0.55) | 140 (0.35) |"])

    def test_edited_tables_are_detected(self):
        root = copy_tree(self, "bench", "docs", "findings", "src/cuda/plan")
        text = (ROOT / "README.md").read_text()
        self.assertIn("5.5 times as fast", text)
        (root / "README.md").write_text(text.replace("5.5 times as fast", "9.5 times as fast"))
        done = subprocess.run([sys.executable, root / "bench" / "tables.py", "--check"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("README.md: its tables are not those", done.stderr)


class Readme(unittest.TestCase):
    """The README is within its limits, and its links have targets."""

    def test_size(self):
        text = (ROOT / "README.md").read_text()
        self.assertLessEqual(len(text.splitlines()), 200)
        self.assertLessEqual(len(text.split()), 1500)

    def test_links(self):
        pages = [ROOT / "README.md", ROOT / "python" / "README.md",
                 *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "performance").glob("*.md")]
        for page in pages:
            for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
                if not link.startswith(("http:", "https:")):
                    target, _, anchor = link.partition("#")
                    path = page.parent / target if target else page
                    self.assertTrue(path.exists(), f"{page}: {link}")
                    if anchor and path.suffix == ".md":
                        self.assertIn(anchor, self.list_anchors(path), f"{page}: {link}")

    @staticmethod
    def list_anchors(page):
        """The anchors that GitHub gives the headings of a page."""
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
        return [re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings]


class Plots(unittest.TestCase):
    def setUp(self):
        self.root = copy_tree(self, "bench", "docs")

    def test_tracked_plots_are_current(self):
        self.assertEqual(check_plots(ROOT), (0, []))
        self.assertEqual(check_plots(self.root), (0, []))

    def test_faults_are_reported(self):
        plots, results = self.root / "docs" / "plots", self.root / "bench" / "results"
        file = results / "cuda-h200.json"
        file.write_text(file.read_text().replace('"median_us": 2', '"median_us": 3', 1))
        (plots / "overview.svg").unlink()
        (plots / "without-results.svg").write_text("<svg/>")
        (results / "another-question.json").write_text('{"question": "none of a product"}')
        code, faults = check_plots(self.root)
        self.assertEqual(code, 1)
        names = [fault.partition(":")[0] for fault in faults]
        self.assertEqual(sorted(names), ["cuda-h200-time.svg", "overview.svg",
                                         "without-results.svg"])

    def test_layout_does_not_change_a_plot(self):
        file = self.root / "bench" / "results" / "cuda-h200.json"
        file.write_text(json.dumps(json.loads(file.read_text()), indent=2))
        self.assertEqual(check_plots(self.root), (0, []))


class Results(unittest.TestCase):
    def test_one_line_a_point(self):
        for file in sorted((ROOT / "bench" / "results").glob("*.json")):
            report = json.loads(file.read_text())
            lines = len(result_lines.to_text(report).splitlines())
            self.assertLessEqual(len(file.read_text().splitlines()), lines, file.name)

    def test_layout(self):
        point = {"batch": 1, "us": {"median": 2.5, "each": [2, 3]}}
        report = {"commit": "c", "load": [1.5, 2], "none": [], "results": [point, point],
                  "rules": {"coupled": [point], "sizes": {"D": 64}}}
        text = result_lines.to_text(report)
        self.assertEqual(json.loads(text), report)
        self.assertEqual(text.splitlines(), [
            "{", ' "commit": "c",', ' "load": [1.5, 2],', ' "none": [],', ' "results": [',
            '  {"batch": 1, "us": {"median": 2.5, "each": [2, 3]}},',
            '  {"batch": 1, "us": {"median": 2.5, "each": [2, 3]}}', " ],", ' "rules": {',
            '  "coupled": [', '   {"batch": 1, "us": {"median": 2.5, "each": [2, 3]}}', "  ],",
            '  "sizes": {"D": 64}', " }", "}"])


if __name__ == "__main__":
    unittest.main()

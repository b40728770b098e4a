# SPDX-License-Identifier: Apache-2.0
"""The plots in docs/plots/ and the tables in README.md are of the results in bench/results/;
checking needs no matplotlib."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def check(root):
    """(exit code, lines of faults) of bench/plot.py --check in a tree."""
    done = subprocess.run([sys.executable, root / "bench" / "plot.py", "--check"],
                          capture_output=True, text=True)
    return done.returncode, done.stderr.splitlines()[:-1]


class Tables(unittest.TestCase):
    def test_readme_has_the_results(self):
        done = subprocess.run([sys.executable, ROOT / "bench" / "tables.py", "--check"],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_what_is_not_measured_yet_comes_with_its_file(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        for part in ("bench/results", "docs", "findings", "src/cuda/plan"):
            shutil.copytree(ROOT / part, root / part)
        for file in ("bench/tables.py", "README.md"):
            shutil.copy(ROOT / file, root / file)
        for old in root.glob("bench/results/cuda-*-transformers.json"):
            old.unlink()
        tables = [sys.executable, root / "bench" / "tables.py"]
        subprocess.run(tables, check=True)
        self.assertNotIn("| Qwen3-1.7B |", (root / "README.md").read_text())
        point = {"model": "Qwen3-1.7B", "batch": 64, "asked": "plain", "way": "generate",
                 "stock": {"median_us": 8000}, "fused": {"median_us": 6000},
                 "fused_vs_stock": 0.75}
        results = {"commit": "c", "gpu": "g", "versions": {"torch": "2", "transformers": "5"},
                   "asked": {"top_k, top_p": {"temperature": 1, "top_k": 2, "top_p": 1}},
                   "skipped": [], "transformers": [point]}
        file = root / "bench" / "results" / "cuda-g-transformers.json"
        file.write_text(json.dumps(results))
        self.assertEqual(subprocess.run([*tables, "--check"], capture_output=True).returncode, 1)
        subprocess.run(tables, check=True)
        self.assertRegex((root / "README.md").read_text(),
                         r"\| Qwen3-1.7B \| plain \| 64 \|.*\| 8.00 \|  \| 6.00 \| -25.0% \|")
        subprocess.run([*tables, "--check"], check=True)


class Plots(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        shutil.copytree(ROOT / "bench" / "results", self.root / "bench" / "results")
        shutil.copy(ROOT / "bench" / "plot.py", self.root / "bench")
        shutil.copytree(ROOT / "docs", self.root / "docs")

    def test_as_committed(self):
        self.assertEqual(check(ROOT), (0, []))
        self.assertEqual(check(self.root), (0, []))

    def test_faults_are_told(self):
        plots, results = self.root / "docs" / "plots", self.root / "bench" / "results"
        file = results / "cuda-h200.json"
        file.write_text(file.read_text().replace('"median_us": 2', '"median_us": 3', 1))
        (plots / "cpu-bf16-time.svg").unlink()
        (plots / "left-over.svg").write_text("<svg/>")
        (results / "another-question.json").write_text('{"question": "none of a product"}')
        code, faults = check(self.root)
        self.assertEqual(code, 1)
        told = [fault.partition(":")[0] for fault in faults]
        self.assertEqual(sorted(told), ["cpu-bf16-time.svg", "cuda-h200-bandwidth.svg",
                                        "cuda-h200-roofline.svg", "cuda-h200-time.svg",
                                        "left-over.svg"])


if __name__ == "__main__":
    unittest.main()

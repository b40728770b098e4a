# SPDX-License-Identifier: Apache-2.0
"""The manual page gumbel(3) names every public function, and its example compiles and runs.

usage: test_manual_page.py [COMPILER ARGUMENT...]

The arguments follow the example's file on the compiler's command line: flags and the library.
Without a compiler the example is not built.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "man" / "gumbel.3.in").read_text(encoding="utf-8")
COMPILER, sys.argv[1:] = sys.argv[1:], []


def named(section):
    """Functions that a section of the page names in bold."""
    text = re.search(rf"^\.SH {section}\n(.*?)(?=^\.SH)", PAGE, re.M | re.S)[1]
    lines = re.findall(r"^\.BR (gumbel_.*)$", text, re.M)
    return [name for line in lines for name in re.findall(r"gumbel_\w+", line)]


class ManualPage(unittest.TestCase):
    def test_functions(self):
        names = named("FUNCTIONS")
        self.assertEqual(len(names), len(set(names)), "a function has two entries")
        symbols = (ROOT / "tests" / "interface" / "symbols.txt").read_text().split()
        self.assertEqual(set(symbols) - set(names), set())
        headers = "".join(path.read_text() for path in (ROOT / "include" / "gumbel").glob("*.h"))
        for name in names:
            self.assertIn(f"{name}(", headers)
        calls = re.findall(r"^GUMBEL_(?:CALL|API)\b[^;(]*?\b(gumbel_\w+)\(", headers, re.M)
        self.assertEqual(set(calls) - set(names), set())

    @unittest.skipUnless(COMPILER, "no compiler is given")
    def test_example(self):
        code = re.search(r'^\.\\" example\n(.*?)^\.\\" end$', PAGE, re.M | re.S)[1]
        code = code.replace("\\en", "\\n").replace("\\-", "-")
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder, "example.c"), pathlib.Path(folder, "example")
            source.write_text(code)
            compiler, *arguments = COMPILER
            subprocess.run([compiler, "-std=c17", "-Wall", "-Wextra", "-Werror", "-o", program,
                            source, *arguments], check=True)
            done = subprocess.run([program], check=True, capture_output=True, text=True)
        self.assertRegex(done.stdout, r"^(\d+ \d+\n){3}$")
        self.assertEqual(len(set(done.stdout.split())), 6)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""The command at a terminal: suggestions, examples, completion, progress, prompts."""

import os
import pty
import re
import select
import shutil
import subprocess
import tempfile
import time
import unittest

from cli_case import COMMANDS, GUMBEL, MODELS, Case

MODEL = os.path.join(MODELS, "kjv-target")
SHELLS = ("bash", "zsh", "fish")


class Suggestions(Case):
    def test_commands(self):
        for wrong, right in (("genrate", "generate"), ("sampel", "sample"), ("verfy", "verify"),
                             ("Bench", "bench"), ("inof", "info"), ("complete", "completion")):
            self.assertIn(f"'{wrong}' is not a command; did you mean '{right}'?",
                          self.refuse("command", wrong))
        self.assertIn("python -m gumbel explain", self.refuse("command", "explain"))
        for wrong in ("dream", "x" * 5000, "--", "-x", "generate "[:-2] + "xxxxxx"):
            self.assertNotIn("did you mean", self.refuse("command", wrong))

    def test_options(self):
        for command, wrong, right in (("generate", "--temprature", "temperature"),
                                      ("generate", "--max-token", "max-tokens"),
                                      ("generate", "--max_tokens", "max-tokens"),
                                      ("generate", "--sed=5", "seed"),
                                      ("sample", "--topk", "top-k"), ("info", "--jsno", "json"),
                                      ("bench", "--hlep", "help")):
            field = wrong.split("=")[0]
            if wrong == "--max-token":  # a prefix is the option
                self.refuse("--max-tokens", command, "--model", MODEL, wrong, "0")
                continue
            self.assertIn(f"is not an option of gumbel {command}; did you mean --{right}?",
                          self.refuse(field, command, wrong))
        for wrong in ("--dream", "--", "-Q", "--" + "x" * 50):
            self.assertNotIn("did you mean", self.refuse(wrong, "info", wrong)
                             if wrong != "--" else "")

    def test_values(self):
        """A missing value, a superfluous value, and an ambiguous abbreviation."""
        self.assertIn("requires a value, N (see gumbel generate --help)",
                      self.refuse("--samples", "generate", "--seed", 1, "--samples"))
        self.assertIn("requires a value, DIR", self.refuse("-m", "generate", "--seed", 1, "-m"))
        self.assertIn("takes no value", self.refuse("--json", "info", "--json=1"))
        self.assertIn("it may be --top-k, --top-p, --top-nsigma, --top-a, --top-logprobs",
                      self.refuse("--top", "generate", "--top"))
        for letters in ("-jQ", "-Qj", "-Q"):
            self.assertIn(f"{letters}: is not an option", self.refuse(letters, "info", letters))
        self.assertIn("options begin with --", self.refuse("surplus", "info", "surplus"))

    def test_examples(self):
        """Every command has some, and their options are options of it."""
        for command in ("", *COMMANDS, "completion"):
            text = self.succeed(*filter(None, [command]), "--help")
            examples = text.split("\nExamples:\n")[1]
            self.assertRegex(text, r"[^\n]\n$")
            for line in examples.splitlines():
                self.assertTrue(line.startswith("  $ "), line)  # argp would wrap a long one
                of = re.search(r"gumbel (\w+)", line)[1]
                options = self.succeed(of, "--help")
                for option in re.findall(r"--[a-z][a-z-]*", line):
                    self.assertRegex(options, rf"{option}\b")


class Completion(Case):
    def script(self, shell):
        path = self.path(f"gumbel.{shell}")
        with open(path, "w") as file:
            file.write(self.succeed("completion", shell))
        return path

    def test_shells(self):
        for shell in SHELLS:
            with self.subTest(shell):
                path = self.script(shell)
                if shutil.which(shell):
                    done = subprocess.run([shell, "-n", path], capture_output=True, text=True)
                    self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.refuse("SHELL", "completion")
        self.assertIn("'tcsh'", self.refuse("SHELL", "completion", "tcsh"))
        self.refuse("zsh", "completion", "bash", "zsh")

    def test_every_option_is_there(self):
        for shell in SHELLS:
            with open(self.script(shell)) as file:
                script = file.read()
            for command in COMMANDS:
                page = self.succeed(command, "--help")
                names = set(re.findall(r"(?m)^  (?:-\w, |    )--([a-z-]+)", page))
                self.assertGreater(len(names), 3)
                form = {"bash": " --{}[ ']", "zsh": "'\\*?--{}[=[]", "fish": " -l {} "}[shell]
                for name in names:
                    self.assertRegex(script, form.format(name))

    def complete(self, shell, *words):
        """The shell's completions of the last word."""
        path = self.script(shell)
        if not shutil.which(shell):
            self.skipTest(f"no {shell}")
        if shell == "bash":
            text = (f"source {path}; COMP_WORDS=(gumbel \"$@\"); COMP_CWORD=$#; _gumbel; "
                    'printf "%s\\n" "${COMPREPLY[@]}"')
            command = ["bash", "-c", text, "bash", *words]
        else:
            line = " ".join(("gumbel", *words))
            command = ["fish", "-c", f"source {path}; complete -C '{line}'"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder,
                              env={**os.environ, "HOME": self.folder})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return [line.split("\t")[0] for line in done.stdout.splitlines() if line]

    def check_shell(self, shell):
        os.mkdir(self.path("some folder"))
        with open(self.path("some.npy"), "w"):
            pass
        self.assertEqual(self.complete(shell, "gen"), ["generate"])
        self.assertEqual(self.complete(shell, "generate", "--max"), ["--max-tokens"])
        self.assertEqual(self.complete(shell, "verify", "--top"), [])
        self.assertEqual(sorted(self.complete(shell, "generate", "--isa", "avx")),
                         ["avx2", "avx512"])
        self.assertEqual(self.complete(shell, "completion", "z"), ["zsh"])
        self.assertEqual(self.complete(shell, "generate", "--prompt", ""), [])
        return [name.rstrip("/").replace("\\", "") for name in
                self.complete(shell, "generate", "--model", "so")]

    def test_bash(self):
        self.assertEqual(self.check_shell("bash"), ["some folder"])
        self.assertEqual(sorted(self.complete("bash", "sample", "--logits", "so")),
                         ["some folder", "some.npy"])
        self.assertEqual(self.complete("bash", "generate", "--isa", "=", "ne"), ["neon"])
        self.assertEqual(self.complete("bash", "bench", "-T", "f"), ["f16", "f32"])

    def test_fish(self):
        self.assertEqual(self.check_shell("fish"), ["some folder"])


class Terminal(Case):
    """Some of stdin, stdout and stderr are a terminal."""

    def setUp(self):
        super().setUp()
        self.ours, self.theirs = pty.openpty()
        self.addCleanup(os.close, self.ours)

    def start(self, *arguments, **streams):
        child = subprocess.Popen([GUMBEL, *map(str, arguments)], **streams)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        os.close(self.theirs)
        return child

    def read_until(self, words, seconds=120):
        seen, end = "", time.monotonic() + seconds
        while words not in seen and time.monotonic() < end:
            if select.select([self.ours], [], [], 1)[0]:
                try:
                    seen += os.read(self.ours, 65536).decode()
                except OSError:  # the other end is closed
                    break
        self.assertIn(words, seen)
        return seen

    def test_the_prompt_is_requested(self):
        child = self.start("generate", "--model", MODEL, "--max-tokens", 5, "--seed", 3, "--echo",
                           stdin=self.theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.write(self.ours, b"And God said\n\x04")
        out, err = child.communicate(timeout=120)
        self.assertEqual(err, b"reading the prompt from stdin; Ctrl-D ends it\n")
        self.assertTrue(out.startswith(b"And God said"), out)

    def test_no_tensor_from_a_terminal(self):
        child = self.start("sample", "--logits", "-", stdin=self.theirs, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE)
        _, err = child.communicate(timeout=120)
        self.assertEqual(child.returncode, 2)
        self.assertIn(b"--logits: stdin is a terminal", err)

    def test_bench_reports_progress(self):
        child = self.start("bench", "--vocab", 2000, "--hidden", 64, "--batch", 1, "--rounds", 2,
                           "--buffer", 32, stdout=subprocess.DEVNULL, stderr=self.theirs)
        seen = self.read_until("checking the draws ...")
        for phase in ("measuring the read bandwidth", "measuring the multiply-add peak",
                      "making a head"):
            self.assertIn(f"{phase} ...", seen)
        self.assertEqual(child.wait(120), 0)

    def test_generate_reports_progress(self):
        self.start("generate", "--model", MODEL, "--prompt", "And", "--seed", 3, "--samples", 200,
                   "--max-tokens", 1000, "--ignore-eos", stdout=subprocess.DEVNULL,
                   stderr=self.theirs)
        self.assertRegex(self.read_until("%"), r"writing: \d+%")

    def test_no_progress_without_a_terminal(self):
        done = subprocess.run([GUMBEL, "bench", "--vocab", "2000", "--hidden", "64", "--batch",
                               "1", "--rounds", "2", "--buffer", "32"], capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, b""))


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the tests of the command: running it, and the files of a small head."""

import json
import os
import random
import shutil
import subprocess
import tempfile
import unittest

from tensor_files import write_npy, write_safetensors

GUMBEL = os.environ["GUMBEL_CLI"]  # the command
MODELS = os.environ["GUMBEL_MODELS"]  # the folder of the bundled models
SANITIZED = bool(os.environ.get("GUMBEL_SANITIZE"))  # ten times slower: shorter texts, fewer draws
COMMANDS = ("info", "generate", "sample", "verify", "detect", "bench")  # with the common options


def seeded(arguments):
    """The arguments as text, with --seed 0 unless a seed is given or none applies."""
    texts = [*map(str, arguments)]
    draws = texts[:1] in (["generate"], ["sample"])
    named = any(text.split("=")[0] == "--seed" for text in texts)
    return texts + ["--seed", "0"] * (draws and not named)


def gumbel(*arguments, text=None):
    """Run the command; returns the finished process, with text output."""
    return subprocess.run([GUMBEL, *seeded(arguments)], capture_output=True, text=True,
                          input="" if text is None else text)


def gumbel_unseeded(*arguments):
    """Run the command without --seed."""
    return subprocess.run([GUMBEL, *map(str, arguments)], capture_output=True, text=True, input="")


def over_ranks(case, ranks, *arguments):
    """Runs the command in `ranks` processes with --group mpi; returns its output. Skips without
    MPI."""
    if not os.environ.get("GUMBEL_MPI") or not shutil.which("mpirun"):
        case.skipTest("no MPI")
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    over = ["--oversubscribe"] if "Open MPI" in version else []
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                       LD_LIBRARY_PATH=os.environ["GUMBEL_MPI"])
    command = ["mpirun", *over, "-n", str(ranks), GUMBEL, *map(str, arguments), "--group", "mpi"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    case.assertEqual(done.returncode, 0, done.stderr)
    return done.stdout


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def succeed(self, *arguments, text=None):
        done = gumbel(*arguments, text=text)
        self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)
        return done.stdout

    def succeed_json(self, *arguments):
        return json.loads(self.succeed(*arguments, "--json"))

    def refuse(self, field, *arguments):
        """Exit code 2, nothing on stdout, one line on stderr with the command and the field."""
        done = gumbel(*arguments)
        self.assertEqual(done.returncode, 2, (arguments, done.stderr))
        self.assertEqual(done.stdout, "", arguments)
        self.assertEqual(done.stderr.count("\n"), 1, (arguments, done.stderr))
        self.assertTrue(done.stderr.endswith("\n"), done.stderr)
        name = f" {arguments[0]}" if arguments and arguments[0] in (*COMMANDS, "completion") else ""
        self.assertTrue(done.stderr.startswith(f"gumbel{name}: {field}: "),
                        (arguments, done.stderr))
        return done.stderr


class SampleCase(Case):
    """A small head in every form: V = 333 (no multiple of a tile), D = 24, B = 5."""

    V, D, B = 333, 24, 5

    def setUp(self):
        super().setUp()
        source = random.Random(4)
        # Multiples of 1/64 below 2 fit every dtype exactly.
        self.weights = [source.randrange(-100, 101) / 64 for _ in range(self.V * self.D)]
        self.hidden = [source.randrange(-64, 65) / 64 for _ in range(self.B * self.D)]
        self.bias = [source.randrange(-64, 65) / 64 for _ in range(self.V)]
        self.logits = [
            sum(self.weights[i * self.D + d] * self.hidden[b * self.D + d] for d in range(self.D))
            for b in range(self.B) for i in range(self.V)
        ]
        write_safetensors(self.path("head.safetensors"), {
            "weights": ("BF16", (self.V, self.D), [round(x * 64) / 64 for x in self.weights]),
            "half": ("F16", (self.V, self.D), self.weights),
            "hidden": ("F32", (self.B, self.D), self.hidden),
            "narrow": ("F32", (self.B, self.D - 1), self.hidden[: self.B * (self.D - 1)]),
            "bias": ("F32", (self.V,), self.bias),
            "ids": ("I32", (2,), [1, 2]),
            "cube": ("F32", (1, 1, 2), [1, 2]),
        })
        write_npy(self.path("weights.npy"), "<f4", (self.V, self.D), self.weights)
        write_npy(self.path("hidden.npy"), "<f2", (self.B, self.D), self.hidden)
        write_npy(self.path("logits.npy"), "<f4", (self.B, self.V), self.logits)
        self.head = ("--weights", self.path("head.safetensors:half"),
                     "--hidden", self.path("head.safetensors:hidden"))

    def sample(self, *arguments):
        return self.succeed_json("sample", *arguments)

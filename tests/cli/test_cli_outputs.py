# SPDX-License-Identifier: Apache-2.0
"""Output targets of `sample`: files, links, devices, FIFOs; and the state of files after a failed
write."""

import os
import resource
import signal
import stat
import subprocess
import threading
import unittest

from cli_case import GUMBEL, SampleCase, gumbel, seeded
from tensor_files import read_npy, write_npy


class OutputCase(SampleCase):
    def setUp(self):
        super().setUp()
        self.draw = seeded(("sample", "--logits", self.path("logits.npy")))
        self.wanted = [x for row in self.sample(*self.draw[1:])["tokens"] for x in row]
        self.before = set(os.listdir(self.folder))

    def write(self, *paths, options=("--out-tokens", "--out-logprobs")):
        named = [x for pair in zip(options, paths) for x in pair]
        self.assertEqual(self.succeed(*self.draw, *named), "")

    def added(self):
        return sorted(set(os.listdir(self.folder)) - self.before)

    def holds_tokens(self, path):
        self.assertEqual(read_npy(path), ("<i4", (self.B, 1), self.wanted))


class Output(OutputCase):
    def test_an_existing_file_keeps_its_mode(self):
        path = self.path("tokens.npy")
        with open(path, "w") as file:
            file.write("old")
        os.chmod(path, 0o640)
        self.write(path)
        self.holds_tokens(path)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o640)
        self.assertEqual(self.added(), ["tokens.npy"])

    def test_a_new_file_has_the_mode_of_the_umask(self):
        path = self.path("tokens.npy")
        subprocess.run([GUMBEL, *self.draw, "--out-tokens", path], check=True, umask=0o027)
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o640)

    def test_a_reader_of_the_old_file_keeps_it(self):
        """The file is replaced atomically. A hard link, or a reader that has it open, keeps the old
        contents."""
        path, other = self.path("tokens.npy"), self.path("other")
        with open(path, "w") as file:
            file.write("old")
        os.link(path, other)
        with open(path) as reader:
            self.write(path)
            self.assertEqual(reader.read(), "old")
        with open(other) as file:
            self.assertEqual(file.read(), "old")

    def test_links_are_followed_and_kept(self):
        os.mkdir(self.path("store"))
        for name, target in (("far", "store/far.npy"), ("new", "store/new.npy"), ("loop", "far")):
            os.symlink(target, self.path(name))
        with open(self.path("store/far.npy"), "w") as file:
            file.write("old")
        self.write(self.path("far"))
        self.holds_tokens(self.path("store/far.npy"))
        self.write(self.path("new"))
        self.holds_tokens(self.path("store/new.npy"))
        os.unlink(self.path("store/far.npy"))
        self.write(self.path("loop"))
        self.holds_tokens(self.path("store/far.npy"))
        for name in ("far", "new", "loop"):
            self.assertTrue(os.path.islink(self.path(name)), name)
        self.assertEqual(sorted(os.listdir(self.path("store"))), ["far.npy", "new.npy"])

    def test_a_dangling_link_is_an_error(self):
        os.symlink("none/tokens.npy", self.path("astray"))
        os.symlink("round", self.path("round"))
        for name in ("astray", "round"):
            self.refuse("--out-tokens", *self.draw, "--out-tokens", self.path(name))
            self.assertTrue(os.path.islink(self.path(name)), name)

    def test_a_fifo_is_written_into(self):
        path, got = self.path("fifo"), []
        os.mkfifo(path)

        def read():
            with open(path, "rb") as file:
                got.append(file.read())

        # A daemon: where nobody opens the FIFO for writing, the test fails and does not hang.
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        self.write(path)
        reader.join(5)
        self.assertTrue(stat.S_ISFIFO(os.stat(path).st_mode))
        with open(self.path("tokens.npy"), "wb") as file:
            file.write(got[0])
        self.holds_tokens(self.path("tokens.npy"))

    @unittest.skipIf(os.geteuid() != 0, "only root could replace a device")
    def test_a_device_is_written_into(self):
        null, full = self.path("null"), self.path("full")
        try:
            os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            os.mknod(full, stat.S_IFCHR | 0o666, os.makedev(1, 7))
            with open(null, "wb") as file:
                file.write(b"x")
        except OSError as error:
            self.skipTest(f"no devices here: {error}")
        self.write(null, null)
        done = gumbel(*self.draw, "--out-tokens", full)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertRegex(done.stderr, r"^gumbel sample: --out-tokens: .*No space left.*\n$")
        for path in (null, full):
            self.assertTrue(stat.S_ISCHR(os.stat(path).st_mode), path)

    def test_stdout_by_name(self):
        # As /dev/stdout is, but no harm is done where it is replaced.
        os.symlink("/proc/self/fd/1", self.path("stdout"))
        command = [GUMBEL, *self.draw, "--out-tokens", self.path("stdout")]
        done = subprocess.run(command, capture_output=True)
        with open(self.path("tokens.npy"), "wb") as file:
            file.write(done.stdout)
        self.holds_tokens(self.path("tokens.npy"))
        with open(self.path("log"), "ab") as file:
            file.write(b"before")
            file.flush()
            subprocess.run(command, stdout=file, check=True)
        with open(self.path("log"), "rb") as file:
            self.assertEqual(file.read(), b"before" + done.stdout)
        with open(self.path("log"), "ab") as file:
            mixed = subprocess.run(
                [GUMBEL, *self.draw, "--json", "--out-tokens", self.path("log")], stdout=file,
                stderr=subprocess.PIPE, text=True)
        self.assertEqual(mixed.returncode, 2)
        self.assertRegex(mixed.stderr, "^gumbel sample: --out-tokens: .*JSON")

    def test_two_outputs_to_one_file_are_an_error(self):
        os.mkdir(self.path("store"))
        os.symlink("store", self.path("folder"))
        os.symlink("store/new.npy", self.path("link"))
        os.mkfifo(self.path("fifo"))
        with open(self.path("old.npy"), "w") as file:
            file.write("old")
        os.symlink("old.npy", self.path("another"))
        os.link(self.path("old.npy"), self.path("hard"))
        for first, second in (("a.npy", "a.npy"), ("a.npy", "./a.npy"), ("fifo", "fifo"),
                              ("a.npy", "store/../a.npy"), ("store/new.npy", "folder/new.npy"),
                              ("store/new.npy", "link"), ("link", "folder//new.npy"),
                              ("old.npy", "another"), ("old.npy", "hard")):
            with self.subTest(first=first, second=second):
                message = self.refuse("--out-scores", *self.draw, "--out-tokens",
                                      self.path(first), "--out-scores", self.path(second))
                self.assertIn("--out-tokens", message)
        self.assertFalse(os.path.exists(self.path("a.npy")))
        self.assertEqual(os.listdir(self.path("store")), [])
        with open(self.path("old.npy")) as file:
            self.assertEqual(file.read(), "old")
        self.write(self.path("a.npy"), self.path("store/a.npy"))

    def test_an_output_to_an_input_is_an_error(self):
        """By every option that reads a file, and by every name of the file."""
        os.mkdir(self.path("store"))
        os.symlink("store/../logits.npy", self.path("link"))
        os.link(self.path("logits.npy"), self.path("hard"))
        with open(self.path("logits.npy"), "rb") as file:
            logits = file.read()
        for name in ("logits.npy", "./logits.npy", "store/../logits.npy", "link", "hard"):
            with self.subTest(name):
                message = self.refuse("--out-tokens", *self.draw, "--out-tokens", self.path(name))
                self.assertIn("--logits", message)
        with open(self.path("logits.npy"), "rb") as file:
            done = subprocess.run(
                [GUMBEL, "sample", "--logits", "-", "--seed", "1", "--out-tokens",
                 self.path("logits.npy")], stdin=file, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertRegex(done.stderr, "^gumbel sample: --out-tokens: .* --logits -")
        with open(self.path("logits.npy"), "rb") as file:
            self.assertEqual(file.read(), logits)

        head = self.path("head.safetensors")
        before = os.stat(head)
        for option in ("--weights", "--hidden", "--bias"):
            self.refuse("--out-lse", "sample", option, head + ":weights", "--out-lse", head)
            self.refuse("--out-lse", "sample", option, head, "--out-lse", head)
        self.assertEqual(os.stat(head).st_ino, before.st_ino)
        other = self.path("other.npy")
        with open(other, "w") as file:
            file.write("old")
        for option in ("temperature", "seed", "position", "first-sample", "given", "top-k", "top-p",
                       "min-p", "repetition-penalty", "frequency-penalty", "presence-penalty",
                       "logit-bias", "allow", "ban", "mask", "prompt-tokens", "output-tokens"):
            with self.subTest(option):
                message = self.refuse("--out-scores", "sample", "--logits",
                                      self.path("logits.npy"), f"--{option}", other,
                                      "--out-scores", other)
                self.assertIn(f"--{option} ", message)
        with open(other) as file:
            self.assertEqual(file.read(), "old")

    def test_a_number_is_no_input_file(self):
        with open(self.path("0"), "w") as file:
            file.write("old")
        subprocess.run([GUMBEL, *self.draw, "--position", "0", "--out-tokens", "0"],
                       cwd=self.folder, check=True)
        self.holds_tokens(self.path("0"))

    def test_invalid_outputs_are_reported_before_the_work(self):
        os.mkdir(self.path("store"))
        for name in ("store", "store/", "none/", "none/a.npy", "store/.", "store/..", "logits.npy/",
                     "logits.npy/a"):
            with self.subTest(name):
                message = self.refuse("--out-tokens", *self.draw, "--logits", self.path("none"),
                                      "--out-tokens", self.path(name))
                self.assertIn(name, message)
        self.refuse("--out-tokens", *self.draw, "--out-tokens", "")


class OutputKilled(OutputCase):
    """1.5 MB an output and more, so that there is a middle to be killed in."""

    ROWS, SAMPLES = 6, 65536
    OPTIONS = ("--out-tokens", "--out-logprobs", "--out-scores")

    def setUp(self):
        super().setUp()
        write_npy(self.path("few.npy"), "<f4", (self.ROWS, 2), [0.0] * (2 * self.ROWS))
        self.paths = [self.path(f"out{i}.npy") for i in range(3)]
        self.many = [GUMBEL, "sample", "--logits", self.path("few.npy"), "--num-samples",
                     str(self.SAMPLES), "--seed", "0"]
        self.many += [x for pair in zip(self.OPTIONS, self.paths) for x in pair]
        self.before = set(os.listdir(self.folder))

    def strangers(self):
        return [name for name in self.added() if self.path(name) not in self.paths]

    def test_by_a_limit_of_the_size(self):
        """SIGXFSZ would come in the middle of the first write."""
        for old in (False, True):
            if old:
                for path in self.paths:
                    with open(path, "w") as file:
                        file.write("old")
            limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
            done = subprocess.run(self.many, capture_output=True, text=True, preexec_fn=limit)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, r"^gumbel sample: --out-tokens: .*too large\n$")
            self.assertEqual(self.added(), sorted(map(os.path.basename, self.paths)) * old)
            for path in self.paths * old:
                with open(path) as file:
                    self.assertEqual(file.read(), "old")

    def run_until(self, number):
        """Send a signal as soon as a name is there that should not be, or at the second output."""
        child = subprocess.Popen(self.many)
        while child.poll() is None and not self.strangers():
            if os.path.exists(self.paths[1]):
                break
        child.send_signal(number)
        child.wait()
        return child.returncode

    def test_by_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for _ in range(3):
                self.assertIn(self.run_until(number), (-number, 0))
                self.assertEqual(self.strangers(), [], number)
                for path in filter(os.path.exists, self.paths):
                    self.assertEqual(os.path.getsize(path), 128 + 4 * self.ROWS * self.SAMPLES)
                    os.unlink(path)

    def test_by_sigkill(self):
        try:
            os.close(os.open(self.folder, os.O_TMPFILE | os.O_WRONLY))
        except OSError as error:
            self.skipTest(f"no files without a name here: {error}")
        for _ in range(3):
            self.run_until(signal.SIGKILL)
            self.assertEqual(self.strangers(), [])
            for path in filter(os.path.exists, self.paths):
                os.unlink(path)


if __name__ == "__main__":
    unittest.main()

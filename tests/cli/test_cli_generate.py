# SPDX-License-Identifier: Apache-2.0
"""`gumbel generate`: the golden texts, the prompt, streaming."""

import json
import os
import re
import signal
import statistics
import subprocess
import tempfile
import unittest

from cli_case import GUMBEL, MODELS, SANITIZED, Case, gumbel, over_ranks


class Generate(Case):
    def setUp(self):
        super().setUp()
        self.model = os.path.join(MODELS, "kjv-target")

    def test_texts_match_golden_values(self):
        with open(os.path.join(MODELS, "golden.json")) as file:
            golden = json.load(file)
        for name in ("target", "draft"):
            model = os.path.join(MODELS, f"kjv-{name}")
            for case in golden[name]["greedy"][:1 if SANITIZED else None]:
                arguments = ("generate", "--model", model, "--prompt", case["prompt"],
                             "--temperature", 0, "--max-tokens", len(case["greedy_ids"]))
                with self.subTest(model=name, prompt=case["prompt"]):
                    found = self.succeed_json(*arguments)
                    self.assertEqual(found["prompt_ids"], case["prompt_ids"])
                    self.assertEqual(found["samples"][0]["ids"], case["greedy_ids"])
                    self.assertEqual(found["samples"][0]["text"], case["text"])
                    self.assertEqual(self.succeed(*arguments), case["text"] + "\n")

    def test_stdin_is_the_prompt(self):
        rest = ("--model", self.model, "--max-tokens", 8, "--seed", "0xabc")
        given = self.succeed("generate", "--prompt", "And it came", *rest)
        self.assertEqual(self.succeed("generate", *rest, text="And it came\n"), given)
        echoed = self.succeed("generate", "--prompt", "And it came", "--echo", *rest)
        self.assertEqual(echoed, "And it came" + given)

    def test_screen(self):
        rest = ("generate", "--model", self.model, "--prompt", "In the beginning", "--max-tokens",
                8 if SANITIZED else 30, "--seed", 3, "--samples", 3)
        for how in (("--temperature", 0), ("--temperature", 0.8, "--repetition-penalty", 1.2),
                    ("--top-k", 20)):
            self.assertEqual(self.succeed(*rest, *how, "--screen"), self.succeed(*rest, *how))
            drafted = gumbel(*rest, *how, "--screen", "--draft", "ngram", "--check")
            self.assertEqual(drafted.stdout, self.succeed(*rest, *how))
        small = ("--draft", os.path.join(MODELS, "kjv-draft"), "--draft-siblings", 2)
        done = gumbel(*rest, "--screen", *small)
        self.assertEqual((done.returncode, done.stdout), (0, self.succeed(*rest)))
        self.refuse("--screen", *rest, "--screen", "--json")
        self.refuse(
            "--screen", *rest, "--screen", "--draft", "ngram", "--draft-rule", "rejection"
        )

    def test_drafts(self):
        """Drafted texts equal plain ones; a line or an object reports on the drafts."""
        many = 10 if SANITIZED else 24
        rest = ("generate", "--model", self.model, "--prompt", "In the beginning", "--max-tokens",
                many, "--temperature", 0.8, "--seed", 3)
        small = os.path.join(MODELS, "kjv-draft")
        plain = self.succeed(*rest, "--samples", 2)
        for draft in (small, "ngram"):
            drafted = ("--draft", draft, "--draft-tokens", 3, "--check")
            done = gumbel(*rest, "--samples", 2, *drafted)
            self.assertEqual((done.returncode, done.stdout), (0, plain))
            self.assertRegex(done.stderr, r"^drafts: \d.* a cycle \(by depth:.*\), "
                             r"[1-4]\.\d\d tokens .*\n"
                             r"times: drafting .*\n"
                             r"speed-up: predicted \d.*; best draft length by prediction: [0-3]\n"
                             r"check passed: the texts are the same with and without drafts; "
                             r"decoding took \d.\d{3} s with them, \d.\d{3} s without\n"
                             r"(drafts .*save no time here: .*\n)?$")
            measured = float(re.search(r"measured ([\d.]+)", done.stderr)[1])
            if " of 0.00 drafted tokens" in done.stderr:
                self.assertIn("save no time here: none was found", done.stderr)
            elif abs(measured - 1) > 0.01:
                self.assertEqual("save no time" in done.stderr, measured < 1, done.stderr)
            found = self.succeed_json(*rest, *drafted, "--draft-rule", "coupled")
            self.assertEqual(found["samples"], self.succeed_json(*rest)["samples"])
            drafts = found["drafts"]
            self.assertEqual(len(drafts["accepted_by_place"]), 3)
            unpaid = drafts["proposed_a_cycle"] == 0 or drafts["speed_up"] <= 1
            self.assertEqual("advice" in drafts, unpaid)
            self.assertTrue(drafts["check"]["same_text"])
            self.assertTrue(0 <= drafts["accept_rate"] <= 1)
            self.assertGreaterEqual(drafts["break_even_accept_rate"], 0)
            self.assertAlmostEqual(drafts["tokens_a_cycle"], 1 + drafts["accepted_a_cycle"], 1)
        siblings = ("--draft", small, "--draft-siblings", 2, "--check")
        self.assertEqual(gumbel(*rest, "--samples", 2, *siblings).stdout, plain)
        self.refuse("--draft-siblings", *rest, "--draft", "ngram", "--draft-siblings", 1)
        self.refuse("--draft-siblings", *rest, "--draft", small, "--draft-siblings", 16)
        self.refuse("--draft", *rest, "--draft", self.path("nowhere"))
        self.refuse("--draft-tokens", *rest, "--draft", "ngram", "--draft-tokens", 64)
        for rule in ("rejection", "block"):
            drafts = ("--draft", small, "--draft-rule", rule)
            found = self.succeed_json(*rest, *drafts)
            self.assertEqual(len(found["samples"][0]["ids"]), many)
            self.assertGreater(found["drafts"]["accepted_a_cycle"], 0)
            self.refuse("--check", *rest, *drafts, "--check")
            self.refuse("--draft-siblings", *rest, *drafts, "--draft-siblings", 1)
            self.refuse("--draft-rule", *rest, *drafts, "--json", "--ranks")
        self.refuse("--draft-rule", *rest, "--draft", "ngram", "--draft-rule", "typical")
        self.refuse("--draft-temperature", *rest, "--draft", small, "--draft-temperature", 0)
        self.refuse("--check", *rest, "--check")

    def test_no_drafts_are_found(self):
        found = self.succeed_json("generate", "--model", self.model, "--prompt", "In", "--seed", 3,
                                  "--max-tokens", 2, "--draft", "ngram")["drafts"]
        self.assertIn("none was found", found["advice"])

    def test_group(self):
        """Processes that share a head generate the text of one process with the whole head."""
        rest = ("generate", "--model", self.model, "--prompt", "In the beginning", "--max-tokens",
                12, "--seed", 3, "--samples", 2, "--threads", 1)
        self.refuse("--group", *rest, "--group", "nccl")
        self.refuse("--prompt", *rest[:3], "--group", "mpi")
        self.refuse("--group", *rest, "--group", "mpi", "--draft", "ngram")
        self.refuse("--group", *rest, "--group", "mpi", "--device", "cuda:0")
        for cuts in ((), ("--top-k", 50, "--top-p", 0.9, "--repetition-penalty", 1.2)):
            with self.subTest(cuts=cuts):
                self.assertEqual(over_ranks(self, 3, *rest, *cuts), self.succeed(*rest, *cuts))

    def test_bos(self):
        rest = ("generate", "--model", self.model, "--prompt", "And", "--max-tokens", 1)
        with_bos = self.succeed_json(*rest)["prompt_ids"]
        self.assertEqual(self.succeed_json(*rest, "--bos")["prompt_ids"], with_bos)
        self.assertEqual(self.succeed_json(*rest, "--no-bos")["prompt_ids"], with_bos[1:])
        self.refuse("--bos", *rest, "--bos", "--no-bos")

    def test_samples_are_independent_of_each_other(self):
        rest = ("generate", "--model", self.model, "--prompt", "In the", "--max-tokens", 12,
                "--seed", 5)
        many = self.succeed_json(*rest, "--samples", 3)["samples"]
        self.assertEqual(len({tuple(sample["ids"]) for sample in many}), 3)
        alone = self.succeed_json(*rest, "--first-sample", 2)["samples"]
        self.assertEqual(alone[0]["ids"], many[2]["ids"])
        text = self.succeed(*rest, "--samples", 3)
        wanted = "".join(f"--- sample {j}\n{many[j]['text']}\n" for j in range(3))
        self.assertEqual(text, wanted)

    def test_sample_counters_wrap(self):
        """After 2^32 - 1 comes 0, in the draws and in the numbers of the texts."""
        rest = ("generate", "--model", self.model, "--prompt", "In the", "--max-tokens", 12,
                "--seed", 5)
        first = self.succeed_json(*rest)["samples"][0]["text"]
        text = self.succeed(*rest, "--samples", 2, "--first-sample", 2**32 - 1)
        self.assertTrue(text.startswith(f"--- sample {2**32 - 1}\n"), text)
        self.assertTrue(text.endswith(f"\n--- sample 0\n{first}\n"), text)

    def test_stats(self):
        arguments = ("generate", "--model", self.model, "--prompt", "In the", "--max-tokens", 9,
                     "--stats", "--samples", 2, "--ignore-eos")
        done = gumbel(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"18 tokens, [\d.]+ tokens/s")
        self.assertIn("head and sampling", done.stderr)
        self.assertIn("materialised baseline", done.stderr)
        stats = json.loads(gumbel(*arguments, "--json").stdout)["stats"]
        self.assertTrue(0 < stats["head_share"] < 1)
        self.assertEqual((stats["tokens"], stats["steps"], stats["step_rows"]), (18, 9, 2))
        self.assertGreater(stats["step_materialised_us"], stats["step_product_us"])

    def test_wrong_input(self):
        model = ("generate", "--model", self.model)
        self.refuse("--model", "generate")
        self.refuse("--model", "generate", "--model", self.path("none"), "--prompt", "a")
        self.refuse("--temperature", *model, "--temperature", "-0.5")
        self.refuse("--temperature", *model, "--temperature", "nan")
        self.refuse("--temperature", *model, "--temperature", "1e99")
        self.refuse("--seed", *model, "--seed", "nan")
        self.refuse("--seed", *model, "--seed", "-1")
        self.refuse("--seed", *model, "--seed", str(2**64))
        self.refuse("--max-tokens", *model, "--max-tokens", "0")
        message = self.refuse("--max-tokens", *model, "--max-tokens", "100000", "--prompt", "a")
        self.assertIn("1024 tokens", message)
        self.refuse("--samples", *model, "--samples", "1025")
        self.refuse("--prompt", *model, "--prompt", "", "--no-bos")
        self.refuse("--device", *model, "--device", "tpu")
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            folder = tempfile.mkdtemp(dir=self.folder)
            for other in os.listdir(self.model):
                if other != name:
                    os.symlink(os.path.abspath(os.path.join(self.model, other)),
                               os.path.join(folder, other))
            with open(os.path.join(folder, name), "wb") as file:
                file.write(b"\xff" * 7)
            message = self.refuse("--model", "generate", "--model", folder, "--prompt", "a")
            self.assertIn(name, message)


@unittest.skipIf(SANITIZED, "for some thousand cycles")
class Acceptance(Case):
    """The mean tokens a cycle with four drafts at T = 0.8. Closed forms on other texts of the
    bundled models give 2.42, with a sibling 2.79, by rejection 2.61, by blocks 2.75, each to
    .02."""

    PROMPTS = ("And God said", "In the beginning", "The LORD is", "Blessed are",
               "And it came to pass")
    ENDS = 0.05  # reduction of the mean by shorter drafts at the end of a text

    def tokens_a_cycle(self, *drafted):
        """The mean over prompts, and its standard error."""
        found = [
            self.succeed_json(
                "generate", "--model", os.path.join(MODELS, "kjv-target"), "--prompt", prompt,
                "--max-tokens", 64, "--samples", 8, "--temperature", 0.8, "--ignore-eos",
                "--seed", 9, "--draft", os.path.join(MODELS, "kjv-draft"), "--draft-tokens", 4,
                "--threads", 1, *drafted)["drafts"]["tokens_a_cycle"]
            for prompt in self.PROMPTS
        ]
        return statistics.mean(found), statistics.stdev(found) / len(found)**0.5

    def test_tokens_a_cycle_match_closed_forms(self):
        means = {}
        for expected, drafted in ((2.42, ()), (2.79, ("--draft-siblings", 1)),
                                  (2.61, ("--draft-rule", "rejection")),
                                  (2.75, ("--draft-rule", "block"))):
            with self.subTest(drafted):
                mean, error = self.tokens_a_cycle(*drafted)
                means[drafted[-1:]] = mean
                self.assertLess(error, 0.15)
                self.assertLess(mean, expected + 3 * (error + 0.02))
                self.assertGreater(mean, expected - self.ENDS - 3 * (error + 0.02))
        self.assertGreater(means[(1,)], means[()] + 0.2)


class Stream(Case):
    """`generate` ends if nobody reads its output."""

    ARGUMENTS = ("generate", "--prompt", "In the", "--max-tokens", "500", "--seed", "0")

    def test_closed_pipe_ends_it_quietly(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run([GUMBEL, *self.ARGUMENTS, "--model",
                               os.path.join(MODELS, "kjv-target")],
                              stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, b""))

    def test_head(self):
        model = os.path.join(MODELS, "kjv-target")
        done = subprocess.run(f'"{GUMBEL}" {" ".join(self.ARGUMENTS[:1])} --prompt "In the" '
                              f'--max-tokens 500 --seed 0 --model "{model}" | head -c 10',
                              shell=True, capture_output=True)
        self.assertEqual((len(done.stdout), done.stderr), (10, b""))

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_full_disk_is_reported(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([GUMBEL, "info"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^gumbel info: stdout: .*\n$")


if __name__ == "__main__":
    unittest.main()

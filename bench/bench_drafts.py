#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What do drafts gain on a CPU? The bundled models, `gumbel generate --draft`.

usage: bench/bench_drafts.py GUMBEL [--json FILE] [--samples N]

GUMBEL is a release build of the command. The texts have 64 tokens after short prompts, at
temperature 0.8. Measured are chains of 1 to 8 tokens drafted by the small model, with one
sibling for each or none, and n-grams on greedy texts, which soon repeat; these texts are first
compared with the texts without drafts. Then chains are measured with the rules that compare
probabilities, whose texts differ.
"""

import argparse
import json
import pathlib
import subprocess

import result_lines

MODELS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "models"
PROMPTS = ("And God saw", "In the beginning", "The LORD is", "Blessed are", "And it came to pass")


def generate(gumbel, prompt, *arguments):
    command = [gumbel, "generate", "--model", MODELS / "kjv-target", "--prompt", prompt,
               "--ignore-eos", "--json", *arguments]
    done = subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return json.loads(done.stdout)["drafts"]


def mean(drafts, name):
    return sum(found[name] for found in drafts) / len(drafts)


def measure(gumbel, draft, tokens, *arguments):
    """Means over the prompts of each figure of --stats that every prompt's report has."""
    arguments_of_draft = ("--draft", draft, "--draft-tokens", tokens, *arguments)
    if "--draft-rule" not in arguments:
        generate(gumbel, PROMPTS[0], *arguments_of_draft, "--samples", 1, "--check")
    found = [generate(gumbel, prompt, *arguments_of_draft) for prompt in PROMPTS]
    names = [name for name in found[0]
             if all(isinstance(one.get(name), (int, float)) for one in found)]
    row = {"draft_tokens": tokens, **{name: round(mean(found, name), 6) for name in names}}
    places = [one["accepted_by_place"] for one in found]
    row["accepted_by_place"] = [round(sum(place) / len(place), 3) for place in zip(*places)]
    print(f"{tokens:2} tokens: {row['tokens_a_cycle']:.2f} a cycle, speed-up by model "
          f"{row['speed_up_by_model']:.2f}, measured {row['speed_up']:.2f}")
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("gumbel")
    parser.add_argument("--json")
    parser.add_argument("--samples", type=int, default=64)
    options = parser.parse_args()
    info = json.loads(subprocess.run([options.gumbel, "info", "--json"], check=True,
                                     capture_output=True).stdout)
    sampled = ("--samples", options.samples, "--max-tokens", 64, "--temperature", 0.8)
    greedy = ("--samples", 1, "--max-tokens", 400, "--temperature", 0)
    print("chains by the small model, T = 0.8")
    chains = [measure(options.gumbel, MODELS / "kjv-draft", tokens, *sampled)
              for tokens in (1, 2, 3, 4, 5, 6, 8)]
    print("chains by the small model with one sibling each, T = 0.8")
    trees = [measure(options.gumbel, MODELS / "kjv-draft", tokens, "--draft-siblings", 1, *sampled)
             for tokens in (1, 2, 3, 4, 6, 8)]
    print("n-grams, T = 0")
    ngrams = [measure(options.gumbel, "ngram", tokens, *greedy) for tokens in (2, 4, 8)]
    rules = {}
    for rule in ("rejection", "block"):
        print(f"chains by the rule {rule}")
        rules[rule] = [measure(options.gumbel, MODELS / "kjv-draft", tokens, "--draft-rule", rule,
                               *sampled) for tokens in (1, 2, 4, 8)]
    result = {
        "question": "what do drafts gain on a CPU?",
        "version": info["version"],
        "commit": subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True,
                                 text=True).stdout.strip(),
        "cpu": result_lines.cpu_name(),
        "target": "kjv-target",
        "draft": "kjv-draft",
        "tokens": len(PROMPTS) * options.samples * 64,
        "chains": chains,
        "one_sibling": trees,
        "ngrams": ngrams,
        **rules,
    }
    if options.json:
        result_lines.write(options.json, result)


if __name__ == "__main__":
    main()

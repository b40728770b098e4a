/* SPDX-License-Identifier: Apache-2.0 */
#include "commands.h"

const struct command commands[] = {
    {"info", command_info, &info_line, "show the features of this build and this machine"},
    {"generate", command_generate, &generate_line, "write text with a model folder"},
    {"sample", command_sample, &sample_line,
     "draw tokens from weights and hidden states, or from logits"},
    {"verify", command_verify, &verify_line, "check that draws are exact on this machine"},
    {"detect", command_detect, &detect_line, "search for a watermark in a text"},
    {"bench", command_bench, &bench_line, "compare draws with this machine's limits"},
    {"completion", command_completion, &completion_line,
     "print a script that completes commands and options in a shell"},
    {0},
};

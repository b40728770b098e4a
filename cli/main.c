/* SPDX-License-Identifier: Apache-2.0
 *
 * gumbel: draw tokens from language models exactly. Finds the command and hands over to it.
 */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "options.h"
#include "report.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
};

static const struct command commands[] = {
    {"info", command_info, "show what this build and this machine offer"},
    {"generate", command_generate, "write text with a model folder"},
    {"sample", command_sample, "draw tokens from weights and hidden states, or from logits"},
    {"verify", command_verify, "prove the draws exact on this machine"},
    {"bench", command_bench, "measure the draw against this machine's limits"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(void)
{
    puts("Usage: gumbel COMMAND [OPTION...]\n"
         "Draw tokens from language models exactly, fused with the LM-head product.\n");
    for (int i = 0; i < COMMANDS; i++) {
        printf("  %-9s %s\n", commands[i].name, commands[i].summary);
    }
    puts("\n`gumbel COMMAND --help` lists the options of a command; `gumbel --version` prints the\n"
         "version. Exit codes: 0 done, 1 a check failed, 2 wrong input or usage.");
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";

    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help();
        finish_stdout();
        return 0;
    }
    if (strcmp(name, "--version") == 0) {
        printf("gumbel %s\n", gumbel_version_string());
        finish_stdout();
        return 0;
    }
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(name, commands[i].name) == 0) {
            int code = 0;

            set_command(commands[i].name);
            code = commands[i].run(argc - 1, argv + 1);
            finish_stdout();
            return code;
        }
    }
    if (!*name) {
        fail("command",
             "missing; one of info, generate, sample, verify, bench (see gumbel --help)");
    }
    fail("command", "'%s' is not info, generate, sample, verify or bench (see gumbel --help)",
         name);
}

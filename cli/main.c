/* SPDX-License-Identifier: Apache-2.0
 *
 * gumbel: draw tokens from language models exactly. Finds and runs the command.
 */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "options.h"
#include "report.h"
#include "suggest.h"

static const char examples[] =
    "Examples:\n"
    "  $ gumbel info\n"
    "  $ gumbel generate --model DIR --prompt \"In the beginning\" --echo\n"
    "  $ gumbel sample --logits logits.npy --top-k 40 --num-samples 8\n"
    "  $ gumbel verify --model DIR\n";

static void print_help(void)
{
    puts("Usage: gumbel COMMAND [OPTION...]\n"
         "Draw tokens from language models exactly, fused with the LM-head product.\n");
    for (const struct command *command = commands; command->name; command++) {
        printf("  %-10s  %s\n", command->name, command->summary);
    }
    puts("\n`gumbel COMMAND --help` lists the options of a command; `gumbel --version` prints the\n"
         "version. Exit codes: 0 done, 1 a check failed, 2 wrong input or usage.\n");
    fputs(examples, stdout);
}

static _Noreturn void reject_command(const char *name)
{
    struct suggestion suggestion = {.given = name, .size = strlen(name)};
    char names[160] = "";
    size_t used = 0;

    for (const struct command *command = commands; command->name; command++) {
        suggestion_consider(&suggestion, command->name);
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                                 command->name);
    }
    if (!*name) {
        fail("command", "missing; one of %s (see gumbel --help)", names);
    }
    if (strcmp(name, "explain") == 0) {
        fail("command", "'explain' is a command of the Python package: python -m gumbel explain; "
                        "in C it is gumbel_explain() (see gumbel --help)");
    }
    if (suggestion.closest) {
        fail("command", "'%s' is not a command; did you mean '%s'? (see gumbel --help)", name,
             suggestion.closest);
    }
    fail("command", "'%s' is not one of %s (see gumbel --help)", name, names);
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
    for (const struct command *command = commands; command->name; command++) {
        if (strcmp(name, command->name) == 0) {
            int code = 0;

            set_command(command->name);
            code = command->run(argc - 1, argv + 1);
            finish_stdout();
            return code;
        }
    }
    reject_command(name);
}

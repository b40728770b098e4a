/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of `gumbel`. Each parses its arguments (argv[0] is the command's name), prints its
 * result on stdout and returns the exit code: 0, or EXIT_FAILED if a check failed. Wrong input ends
 * the program with EXIT_INPUT (options.h).
 */
#ifndef GUMBEL_CLI_COMMANDS_H
#define GUMBEL_CLI_COMMANDS_H

#include "arguments.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const struct command_line *line;
    const char *summary;
};

/* The table of commands; ended by a NULL name. */
extern const struct command commands[];

int command_info(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_sample(int argc, char **argv);
int command_verify(int argc, char **argv);
int command_detect(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_completion(int argc, char **argv);

extern const struct command_line info_line, generate_line, sample_line, verify_line, detect_line,
    bench_line, completion_line;

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * The commands of `gumbel`. Each takes its own arguments (argv[0] is the command's name), prints
 * its result on stdout and returns the exit code: 0, or EXIT_FAILED where a check failed. Wrong
 * input ends the program with EXIT_INPUT (options.h).
 */
#ifndef GUMBEL_CLI_COMMANDS_H
#define GUMBEL_CLI_COMMANDS_H

int command_info(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_sample(int argc, char **argv);
int command_verify(int argc, char **argv);
int command_bench(int argc, char **argv);

#endif

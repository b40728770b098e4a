/* SPDX-License-Identifier: Apache-2.0
 *
 * How a command ends that cannot go on: one line on stderr, and an exit code.
 */
#ifndef GUMBEL_CLI_FAILURE_H
#define GUMBEL_CLI_FAILURE_H

#include <stdbool.h>

/* Exit codes: 0 done, EXIT_FAILED a check or a write failed, EXIT_INPUT wrong input or usage. */
enum { EXIT_FAILED = 1, EXIT_INPUT = 2 };

/* Name the running command; fail() and --help print it. `name` must stay valid. */
void set_command(const char *name);

/* What to do before a failure's line is printed, as to clear the line that progress stands on. */
void set_before_failure(void (*clear)(void));

/* Print "gumbel COMMAND: FIELD: MESSAGE", one line, on stderr and exit with EXIT_INPUT. Bytes below
 * 32, which a file name may hold, are printed as '?'. */
_Noreturn void fail(const char *field, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* How fail_field() and fail_message() know whether the command has an option, as "--device". */
void set_has_option(bool (*has_option)(const char *option));

/* Fail with a message of the library or the decoder about `field` of theirs: the line names the
 * option of the command that sets the field, as --device for "options.device", or else the field.
 */
_Noreturn void fail_field(const char *field, const char *message);

/* Fail with a message of the decoder. The line names the command's option for the field that the
 * message begins with, as --max-tokens for "max_tokens: ...", or else `option`. */
_Noreturn void fail_message(const char *option, const char *message);

/* The same with exit code EXIT_FAILED, for what is not the user's fault (a full disk). */
_Noreturn void fail_late(const char *field, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Ends a command on an error: one line on stderr, and an exit code.
 */
#ifndef GUMBEL_CLI_FAILURE_H
#define GUMBEL_CLI_FAILURE_H

#include <stdbool.h>

/* Exit codes: 0 success, EXIT_FAILED a check or a write failed, EXIT_INPUT wrong input or usage. */
enum { EXIT_FAILED = 1, EXIT_INPUT = 2 };

/* Sets the name that fail() and --help print; `name` must stay valid. */
void set_command(const char *name);

/* Sets a function that fail() calls before it prints, such as to clear the progress line. */
void set_before_failure(void (*clear)(void));

/* Prints the line "gumbel COMMAND: FIELD: MESSAGE" on stderr and exits with EXIT_INPUT. Bytes below
 * 32, as in file names, are printed as '?'. */
_Noreturn void fail(const char *field, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Sets the function by which fail_field() and fail_message() query the command's options. */
void set_has_option(bool (*has_option)(const char *option));

/* Fails with a message of the library or the decoder about `field`. The line names the command's
 * option for the field, such as --device for "options.device", or else the field. */
_Noreturn void fail_field(const char *field, const char *message);

/* Fails with a message of the decoder. The line names the command's option for the field at the
 * start of the message, such as --max-tokens for "max_tokens: ...", or else `option`. */
_Noreturn void fail_message(const char *option, const char *message);

/* fail() with exit code EXIT_FAILED, for errors that are not the user's (a full disk). */
_Noreturn void fail_late(const char *field, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static const char *command = "";
static void (*before_line)(void);

void set_command(const char *name) { command = name; }

void set_before_failure(void (*clear)(void)) { before_line = clear; }

/* Buffers are flushed, but nothing is freed on the way out: whatever was open ends with the
 * process. */
static _Noreturn void end(int code, const char *field, const char *format, va_list arguments)
{
    char line[1024];
    int used = snprintf(line, sizeof line, "gumbel%s%s: %s: ", *command ? " " : "", command, field);

    if (used > 0 && (size_t)used < sizeof line) {
        vsnprintf(line + used, sizeof line - (size_t)used, format, arguments);
    }
    for (char *byte = line; *byte; byte++) {
        if ((unsigned char)*byte < 32) {
            *byte = '?';
        }
    }
    if (before_line) {
        before_line();
    }
    fflush(stdout);
    fprintf(stderr, "%s\n", line);
    _exit(code);
}

void fail(const char *field, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    end(EXIT_INPUT, field, format, arguments);
}

void fail_late(const char *field, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    end(EXIT_FAILED, field, format, arguments);
}

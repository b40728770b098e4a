/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/error.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* Appends `text` and ": " if they fit; returns the new length. */
static size_t append_part(decoder_error *error, size_t length, const char *text)
{
    size_t room = sizeof error->message - length;
    int written = text ? snprintf(error->message + length, room, "%s: ", text) : 0;
    if (written < 0) {
        return length;
    }
    return (size_t)written < room ? length + (size_t)written : sizeof error->message - 1;
}

int decoder_fail(decoder_error *error, const char *file, const char *field, const char *format, ...)
{
    if (!error) {
        return -1;
    }
    error->message[0] = '\0';
    size_t length = append_part(error, 0, file);
    length = append_part(error, length, field);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message + length, sizeof error->message - length, format, arguments);
    va_end(arguments);
    for (char *c = error->message; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            *c = '?';
        }
    }
    return -1;
}

int decoder_fail_call(decoder_error *error, const gumbel_error *problem)
{
    return decoder_fail(error, NULL, problem->field, "%s", problem->message);
}

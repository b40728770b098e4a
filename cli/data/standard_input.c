/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "standard_input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "failure.h"

char *read_standard_input(const char *field, const char *what, size_t most, size_t *size)
{
    static const char *reader;
    size_t capacity = 1 << 16;
    char *bytes = malloc(capacity);

    if (reader) {
        fail(field, "stdin was already read for %s", reader);
    }
    reader = field;
    if (isatty(STDIN_FILENO)) {
        fprintf(stderr, "reading %s from stdin; Ctrl-D ends it\n", what);
    }
    *size = 0;
    /* On a terminal, reading on after end of file would wait for a second Ctrl-D. */
    while (!feof(stdin) && !ferror(stdin)) {
        if (*size > most) {
            fail(field, "stdin holds more than %zu bytes", most);
        }
        if (bytes && *size + 1 == capacity) {
            capacity *= 2;
            bytes = realloc(bytes, capacity);
        }
        if (!bytes) {
            fail(field, "not enough memory for %zu bytes of stdin", capacity);
        }
        *size += fread(bytes + *size, 1, capacity - *size - 1, stdin);
    }
    if (ferror(stdin)) {
        fail(field, "stdin: %s", strerror(errno));
    }
    bytes[*size] = '\0';
    return bytes;
}

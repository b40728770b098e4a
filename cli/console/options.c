/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "options.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------------------- failures ---- */

void require_ok(gumbel_status status, const gumbel_error *error)
{
    if (status != GUMBEL_OK) {
        fail_field(error->field, error->message);
    }
}

void *require_memory(const char *what, int64_t count, size_t size)
{
    size_t bytes = 0;
    void *memory = NULL;

    if (count >= 0 && !__builtin_mul_overflow((uint64_t)count, size, &bytes)) {
        memory = malloc(bytes ? bytes : 1);
    }
    if (!memory) {
        fail(what, "not enough memory for %lld items of %zu bytes", (long long)count, size);
    }
    return memory;
}

void *require_aligned(const char *what, int64_t count, size_t size)
{
    size_t bytes = 0;
    void *memory = NULL;

    if (count >= 0 && !__builtin_mul_overflow((uint64_t)count, size, &bytes) &&
        bytes <= SIZE_MAX - 64) {
        memory = aligned_alloc(64, (bytes + 64) & ~(size_t)63);
    }
    if (!memory) {
        fail(what, "not enough memory for %lld items of %zu bytes", (long long)count, size);
    }
    return memory;
}

/* ----------------------------------------------------------------------------- numbers ---- */

int64_t parse_integer(const char *field, const char *text, int64_t low, int64_t high)
{
    char *end = NULL;
    long long value = 0;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end) {
        fail(field, "'%s' is not a whole number", text);
    }
    if (errno == ERANGE || value < low || value > high) {
        fail(field, "%s is not in [%lld, %lld]", text, (long long)low, (long long)high);
    }
    return value;
}

uint64_t parse_unsigned(const char *field, const char *text, uint64_t high)
{
    const int hexadecimal = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    const char *digits = hexadecimal ? text + 2 : text;
    const char *allowed = hexadecimal ? "0123456789abcdefABCDEF" : "0123456789";
    unsigned long long value = 0;

    /* strtoull() would accept a sign, blanks and a second 0x, and wrap "-1" to 2^64 - 1. */
    if (!*digits || digits[strspn(digits, allowed)]) {
        fail(field, "'%s' is not a whole number >= 0", text);
    }
    errno = 0;
    value = strtoull(digits, NULL, hexadecimal ? 16 : 10);
    if (errno == ERANGE || value > high) {
        fail(field, "%s is not in [0, %llu]", text, (unsigned long long)high);
    }
    return value;
}

const char *format_range(float low, float high, char text[RANGE_BYTES])
{
    char least[16], most[16];

    snprintf(least, sizeof least, "[%g", (double)low);
    snprintf(most, sizeof most, "%g]", (double)high);
    snprintf(text, RANGE_BYTES, "%s, %s",
             low == FLT_TRUE_MIN ? "(0"
             : low == -FLT_MAX   ? "(-inf"
                                 : least,
             high == FLT_MAX ? "inf)" : most);
    return text;
}

float parse_float(const char *field, const char *text, float low, float high)
{
    char *end = NULL;
    float value = 0;

    errno = 0;
    value = strtof(text, &end);
    if (end == text || *end) {
        fail(field, "'%s' is not a number", text);
    }
    if (errno == ERANGE && fpclassify(value) == FP_ZERO) {
        fail(field, "%s is too small for float32", text);
    }
    if (!isfinite(value) || value < low || value > high) {
        char range[RANGE_BYTES];

        fail(field, "%s is not in %s", text, format_range(low, high, range));
    }
    return value;
}

int parse_integers(const char *field, const char *text, int64_t low, int64_t high, int64_t *values,
                   int capacity)
{
    char *copy = strdup(text);
    char *rest = copy;
    int count = 0;

    if (!copy) {
        fail(field, "not enough memory");
    }
    for (char *item = strsep(&rest, ","); item; item = strsep(&rest, ",")) {
        if (count == capacity) {
            fail(field, "more than %d numbers", capacity);
        }
        values[count++] = parse_integer(field, item, low, high);
    }
    free(copy);
    return count;
}

/* ------------------------------------------------------------------------------ device ---- */

gumbel_device_info describe_device(const gumbel_device *device)
{
    static const gumbel_error impossible = {"device", "it cannot be described"};
    gumbel_device_info info = {.struct_size = sizeof info};

    require_ok(gumbel_describe(device, &info), &impossible);
    return info;
}

bool device_is_cuda(const gumbel_device *device)
{
    const gumbel_device_info info = describe_device(device);

    return strncmp(info.name, "cuda", strlen("cuda")) == 0;
}

gumbel_device *open_device(const struct device_choice *choice)
{
    return open_device_on(choice, NULL, NULL);
}

gumbel_device *open_device_on(const struct device_choice *choice, gumbel_parallel_for parallel_for,
                              void *context)
{
    const gumbel_device_options options = {
        .struct_size = sizeof options,
        .device = choice->device,
        .isa = choice->isa,
        .threads = choice->threads,
        .parallel_for = parallel_for,
        .parallel_context = context,
    };
    gumbel_device *device = NULL;
    gumbel_error error = {"", ""};

    require_ok(gumbel_open(&options, &device, &error), &error);
    return device;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * What every command shares: how numbers are read, and how a device is opened. Every failure here
 * ends the program: a command line has one caller, the user, and one
 * answer, a line on stderr and an exit code.
 */
#ifndef GUMBEL_CLI_OPTIONS_H
#define GUMBEL_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "failure.h"
#include "gumbel/gumbel.h"

/* fail() with the library's own field and message unless `status` is GUMBEL_OK. */
void require_ok(gumbel_status status, const gumbel_error *error);

/* malloc and aligned_alloc that fail() instead of returning NULL; `count * size` is checked for
 * overflow. Release with free(). require_aligned() aligns to 64 bytes and rounds the size up. */
void *require_memory(const char *what, int64_t count, size_t size);
void *require_aligned(const char *what, int64_t count, size_t size);

/* Read the whole of `text` as a number in [low, high]; fail(field, ...) otherwise. Unsigned numbers
 * may be hexadecimal with 0x. What float32 would make 0 is refused where it is not. */
int64_t parse_integer(const char *field, const char *text, int64_t low, int64_t high);
uint64_t parse_unsigned(const char *field, const char *text, uint64_t high);
float parse_float(const char *field, const char *text, float low, float high);

/* [low, high] for a message: open at the smallest float32 above 0 and at the largest. Returns
 * `text`. */
enum { RANGE_BYTES = 40 };
const char *range_text(float low, float high, char text[RANGE_BYTES]);

/* Read a comma-separated list of integers in [low, high] into values[0..capacity); returns how
 * many, at least 1. */
int parse_integers(const char *field, const char *text, int64_t low, int64_t high, int64_t *values,
                   int capacity);

/* Which device a user wants. */
struct device_choice {
    const char *device; /* NULL: the library's default */
    gumbel_isa isa;
    int32_t threads; /* 0: the CPUs this process may use */
};

/* Whether a device draws from the memory of a GPU. */
bool device_is_cuda(const gumbel_device *device);

/* What an open device says of itself. */
gumbel_device_info describe_device(const gumbel_device *device);

/* Open the chosen device; fail() with the library's message where there is none. The second runs on
 * an engine's threads instead of its own; `context` must outlive the device. */
gumbel_device *open_device(const struct device_choice *choice);
gumbel_device *open_device_on(const struct device_choice *choice, gumbel_parallel_for parallel_for,
                              void *context);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by all commands: parsing of numbers, and opening a device. Every failure ends the program
 * with a line on stderr and an exit code.
 */
#ifndef GUMBEL_CLI_OPTIONS_H
#define GUMBEL_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "failure.h"
#include "gumbel/gumbel.h"

/* fail() with the library's field and message unless `status` is GUMBEL_OK. */
void require_ok(gumbel_status status, const gumbel_error *error);

/* malloc() and aligned_alloc() that fail() instead of returning NULL, also on overflow of count *
 * size. Release with free(). require_aligned() aligns to 64 bytes and rounds the size up. */
void *require_memory(const char *what, int64_t count, size_t size);
void *require_aligned(const char *what, int64_t count, size_t size);

/* Parses `text` as a number in [low, high]; fail(field, ...) otherwise. Unsigned numbers may be
 * hexadecimal with 0x. A number that float32 would round to 0 is an error. */
int64_t parse_integer(const char *field, const char *text, int64_t low, int64_t high);
uint64_t parse_unsigned(const char *field, const char *text, uint64_t high);
float parse_float(const char *field, const char *text, float low, float high);

/* Writes the interval [low, high] for a message, open at the smallest positive and the largest
 * float32. Returns `text`. */
enum { RANGE_BYTES = 40 };
const char *format_range(float low, float high, char text[RANGE_BYTES]);

/* Parses a comma-separated list of integers in [low, high] into values[0..capacity); returns their
 * number, at least 1. */
int parse_integers(const char *field, const char *text, int64_t low, int64_t high, int64_t *values,
                   int capacity);

/* The options that select a device. */
struct device_choice {
    const char *device; /* NULL: the library's default */
    gumbel_isa isa;
    int32_t threads; /* 0: the CPUs available to the process */
};

/* True for a device that draws from GPU memory. */
bool device_is_cuda(const gumbel_device *device);

/* gumbel_describe() of an open device. */
gumbel_device_info describe_device(const gumbel_device *device);

/* Opens the selected device; fail() with the library's message on an error. open_device_on() runs
 * on an engine's threads; `context` must outlive the device. */
gumbel_device *open_device(const struct device_choice *choice);
gumbel_device *open_device_on(const struct device_choice *choice, gumbel_parallel_for parallel_for,
                              void *context);

#endif

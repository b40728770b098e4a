/* SPDX-License-Identifier: Apache-2.0
 *
 * The two macros that carry all error flow of the entry points, and the one that asserts.
 */
#ifndef GUMBEL_CORE_FAIL_H
#define GUMBEL_CORE_FAIL_H

#include "gumbel/gumbel.h"

/* Fill *error, which may be NULL, and return `status`. `format` is printf's. */
gumbel_status gumbel_fail(gumbel_error *error, gumbel_status status, const char *field,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));

/* A float32 value in an error message: the shortest decimal that reads back as the same value, so
 * that 1.0000001 does not appear as 1. */
typedef struct gumbel_float_text {
    char text[24];
} gumbel_float_text;
gumbel_float_text gumbel_format_float(float value);

/* Return from the calling function with a bad-argument error when `condition` holds. */
#define GUMBEL_REFUSE_IF(condition, error, field, ...)                                             \
    do {                                                                                           \
        if (condition)                                                                             \
            return gumbel_fail(error, GUMBEL_ERROR_ARGUMENT, field, __VA_ARGS__);                  \
    } while (0)

/* Return from the calling function with the status of `call` unless it is GUMBEL_OK. */
#define GUMBEL_FORWARD(call)                                                                       \
    do {                                                                                           \
        gumbel_status forwarded_status = (call);                                                   \
        if (forwarded_status != GUMBEL_OK)                                                         \
            return forwarded_status;                                                               \
    } while (0)

/* What a reader would otherwise have to trust. Where the build defines GUMBEL_ASSERTIONS a false
 * one ends the program at its line, for a debugger to show; nothing is printed. Elsewhere the
 * condition is compiled, and not evaluated. */
#ifdef GUMBEL_ASSERTIONS
#define GUMBEL_ASSERT(condition)                                                                   \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            __asm__ volatile("" : : "i"(__LINE__)); /* keeps traps apart */                        \
            __builtin_trap();                                                                      \
        }                                                                                          \
    } while (0)
#else
#define GUMBEL_ASSERT(condition) ((void)sizeof((condition) ? 1 : 0))
#endif

#endif

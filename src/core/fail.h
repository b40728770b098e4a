/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors of the entry points, the two macros that return them, and assertions.
 */
#ifndef GUMBEL_CORE_FAIL_H
#define GUMBEL_CORE_FAIL_H

#include "gumbel/gumbel.h"

/* Fills *error, which may be NULL, and returns `status`. `format` is printf's. Readers see the
 * field in front of the message, so that the message must not begin with the field's name. */
gumbel_status gumbel_fail(gumbel_error *error, gumbel_status status, const char *field,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The shortest decimal that reads back as the same float32, so that error messages do not print
 * 1.0000001 as 1. */
typedef struct gumbel_float_text {
    char text[24];
} gumbel_float_text;
gumbel_float_text gumbel_format_float(float value);

/* The name of a field, by a format of printf; GUMBEL_REFUSE_IF() forms it only for an error. */
typedef struct gumbel_field_name {
    char text[48];
} gumbel_field_name;
gumbel_field_name gumbel_format_field(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* Returns GUMBEL_ERROR_ARGUMENT from the calling function if `condition` holds. Other arguments are
 * evaluated only then. */
#define GUMBEL_REFUSE_IF(condition, error, field, ...)                                             \
    do {                                                                                           \
        if (condition)                                                                             \
            return gumbel_fail(error, GUMBEL_ERROR_ARGUMENT, field, __VA_ARGS__);                  \
    } while (0)

/* Returns the status of `call` from the calling function unless it is GUMBEL_OK. */
#define GUMBEL_FORWARD(call)                                                                       \
    do {                                                                                           \
        gumbel_status forwarded_status = (call);                                                   \
        if (forwarded_status != GUMBEL_OK)                                                         \
            return forwarded_status;                                                               \
    } while (0)

/* Internal invariants. In builds with GUMBEL_ASSERTIONS a false condition traps at its line, for a
 * debugger to show; nothing is printed. In other builds it is compiled and not evaluated. */
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "core/fail.h"

#include <float.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A message must not repeat the last name of its field, which readers see in front of it. */
static void assert_no_repetition(const gumbel_error *error)
{
    const char *dot = strrchr(error->field, '.'), *name = dot ? dot + 1 : error->field;
    size_t length = strcspn(name, "[");
    GUMBEL_ASSERT(strncmp(error->message, name, length) != 0 ||
                  strncmp(error->message + length, " is ", 4) != 0);
}

gumbel_status gumbel_fail(gumbel_error *error, gumbel_status status, const char *field,
                          const char *format, ...)
{
    if (error) {
        va_list arguments;
        snprintf(error->field, sizeof error->field, "%s", field);
        va_start(arguments, format);
        vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
        assert_no_repetition(error);
    }
    return status;
}

gumbel_field_name gumbel_format_field(const char *format, ...)
{
    gumbel_field_name name;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name.text, sizeof name.text, format, arguments);
    va_end(arguments);
    return name;
}

gumbel_float_text gumbel_format_float(float value)
{
    gumbel_float_text shown;
    /* FLT_DIG digits may read back as a neighbour, FLT_DECIMAL_DIG never; NaN equals nothing. */
    for (int digits = FLT_DIG; digits <= FLT_DECIMAL_DIG; digits++) {
        snprintf(shown.text, sizeof shown.text, "%.*g", digits, (double)value);
        if (strtof(shown.text, NULL) == value)
            break;
    }
    return shown;
}

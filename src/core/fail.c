/* SPDX-License-Identifier: Apache-2.0 */
#include "core/fail.h"

#include <stdarg.h>
#include <stdio.h>

gumbel_status gumbel_fail(gumbel_error *error, gumbel_status status, const char *field,
                          const char *format, ...)
{
    if (error) {
        va_list arguments;
        snprintf(error->field, sizeof error->field, "%s", field);
        va_start(arguments, format);
        vsnprintf(error->message, sizeof error->message, format, arguments);
        va_end(arguments);
    }
    return status;
}

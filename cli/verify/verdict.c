/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>

#include "report.h"
#include "verify.h"

void record_verdict(struct verdicts *verdicts, enum outcome outcome, const char *name,
                    json_t *details, const char *format, ...)
{
    static const char *const words[] = {"passed", "FAILED", "skipped"};
    char text[256];
    va_list arguments;
    json_t *check = json_object();

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    verdicts->count[outcome]++;
    if (verdicts->print) {
        printf("%-7s  %-28s  %s\n", words[outcome], name, text);
        fflush(stdout);
    }
    json_put(check, "name", json_string(name));
    json_put(check, "outcome", json_string(outcome == FAILED ? "failed" : words[outcome]));
    json_put(check, "text", json_string(text));
    if (details) {
        json_object_update(check, details);
        json_decref(details);
    }
    json_array_append_new(verdicts->checks, check);
}

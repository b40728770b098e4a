/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "report.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "failure.h"

/* Prints a value on one line. */
static void print_flat(const json_t *value)
{
    if (json_dumpf(value, stdout, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)) != 0) {
        fail_late("stdout", "the result could not be written");
    }
}

static void print_entries(const json_t *entries)
{
    size_t i;
    json_t *entry;

    putchar('[');
    json_array_foreach (entries, i, entry) {
        fputs(i > 0 ? ",\n  " : "\n  ", stdout);
        print_flat(entry);
    }
    fputs("\n ]", stdout);
}

void print_json(json_t *object)
{
    const char *key, *separator = "";
    json_t *value;

    putchar('{');
    json_object_foreach (object, key, value) {
        printf("%s\n \"%s\": ", separator, key);
        if (json_is_object(json_array_get(value, 0))) {
            print_entries(value);
        } else {
            print_flat(value);
        }
        separator = ",";
    }
    puts("\n}");
    json_decref(object);
}

json_t *json_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

void json_put(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0) {
        fail_late(key, "the result could not be put into JSON");
    }
}

void finish_stdout(void)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fail_late("stdout", "%s", strerror(errno));
    }
}

/* ---------------------------------------------------------------------------- progress ---- */

static struct {
    const char *label;
    double started;
    double shown;
    int visible;
} progress;

void progress_start(const char *label)
{
    progress_clear();
    set_before_failure(progress_clear);
    progress.label = label;
    progress.started = seconds_now();
    progress.shown = 0;
}

void progress_update(int64_t done, int64_t total)
{
    const double now = seconds_now();

    if (now - progress.started < 1.0 || now - progress.shown < 0.1 || !isatty(STDERR_FILENO)) {
        return;
    }
    progress.shown = now;
    progress.visible = 1;
    fprintf(stderr, "\r\033[K%s: %.0f%%", progress.label,
            total > 0 ? 100.0 * (double)done / (double)total : 0.0);
}

void progress_show(const char *label)
{
    progress_start(label);
    if (isatty(STDERR_FILENO)) {
        progress.visible = 1;
        fprintf(stderr, "\r\033[K%s ...", label);
    }
}

void progress_clear(void)
{
    if (progress.visible) {
        fputs("\r\033[K", stderr);
        progress.visible = 0;
    }
}

/* ------------------------------------------------------------------------------- times ---- */

static int compare_doubles(const void *first, const void *second)
{
    const double a = *(const double *)first;
    const double b = *(const double *)second;

    return (a > b) - (a < b);
}

struct spread compute_spread(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return (struct spread){
        .least = values[0],
        .median = 0.5 * (values[(count - 1) / 2] + values[count / 2]),
        .p10 = values[(count - 1) / 10],
        .p90 = values[(count - 1) - (count - 1) / 10],
    };
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/files/json_file.h"

#include <stdarg.h>
#include <stdio.h>

json_t *json_document(const void *bytes, size_t size, json_numbers numbers, const char *file,
                      decoder_error *error)
{
    json_error_t problem;
    size_t flags = JSON_REJECT_DUPLICATES;
    if (numbers == JSON_NUMBERS_REAL) {
        flags |= JSON_DECODE_INT_AS_REAL;
    }
    json_t *root = json_loadb(bytes, size, flags, &problem);
    if (!root) {
        char place[48];
        snprintf(place, sizeof place, "line %d", problem.line);
        decoder_fail(error, file, place, "is not valid JSON: %s", problem.text);
        return NULL;
    }
    if (!json_is_object(root)) {
        decoder_fail(error, file, "line 1", "the document is not a JSON object");
        json_decref(root);
        return NULL;
    }
    return root;
}

json_t *json_value(const json_place *place, const char *key)
{
    json_t *value = json_object_get(place->object, key);
    return json_is_null(value) ? NULL : value;
}

int json_fail(const json_place *place, const char *key, const char *format, ...)
{
    char field[160];
    char text[320];
    snprintf(field, sizeof field, "%s%s%s", place->path, place->path[0] && key ? "." : "",
             key ? key : "");
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return decoder_fail(place->error, place->file, field, "%s", text);
}

/* 1 if `key` has a value, 0 if an optional value is absent, -1 with the error filled. */
static int find_value(const json_place *place, const char *key, bool required, json_t **value)
{
    *value = json_value(place, key);
    if (*value) {
        return 1;
    }
    return required ? json_fail(place, key, "is missing") : 0;
}

int json_integer_in(const json_place *place, const char *key, bool required, int64_t lo, int64_t hi,
                    int64_t *value)
{
    json_t *found;
    int state = find_value(place, key, required, &found);
    if (state <= 0) {
        return state;
    }
    if (!json_is_integer(found)) {
        return json_fail(place, key, "is not an integer");
    }
    int64_t number = json_integer_value(found);
    if (number < lo || number > hi) {
        return json_fail(place, key, "is %lld, not in [%lld, %lld]", (long long)number,
                         (long long)lo, (long long)hi);
    }
    *value = number;
    return 0;
}

int json_number_in(const json_place *place, const char *key, bool required, double lo, double hi,
                   double *value)
{
    json_t *found;
    int state = find_value(place, key, required, &found);
    if (state <= 0) {
        return state;
    }
    if (!json_is_number(found)) {
        return json_fail(place, key, "is not a number");
    }
    double number = json_number_value(found);
    if (!(number >= lo && number <= hi)) {
        return json_fail(place, key, "is %g, not in [%g, %g]", number, lo, hi);
    }
    *value = number;
    return 0;
}

int json_flag(const json_place *place, const char *key, bool required, bool *value)
{
    json_t *found;
    int state = find_value(place, key, required, &found);
    if (state <= 0) {
        return state;
    }
    if (!json_is_boolean(found)) {
        return json_fail(place, key, "is neither true nor false");
    }
    *value = json_is_true(found);
    return 0;
}

int json_text(const json_place *place, const char *key, bool required, const char **value)
{
    json_t *found;
    int state = find_value(place, key, required, &found);
    if (state <= 0) {
        return state;
    }
    if (!json_is_string(found)) {
        return json_fail(place, key, "is not a string");
    }
    *value = json_string_value(found);
    return 0;
}

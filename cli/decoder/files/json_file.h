/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads fields of a JSON document with their types and ranges, by Jansson.
 */
#ifndef DECODER_JSON_FILE_H
#define DECODER_JSON_FILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "decoder/error.h"

/* An object within a document, and its path for messages. */
typedef struct json_place {
    const char *file;     /* the file's name */
    const char *path;     /* "" for the root, else the object's path, such as "model" */
    const json_t *object; /* borrowed */
    decoder_error *error;
} json_place;

typedef enum json_numbers { JSON_NUMBERS_EXACT, JSON_NUMBERS_REAL } json_numbers;

/* json_document(): parses `size` bytes whose root must be an object. Errors are text after the
 * document, duplicate keys, NUL in strings, invalid UTF-8, numbers that overflow, and nesting
 * deeper than 2048.
 *  numbers  JSON_NUMBERS_EXACT, or JSON_NUMBERS_REAL: integers are read as reals, so that numbers
 *           above 63 bits are allowed (tokenizer_config.json has 10^30 for "no limit")
 *  returns  a reference to release with json_decref(); NULL with `error` filled. */
json_t *json_document(const void *bytes, size_t size, json_numbers numbers, const char *file,
                      decoder_error *error);

/* The value of `key`; NULL if it is absent or null. */
json_t *json_value(const json_place *place, const char *key);

/* Fills the error about `key` of the place and returns -1. `key` NULL: about the place itself. */
int json_fail(const json_place *place, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* json_integer_in(): an integer with lo <= value <= hi. If it is absent or null, the call fails if
 * `required`, and else leaves *value unchanged; so do the next three functions.
 *  returns  0; -1 with the error filled. */
int json_integer_in(const json_place *place, const char *key, bool required, int64_t lo, int64_t hi,
                    int64_t *value);

/* A number, integer or real, with lo <= value <= hi. */
int json_number_in(const json_place *place, const char *key, bool required, double lo, double hi,
                   double *value);

/* true or false. */
int json_flag(const json_place *place, const char *key, bool required, bool *value);

/* A string; borrowed from the document. */
int json_text(const json_place *place, const char *key, bool required, const char **value);

#endif /* DECODER_JSON_FILE_H */

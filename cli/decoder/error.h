/* SPDX-License-Identifier: Apache-2.0
 *
 * How the decoder says what went wrong: one line, "FILE: FIELD: what is wrong".
 */
#ifndef DECODER_ERROR_H
#define DECODER_ERROR_H

/* Filled by a call that fails, untouched by one that succeeds. One line, ends in NUL. */
typedef struct decoder_error {
    char message[512];
} decoder_error;

/* decoder_fail(): fill `error` and return -1, so that callers can `return decoder_fail(...)`.
 *  error   NULL is allowed and keeps nothing.
 *  file    the file at fault; NULL leaves it out.
 *  field   the field, tensor or argument at fault; NULL leaves it out.
 *  format  printf format of the rest. Control characters that came out of a file become '?', so
 *          that a message is always one line. */
int decoder_fail(decoder_error *error, const char *file, const char *field, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif /* DECODER_ERROR_H */

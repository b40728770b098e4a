/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors of the decoder: one line, "FILE: FIELD: MESSAGE".
 */
#ifndef DECODER_ERROR_H
#define DECODER_ERROR_H

#include "gumbel/gumbel.h"

/* Filled by a call that fails; unchanged by one that succeeds. One line, NUL-terminated. */
typedef struct decoder_error {
    char message[512];
} decoder_error;

/* decoder_fail(): fills `error` and returns -1, for `return decoder_fail(...)`.
 *  error   NULL is allowed.
 *  file    the file at fault; NULL: omitted.
 *  field   the field, tensor or argument at fault; NULL: omitted.
 *  format  printf format of the message. Control characters become '?', so that it is one line. */
int decoder_fail(decoder_error *error, const char *file, const char *field, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* decoder_fail() with the field and the message of a failed call of the library. */
int decoder_fail_call(decoder_error *error, const gumbel_error *problem);

#endif /* DECODER_ERROR_H */

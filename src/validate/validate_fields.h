/* SPDX-License-Identifier: Apache-2.0
 *
 * Validation of single fields: option structs, tensors, row parameters, slots and streams. The
 * functions return an error that names the field.
 */
#ifndef GUMBEL_VALIDATE_FIELDS_H
#define GUMBEL_VALIDATE_FIELDS_H

#include "core/problem.h"

/* Below this size, the product of two sizes fits in 64 bits. */
#define GUMBEL_SIZE_END (INT64_C(1) << 40)

/* Copies a caller's option struct, whose first field is its size, to `into`, [known] bytes. The
 * shorter struct of an older caller is padded with zeros. The longer struct of a newer caller is
 * accepted if all bytes beyond `known` are zero. `name` is for errors. */
gumbel_status gumbel_read_options(void *into, size_t known, const void *options, const char *name,
                                  gumbel_error *error);

/* Checks that `data` is aligned to its element size, `size` bytes; NULL is aligned. */
gumbel_status gumbel_check_aligned(const void *data, size_t size, const char *field,
                                   gumbel_error *error);

/* Checks a tensor and makes its stride explicit. */
gumbel_status gumbel_read_tensor(gumbel_tensor *tensor, const char *name, gumbel_error *error);

/* Checks a row parameter of `width` elements of `size` bytes, whose data may be NULL, and makes its
 * stride explicit: 0 if one value serves all rows. `rows`: the batch size, or the slot count. */
gumbel_status gumbel_read_rows(const void *data, size_t size, int64_t width, int64_t rows,
                               int64_t *stride, const char *field, gumbel_error *error);

/* Checks the slots of a batch; all fields are 0 if there are none. */
gumbel_status gumbel_check_slots(const gumbel_slots *slots, const char *field, gumbel_error *error);

/* Checks the values of slots in host memory. */
gumbel_status gumbel_check_host_slots(const gumbel_slots *slots, int64_t batch, const char *field,
                                      gumbel_error *error);

/* The number of rows of a call's row parameters, masks and histories. */
static inline int64_t gumbel_slot_count(const gumbel_slots *slots, int64_t batch)
{
    return slots->of_row ? slots->count : batch;
}

/* Checks that the stream is NULL, for devices with host memory. */
gumbel_status gumbel_check_host_stream(const void *stream, gumbel_error *error);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/validate_fields.h"

#include "core/fail.h"

#include <inttypes.h>

gumbel_status gumbel_read_options(void *into, size_t known, const void *options, const char *name,
                                  gumbel_error *error)
{
    size_t given;
    memset(into, 0, known);
    memcpy(&given, options, sizeof given);
    GUMBEL_REFUSE_IF(given < sizeof given || given % sizeof(void *) != 0, error, name,
                     "struct_size is %zu; set it to sizeof the struct", given);
    for (size_t i = known; i < given; i++)
        GUMBEL_REFUSE_IF(((const unsigned char *)options)[i] != 0, error, name,
                         "byte %zu is set, in a field that this version (%s) does not know", i,
                         gumbel_version_string());
    memcpy(into, options, given < known ? given : known);
    return GUMBEL_OK;
}

gumbel_status gumbel_check_aligned(const void *data, size_t size, const char *field,
                                   gumbel_error *error)
{
    GUMBEL_REFUSE_IF((uintptr_t)data % size != 0, error, field,
                     "the pointer is not aligned to %zu bytes", size);
    return GUMBEL_OK;
}

gumbel_status gumbel_read_rows(const void *data, size_t size, int64_t width, int64_t rows,
                               int64_t *stride, const char *field, gumbel_error *error)
{
    int64_t elements, bytes;
    GUMBEL_FORWARD(gumbel_check_aligned(data, size, field, error));
    if (*stride == GUMBEL_SAME || (!data && *stride == 0)) {
        *stride = 0;
        return GUMBEL_OK;
    }
#define STRIDE gumbel_format_field("%s.stride", field).text
    GUMBEL_REFUSE_IF(!data, error, STRIDE, "is %" PRId64 ", and data is NULL", *stride);
    if (*stride == 0)
        *stride = width;
    GUMBEL_REFUSE_IF(*stride < width, error, STRIDE,
                     "is %" PRId64 "; it must be 0, GUMBEL_SAME or at least %" PRId64, *stride,
                     width);
    GUMBEL_REFUSE_IF(__builtin_mul_overflow(rows, *stride, &elements) ||
                         __builtin_mul_overflow(elements, (int64_t)size, &bytes),
                     error, STRIDE,
                     "%" PRId64 " rows with stride %" PRId64 " are larger than any memory", rows,
                     *stride);
#undef STRIDE
    return GUMBEL_OK;
}

gumbel_status gumbel_check_slots(const gumbel_slots *slots, const char *field, gumbel_error *error)
{
    GUMBEL_FORWARD(gumbel_check_aligned(slots->of_row, sizeof *slots->of_row, field, error));
    GUMBEL_REFUSE_IF(
        slots->of_row ? slots->count < 1 || slots->count > GUMBEL_SIZE_END : slots->count != 0,
        error, field, "count is %" PRId64 "; it must be in 1..2^40, and 0 without of_row",
        slots->count);
    return GUMBEL_OK;
}

gumbel_status gumbel_check_host_slots(const gumbel_slots *slots, int64_t batch, const char *field,
                                      gumbel_error *error)
{
    for (int64_t b = 0; b < batch && slots->of_row; b++)
        GUMBEL_REFUSE_IF(slots->of_row[b] < 0 || slots->of_row[b] >= slots->count, error, field,
                         "of_row[%" PRId64 "] is %d; it must be in 0..%" PRId64, b,
                         (int)slots->of_row[b], slots->count - 1);
    return GUMBEL_OK;
}

static size_t element_size(gumbel_dtype dtype)
{
    switch (dtype) {
    case GUMBEL_FLOAT32:
        return 4;
    case GUMBEL_FLOAT16:
    case GUMBEL_BFLOAT16:
        return 2;
    }
    return 0;
}

gumbel_status gumbel_read_tensor(gumbel_tensor *t, const char *name, gumbel_error *error)
{
    size_t size = element_size(t->dtype);
    int64_t elements, bytes;
    GUMBEL_REFUSE_IF(size == 0, error, name,
                     "dtype is %d; known are 1 (float32), 2 (float16), 3 (bfloat16)",
                     (int)t->dtype);
    GUMBEL_REFUSE_IF(t->rows < 0 || t->cols < 0, error, name,
                     "shape is [%" PRId64 ", %" PRId64 "]; sizes cannot be negative", t->rows,
                     t->cols);
    GUMBEL_REFUSE_IF(t->stride != 0 && t->stride < t->cols, error, name,
                     "stride is %" PRId64 ", less than a row of %" PRId64 " elements", t->stride,
                     t->cols);
    if (t->stride == 0)
        t->stride = t->cols;
    GUMBEL_REFUSE_IF(t->reserved[0] || t->reserved[1], error, name, "a reserved field is not 0");
    GUMBEL_REFUSE_IF(__builtin_mul_overflow(t->rows, t->stride, &elements) ||
                         __builtin_mul_overflow(elements, (int64_t)size, &bytes),
                     error, name,
                     "[%" PRId64 ", %" PRId64 "] with stride %" PRId64 " is larger than any memory",
                     t->rows, t->cols, t->stride);
    GUMBEL_REFUSE_IF(!t->data && t->rows > 0 && t->cols > 0, error, name, "data is NULL");
    GUMBEL_REFUSE_IF((uintptr_t)t->data % size != 0, error, name,
                     "data is not aligned to its element size of %zu bytes", size);
    return GUMBEL_OK;
}

gumbel_status gumbel_check_host_stream(const void *stream, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(stream, error, "stream", "must be NULL on a CPU");
    return GUMBEL_OK;
}

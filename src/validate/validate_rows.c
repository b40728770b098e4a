/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/validate_rows.h"

#include "core/fail.h"
#include "core/row.h"

#include <inttypes.h>
#include <stdio.h>

/* The index of live row b's parameter; -1 after the last row. */
static int64_t find_parameter_index(const gumbel_problem *p, int64_t b, int64_t stride)
{
    int64_t live = p->sampling.live_rows ? *p->sampling.live_rows : p->batch;
    if (b >= live || (stride == 0 && b > 0))
        return -1;
    return stride ? gumbel_problem_slot(p, b) : 0;
}

gumbel_status gumbel_check_row_range(const gumbel_problem *p, const gumbel_row_f32 *rows,
                                     const gumbel_range *range, gumbel_error *error)
{
    int64_t place;
    for (int64_t b = 0; rows->data && (place = find_parameter_index(p, b, rows->stride)) >= 0;
         b++) {
        float value = rows->data[place * rows->stride];
        GUMBEL_REFUSE_IF(!(value >= range->low && value <= range->high), error,
                         gumbel_format_field("%s[%" PRId64 "]", range->field, place).text,
                         "is %s; it must be %s", gumbel_format_float(value).text, range->text);
    }
    return GUMBEL_OK;
}

gumbel_status gumbel_check_row_integers(const gumbel_problem *p, const gumbel_row_i32 *rows,
                                        const char *name, int32_t low, int32_t high,
                                        gumbel_error *error)
{
    int64_t place;
    for (int64_t b = 0; rows->data && (place = find_parameter_index(p, b, rows->stride)) >= 0;
         b++) {
        const int32_t value = rows->data[place * rows->stride];
#define FIELD gumbel_format_field("%s[%" PRId64 "]", name, place).text
        GUMBEL_REFUSE_IF(value < low && high == INT32_MAX, error, FIELD, "is %d; it must be >= %d",
                         (int)value, (int)low);
        GUMBEL_REFUSE_IF(value < low || value > high, error, FIELD, "is %d; it must be in %d..%d",
                         (int)value, (int)low, (int)high);
#undef FIELD
    }
    return GUMBEL_OK;
}

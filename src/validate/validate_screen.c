/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/validate.h"

#include "core/fail.h"

#include <inttypes.h>

gumbel_status gumbel_check_host_screen(const gumbel_problem *p, gumbel_screen_layout layout,
                                       gumbel_error *error)
{
    static const char field[] = "head.screen";
    gumbel_screen_header h;
    if (!p->screen)
        return GUMBEL_OK;
    memcpy(&h, p->screen, sizeof h);
    GUMBEL_REFUSE_IF(h.magic != GUMBEL_SCREEN_MAGIC || h.check != gumbel_screen_checksum(&h), error,
                     field, "gumbel_screen_prepare() did not write it");
    GUMBEL_REFUSE_IF(h.version != GUMBEL_SCREEN_VERSION || h.layout != (uint32_t)layout, error,
                     field, "it was written by another version, or for another kind of device");
    GUMBEL_REFUSE_IF(h.rows != p->vocab || h.columns != p->hidden_size, error, field,
                     "it is of weights [%" PRId64 ", %" PRId64 "], head.weight is [%" PRId64
                     ", %" PRId64 "]",
                     h.rows, h.columns, p->vocab, p->hidden_size);
    GUMBEL_REFUSE_IF(h.dtype != (uint32_t)p->weight.dtype, error, field,
                     "it is of weights of dtype %u, head.weight has %d", (unsigned)h.dtype,
                     (int)p->weight.dtype);
    GUMBEL_REFUSE_IF(h.list_max < 1 || h.list_max > GUMBEL_SCREEN_LIST_MAX, error, field,
                     "list_max is %d; it must be in 1..%d", (int)h.list_max,
                     GUMBEL_SCREEN_LIST_MAX);
    return GUMBEL_OK;
}

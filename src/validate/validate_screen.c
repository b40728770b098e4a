/* SPDX-License-Identifier: Apache-2.0 */
#include "validate/validate.h"

#include "core/fail.h"
#include "validate/validate_fields.h"

#include <inttypes.h>

gumbel_status gumbel_read_screen_options(gumbel_screen_options *into,
                                         const gumbel_screen_options *options, gumbel_error *error)
{
    *into = (gumbel_screen_options){.struct_size = sizeof *into};
    if (!options)
        return GUMBEL_OK;
    GUMBEL_FORWARD(gumbel_read_options(into, sizeof *into, options, "options", error));
    GUMBEL_REFUSE_IF(into->certificate != GUMBEL_SCREEN_PROBABLE &&
                         into->certificate != GUMBEL_SCREEN_CERTAIN,
                     error, "options.certificate",
                     "%d is no certificate; it must be GUMBEL_SCREEN_PROBABLE or "
                     "GUMBEL_SCREEN_CERTAIN",
                     (int)into->certificate);
    GUMBEL_REFUSE_IF(into->format != GUMBEL_SCREEN_BYTES && into->format != GUMBEL_SCREEN_NIBBLES,
                     error, "options.format",
                     "%d is no format; it must be GUMBEL_SCREEN_BYTES or GUMBEL_SCREEN_NIBBLES",
                     (int)into->format);
    return GUMBEL_OK;
}

gumbel_status gumbel_check_screen(const gumbel_screen *screen, size_t required, const char *data,
                                  const char *bytes, const char *format, gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!screen->data, error, data, "is NULL");
    GUMBEL_REFUSE_IF((uintptr_t)screen->data % GUMBEL_WORKSPACE_ALIGNMENT != 0, error, data,
                     "is not aligned to %d bytes", GUMBEL_WORKSPACE_ALIGNMENT);
    GUMBEL_REFUSE_IF(screen->bytes < required, error, bytes,
                     "is %zu; it must be at least gumbel_screen_size(), %zu", screen->bytes,
                     required);
    GUMBEL_REFUSE_IF(
        screen->format != GUMBEL_SCREEN_BYTES && screen->format != GUMBEL_SCREEN_NIBBLES, error,
        format, "%d is no format; it must be GUMBEL_SCREEN_BYTES or GUMBEL_SCREEN_NIBBLES",
        (int)screen->format);
    return GUMBEL_OK;
}

/* Whether a device whose default layout is `device` uses screens in layout `screen`. */
static int supports_layout(gumbel_screen_layout device, uint32_t screen)
{
    return screen == (uint32_t)device ||
           (device == GUMBEL_SCREEN_LAYOUT_CPU && screen == GUMBEL_SCREEN_LAYOUT_NIBBLES);
}

gumbel_status gumbel_check_host_screen(const gumbel_problem *p, gumbel_screen_layout layout,
                                       gumbel_error *error)
{
    static const char field[] = "head.screen";
    gumbel_screen_header h;
    if (!p->screen)
        return GUMBEL_OK;
    memcpy(&h, p->screen, sizeof h);
    GUMBEL_REFUSE_IF(h.magic != GUMBEL_SCREEN_MAGIC || h.check != gumbel_screen_checksum(&h), error,
                     field, "the header is not one that gumbel_screen_prepare() wrote");
    GUMBEL_REFUSE_IF(
        h.version != GUMBEL_SCREEN_VERSION || !supports_layout(layout, h.layout), error, field,
        "the screen was made by another version of libgumbel, or for another kind of device");
    GUMBEL_REFUSE_IF(h.rows != p->vocab || h.columns != p->hidden_size, error, field,
                     "the screen was made for weights [%" PRId64 ", %" PRId64
                     "], but head.weight is [%" PRId64 ", %" PRId64 "]",
                     h.rows, h.columns, p->vocab, p->hidden_size);
    GUMBEL_REFUSE_IF(h.dtype != (uint32_t)p->weight.dtype, error, field,
                     "the screen was made for weights of dtype %u, but head.weight has dtype %d",
                     (unsigned)h.dtype, (int)p->weight.dtype);
    GUMBEL_REFUSE_IF(h.list_max < 1 || h.list_max > GUMBEL_SCREEN_LIST_MAX, error, field,
                     "list_max is %d; it must be in 1..%d", (int)h.list_max,
                     GUMBEL_SCREEN_LIST_MAX);
    return GUMBEL_OK;
}

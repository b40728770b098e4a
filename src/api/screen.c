/* SPDX-License-Identifier: Apache-2.0
 *
 * Screens: size, preparation and verification.
 */
#include "gumbel/screen.h"

#include "core/backend.h"
#include "core/fail.h"
#include "validate/validate.h"

#include <inttypes.h>

/* Reads the weights into a problem without rows, and the offsets of their screen. */
static gumbel_status read_weight(gumbel_problem *p, gumbel_screen_offsets *offsets,
                                 const gumbel_device *device, const gumbel_tensor *weight,
                                 gumbel_error *error)
{
    GUMBEL_REFUSE_IF(!device, error, "device", "is NULL");
    GUMBEL_REFUSE_IF(!weight, error, "weight", "is NULL");
    if (!device->backend->screen_prepare)
        return gumbel_fail(error, GUMBEL_ERROR_UNSUPPORTED, "device",
                           "the device does not support screens: leave head.screen NULL");
    *p = (gumbel_problem){.weight = *weight, .vocab = weight->rows, .hidden_size = weight->cols};
    GUMBEL_FORWARD(gumbel_read_tensor(&p->weight, "weight", error));
    GUMBEL_REFUSE_IF(weight->rows < 1 || weight->rows > INT64_C(1) << 31, error, "weight",
                     "has %" PRId64 " rows; a screen takes 1..2^31", weight->rows);
    GUMBEL_REFUSE_IF(weight->cols < 1 || weight->cols > GUMBEL_SCREEN_COLUMNS_MAX, error, "weight",
                     "has %" PRId64 " columns; a screen takes 1..%d", weight->cols,
                     GUMBEL_SCREEN_COLUMNS_MAX);
    GUMBEL_REFUSE_IF(!gumbel_screen_find_offsets_as(device->backend->screen_layout, weight->rows,
                                                    weight->cols, offsets),
                     error, "weight", "the screen would be larger than any memory");
    return GUMBEL_OK;
}

gumbel_status gumbel_screen_size(const gumbel_device *device, const gumbel_tensor *weight,
                                 size_t *bytes, gumbel_error *error)
{
    static const char nowhere[GUMBEL_WORKSPACE_ALIGNMENT]
        __attribute__((aligned(GUMBEL_WORKSPACE_ALIGNMENT)));
    gumbel_problem problem;
    gumbel_screen_offsets offsets;
    GUMBEL_REFUSE_IF(!bytes, error, "bytes", "is NULL");
    GUMBEL_REFUSE_IF(!weight, error, "weight", "is NULL");
    gumbel_tensor shape = *weight;
    shape.data = shape.data ? shape.data : nowhere;
    GUMBEL_FORWARD(read_weight(&problem, &offsets, device, &shape, error));
    *bytes = offsets.bytes;
    return GUMBEL_OK;
}

gumbel_status gumbel_screen_prepare(gumbel_device *device, void *stream,
                                    const gumbel_tensor *weight,
                                    const gumbel_screen_options *options,
                                    const gumbel_screen *screen, gumbel_error *error)
{
    gumbel_problem problem;
    gumbel_screen_offsets offsets;
    gumbel_screen_options how;
    GUMBEL_FORWARD(read_weight(&problem, &offsets, device, weight, error));
    GUMBEL_FORWARD(gumbel_read_screen_options(&how, options, error));
    problem.stream = stream;
    GUMBEL_REFUSE_IF(!screen, error, "screen", "is NULL");
    GUMBEL_FORWARD(gumbel_check_screen(screen, offsets.bytes, "screen.data", "screen.bytes",
                                       "screen.format", error));
    problem.screen_format = how.format;
    if (device->backend->host_memory)
        GUMBEL_FORWARD(gumbel_check_host_stream(stream, error));
    else
        GUMBEL_REFUSE_IF(screen->format != how.format, error, "screen.format",
                         "is %d, but options.format is %d: set both to the format of the screen",
                         (int)screen->format, (int)how.format);
    return device->backend->screen_prepare(device, &problem, &how, screen->data, error);
}

gumbel_status gumbel_screen_verify(gumbel_device *device, void *stream, const gumbel_tensor *weight,
                                   const gumbel_screen *screen, gumbel_error *error)
{
    gumbel_problem problem;
    gumbel_screen_offsets offsets;
    GUMBEL_FORWARD(read_weight(&problem, &offsets, device, weight, error));
    GUMBEL_REFUSE_IF(!screen, error, "screen", "is NULL");
    GUMBEL_FORWARD(gumbel_check_screen(screen, offsets.bytes, "screen.data", "screen.bytes",
                                       "screen.format", error));
    problem.screen = screen->data;
    problem.screen_format = screen->format;
    problem.stream = stream;
    if (device->backend->host_memory) {
        GUMBEL_FORWARD(gumbel_check_host_stream(stream, error));
        GUMBEL_FORWARD(gumbel_check_host_screen(&problem, device->backend->screen_layout, error));
    }
    return device->backend->screen_verify(device, &problem, error);
}

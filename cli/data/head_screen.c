/* SPDX-License-Identifier: Apache-2.0 */
#include "head_screen.h"

#include "failure.h"
#include "number_pages.h"
#include "report.h"

struct head_screen head_screen_new(gumbel_device *device, const gumbel_tensor *weight,
                                   gumbel_screen_format format)
{
    const gumbel_screen_options options = {.struct_size = sizeof options, .format = format};
    struct head_screen screen = {.copy.format = format};
    gumbel_error error = {"", ""};

    if (gumbel_screen_size(device, weight, &screen.copy.bytes, &error) != GUMBEL_OK) {
        fail("--screen", "%s: %s", error.field, error.message);
    }
    screen.copy.data = map_pages("screen", screen.copy.bytes);
    screen.seconds = seconds_now();
    if (gumbel_screen_prepare(device, NULL, weight, &options, &screen.copy, &error) != GUMBEL_OK) {
        fail("--screen", "%s: %s", error.field, error.message);
    }
    screen.seconds = seconds_now() - screen.seconds;
    return screen;
}

void head_screen_free(struct head_screen *screen)
{
    if (screen->copy.data) {
        unmap_pages(screen->copy.data, screen->copy.bytes);
    }
    screen->copy = (gumbel_screen){NULL, 0, 0};
}

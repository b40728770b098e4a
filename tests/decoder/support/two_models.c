/* SPDX-License-Identifier: Apache-2.0 */
#include "two_models.h"

decoder *target, *small;
gumbel_device *device;

int open_models(void **state)
{
    const gumbel_device_options options = {.struct_size = sizeof options, .threads = 1};
    (void)state;
    if (decoder_open(MODELS_FOLDER "/kjv-target", 1, &target, NULL) != 0 ||
        decoder_open(MODELS_FOLDER "/kjv-draft", 1, &small, NULL) != 0) {
        return -1;
    }
    return gumbel_open(&options, &device, NULL) == GUMBEL_OK ? 0 : -1;
}

int close_models(void **state)
{
    (void)state;
    gumbel_close(device);
    decoder_close(target);
    decoder_close(small);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The bundled models and a device, each on one thread: nothing here depends on how many there are,
 * and other tests run beside these.
 */
#ifndef TEST_TWO_MODELS_H
#define TEST_TWO_MODELS_H

#include "decoder/decoder.h"

extern decoder *target, *small; /* small drafts for target */
extern gumbel_device *device;

/* cmocka set-up and tear-down of a group; they leave *state alone. */
int open_models(void **state);
int close_models(void **state);

#endif

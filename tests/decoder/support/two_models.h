/* SPDX-License-Identifier: Apache-2.0
 *
 * The bundled models and a device, each on one thread, because ctest runs other tests at the same
 * time.
 */
#ifndef TEST_TWO_MODELS_H
#define TEST_TWO_MODELS_H

#include "decoder/decoder.h"

extern decoder *target, *small; /* `small` drafts for `target` */
extern gumbel_device *device;

/* cmocka set-up and tear-down of a group; they do not use *state. */
int open_models(void **state);
int close_models(void **state);

#endif

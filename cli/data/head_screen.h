/* SPDX-License-Identifier: Apache-2.0
 *
 * The screen of an LM head, in the command's memory.
 */
#ifndef GUMBEL_CLI_HEAD_SCREEN_H
#define GUMBEL_CLI_HEAD_SCREEN_H

#include "gumbel/screen.h"

struct head_screen {
    gumbel_screen copy; /* for gumbel_head's field `screen`; data NULL: none */
    double seconds;     /* to prepare it */
};

/* Prepares a screen; fail() naming --screen on an error. Release it with head_screen_free(). */
struct head_screen head_screen_new(gumbel_device *device, const gumbel_tensor *weight,
                                   gumbel_screen_format format);
void head_screen_free(struct head_screen *screen);

#endif

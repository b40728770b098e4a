/* SPDX-License-Identifier: Apache-2.0
 *
 * The screen of an LM head, in the command's memory.
 */
#ifndef GUMBEL_CLI_HEAD_SCREEN_H
#define GUMBEL_CLI_HEAD_SCREEN_H

#include "gumbel/gumbel.h"

struct head_screen {
    gumbel_screen copy; /* for gumbel_head's field `screen`; data NULL: none */
    double seconds;     /* that making it took */
};

/* Makes the screen of `weight`. A failure ends the command with an error of --screen. Free with
 * head_screen_free(). */
struct head_screen head_screen_new(gumbel_device *device, const gumbel_tensor *weight);
void head_screen_free(struct head_screen *screen);

#endif

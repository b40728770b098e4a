/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of the rungs that would serve calls on a device; gumbel_explain() gives the details.
 */
#ifndef GUMBEL_CLI_RUNG_NAMES_H
#define GUMBEL_CLI_RUNG_NAMES_H

#include <jansson.h>

#include "gumbel/gumbel.h"

enum { RUNG_NAMES_BYTES = 64 };

/* Writes the names of the rungs of a call, such as "hopper, bounded", or why there is none. One of
 * head and logits is NULL. */
void find_rungs(const gumbel_device *device, const gumbel_head *head, const gumbel_logits *logits,
                const gumbel_sampling *sampling, const gumbel_output *output,
                char names[RUNG_NAMES_BYTES]);

/* Prints the rungs of usual calls on the device, a line a call. */
void print_rungs(const gumbel_device *device);

/* An object {call: {input and batch: rungs}}. */
json_t *rungs_to_json(const gumbel_device *device);

#endif

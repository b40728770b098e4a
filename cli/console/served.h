/* SPDX-License-Identifier: Apache-2.0
 *
 * Which rungs would serve calls on a device, by their names: gumbel_explain() tells more of one.
 */
#ifndef GUMBEL_CLI_SERVED_H
#define GUMBEL_CLI_SERVED_H

#include <jansson.h>

#include "gumbel/gumbel.h"

enum { SERVED_BYTES = 64 };

/* The rungs that would serve a call: "hopper", "hopper, bounded", or why none does. One of head and
 * logits is NULL. */
void served_by(const gumbel_device *device, const gumbel_head *head, const gumbel_logits *logits,
               const gumbel_sampling *sampling, const gumbel_output *output,
               char names[SERVED_BYTES]);

/* Print what serves usual calls on the device, a line each. */
void print_served(const gumbel_device *device);

/* The same as an object: {asked: {way and batch: rungs}}. */
json_t *served_to_json(const gumbel_device *device);

#endif

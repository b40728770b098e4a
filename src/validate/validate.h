/* SPDX-License-Identifier: Apache-2.0
 *
 * Validation of a call's arguments. The functions return an error that names the field; a problem
 * that they return holds only what backends may rely on.
 */
#ifndef GUMBEL_VALIDATE_VALIDATE_H
#define GUMBEL_VALIDATE_VALIDATE_H

#include "gumbel/screen.h"
#include "maths/screen_bound.h"
#include "validate/validate_lists.h"
#include "validate/validate_features.h"

/* Reads a head or logits, and the sampling parameters, into a problem. `layout` is the layout of
 * the device's screens, which determines the required size of the head's screen. */
gumbel_status gumbel_read_head(gumbel_problem *problem, gumbel_screen_layout layout,
                               const gumbel_head *head, const gumbel_sampling *sampling,
                               gumbel_error *error);
gumbel_status gumbel_read_logits(gumbel_problem *problem, const gumbel_logits *logits,
                                 const gumbel_sampling *sampling, gumbel_error *error);

/* Reads the sampling parameters of a problem whose batch and token range are set. */
gumbel_status gumbel_read_sampling(gumbel_problem *problem, const gumbel_sampling *sampling,
                                   gumbel_error *error);

/* Reads a call that computes noise, a problem without tensors: `count` tokens from `first_token`
 * on. */
gumbel_status gumbel_read_noise(gumbel_problem *problem, const gumbel_sampling *sampling,
                                int64_t batch, int64_t first_token, int64_t count,
                                gumbel_error *error);

/* Copies and checks all fields of a step; num_samples = 0 becomes 1. */
gumbel_status gumbel_read_step(gumbel_step *into, const gumbel_step *step, gumbel_error *error);

/* Copies and checks all fields of an output; tokens must be set if batch > 0. */
gumbel_status gumbel_read_output(gumbel_output *into, const gumbel_output *output, int64_t batch,
                                 gumbel_error *error);

/* Checks values that the host can read: temperatures, slots, live rows, and the row parameters
 * and lists of features; and that the stream is NULL. */
gumbel_status gumbel_check_host_sampling(const gumbel_problem *problem, gumbel_error *error);

/* Reads and checks the options of a screen, which may be NULL. */
gumbel_status gumbel_read_screen_options(gumbel_screen_options *into,
                                         const gumbel_screen_options *options, gumbel_error *error);

/* Checks that a screen's memory is not NULL, is aligned and has at least `required` bytes, and that
 * its format exists. The strings are the names of the fields, such as "head.screen.data". */
gumbel_status gumbel_check_screen(const gumbel_screen *screen, size_t required, const char *data,
                                  const char *bytes, const char *format, gumbel_error *error);

/* Checks that a problem's screen, in host memory, has the layout, shape and dtype of its weights.
 */
gumbel_status gumbel_check_host_screen(const gumbel_problem *problem, gumbel_screen_layout layout,
                                       gumbel_error *error);

#endif

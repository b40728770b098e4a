/* SPDX-License-Identifier: Apache-2.0
 *
 * Validation of everything that a caller hands over. After these, a problem holds only what the
 * backends may rely on.
 */
#ifndef GUMBEL_VALIDATE_VALIDATE_H
#define GUMBEL_VALIDATE_VALIDATE_H

#include "core/problem.h"
#include "maths/screen_bound.h"

/* Sizes up to here keep every product of two of them inside 64 bits. */
#define GUMBEL_SIZE_END (INT64_C(1) << 40)

/* Copy a caller's options struct of `given` bytes over the zeroed `known` bytes at `into`. A longer
 * struct of a newer caller passes if what this version does not know is zero. `name` is for
 * errors. */
gumbel_status gumbel_read_options(void *into, size_t known, const void *options, const char *name,
                                  gumbel_error *error);

/* Refuse a problem's screen, in host memory, that is not that of its weights by shape and dtype. */
gumbel_status gumbel_check_host_screen(const gumbel_problem *problem, gumbel_screen_layout layout,
                                       gumbel_error *error);

/* Check a tensor and make its stride explicit. */
gumbel_status gumbel_read_tensor(gumbel_tensor *tensor, const char *name, gumbel_error *error);

/* Data of elements of `size` bytes; NULL is aligned. */
gumbel_status gumbel_check_aligned(const void *data, size_t size, const char *field,
                                   gumbel_error *error);

/* A row parameter of `width` elements of `size` bytes, which may be absent: its alignment, and its
 * stride, which is made explicit: 0 where one value serves all. `rows` are those of the batch, or
 * slots. */
gumbel_status gumbel_read_rows(const void *data, size_t size, int64_t width, int64_t rows,
                               int64_t *stride, const char *field, gumbel_error *error);

/* Slots of a batch; absent ones are all zero. */
gumbel_status gumbel_check_slots(const gumbel_slots *slots, const char *field, gumbel_error *error);

/* What slots hold, where the host can read them. */
gumbel_status gumbel_check_host_slots(const gumbel_slots *slots, int64_t batch, const char *field,
                                      gumbel_error *error);

/* The rows that a batch's row parameters, masks and histories have. */
static inline int64_t gumbel_places(const gumbel_slots *slots, int64_t batch)
{
    return slots->of_row ? slots->count : batch;
}

/* `layout` is that of the device's screens; the size of the head's screen is checked against it. */
gumbel_status gumbel_read_head(gumbel_problem *problem, gumbel_screen_layout layout,
                               const gumbel_head *head, const gumbel_sampling *sampling,
                               gumbel_error *error);
gumbel_status gumbel_read_logits(gumbel_problem *problem, const gumbel_logits *logits,
                                 const gumbel_sampling *sampling, gumbel_error *error);

/* The parameters of a problem whose batch and range are known. */
gumbel_status gumbel_read_sampling(gumbel_problem *problem, const gumbel_sampling *sampling,
                                   gumbel_error *error);

/* A problem without tensors: noise of `count` tokens from `first_token` on, for `batch` rows. */
gumbel_status gumbel_read_noise(gumbel_problem *problem, const gumbel_sampling *sampling,
                                int64_t batch, int64_t first_token, int64_t count,
                                gumbel_error *error);

/* `step` in full length, with num_samples filled in. */
gumbel_status gumbel_read_step(gumbel_step *into, const gumbel_step *step, gumbel_error *error);

/* The stream of a call on a device whose memory is the host's: there is none. */
gumbel_status gumbel_check_host_stream(const void *stream, gumbel_error *error);

/* What only the host's eyes can check: temperatures, slots, how many rows live, what the request's
 * rows and lists hold, and that no stream is given. */
gumbel_status gumbel_check_host_sampling(const gumbel_problem *problem, gumbel_error *error);

/* `output` in full length; refused unless tokens is there when batch > 0. */
gumbel_status gumbel_read_output(gumbel_output *into, const gumbel_output *output, int64_t batch,
                                 gumbel_error *error);

/* ---------------------------------------- of a request (validate_request.c, validate_lists.c) */

/* Move transforms and truncation of a problem's sampling to their places, and set their bits. */
gumbel_status gumbel_read_request(gumbel_problem *problem, gumbel_error *error);

/* What the rows and lists of the request hold. */
gumbel_status gumbel_check_host_request(const gumbel_problem *problem, gumbel_error *error);

/* The bits that an output in full length asks for. */
uint32_t gumbel_output_request(const gumbel_output *output);

/* The field that a bit stands for, as "sampling.transforms.mask". */
const char *gumbel_request_field(gumbel_request bit);

/* `history` in full length, for `batch` rows. */
gumbel_status gumbel_read_history(gumbel_history *into, const gumbel_history *history,
                                  int64_t batch, const char *name, gumbel_error *error);

/* Lists that take values, or may not have any. */
gumbel_status gumbel_check_lists(const gumbel_token_lists *lists, int takes_values,
                                 const char *name, gumbel_error *error);

/* What lists hold, where the host can read them: offsets, ids, and values that are finite or -inf
 */
gumbel_status gumbel_check_host_lists(const gumbel_token_lists *lists, int64_t batch,
                                      const char *name, gumbel_error *error);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * An LM head in the memory of an NVIDIA GPU: each step uploads hidden states and downloads tokens.
 */
#ifndef GUMBEL_CLI_CUDA_HEAD_H
#define GUMBEL_CLI_CUDA_HEAD_H

#include "decoder/generate.h"

struct cuda_head;

/* Copies the weights of a decoder's head to the GPU of `device`, which must outlive the result.
 * Release it with cuda_head_free(), where NULL is allowed. */
struct cuda_head *cuda_head_new(gumbel_device *device, gumbel_tensor weight);
void cuda_head_free(struct cuda_head *head);

/* A generate_draw; `context` is a struct cuda_head. */
gumbel_status cuda_head_draw(void *context, const gumbel_head *head,
                             const gumbel_sampling *sampling, const gumbel_output *output,
                             gumbel_error *error);

/* The weights of the draft model's head, on the GPU: copied at the first call, and owned by
 * `head`. */
gumbel_tensor cuda_head_draft_weight(struct cuda_head *head, gumbel_tensor weight);

/* The device; the weights on the GPU; and a GPU workspace of at least `bytes`, valid until the next
 * call of cuda_head_workspace() or cuda_head_draw(). */
gumbel_device *cuda_head_device(const struct cuda_head *head);
gumbel_tensor cuda_head_weight(const struct cuda_head *head);
void *cuda_head_workspace(struct cuda_head *head, size_t bytes);

#endif

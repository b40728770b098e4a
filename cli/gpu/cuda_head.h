/* SPDX-License-Identifier: Apache-2.0
 *
 * An LM head that stays in the memory of an NVIDIA GPU while a text is written: the hidden states
 * of a step go there, its tokens come back.
 */
#ifndef GUMBEL_CLI_CUDA_HEAD_H
#define GUMBEL_CLI_CUDA_HEAD_H

#include "decoder/generate.h"

struct cuda_head;

/* Copy the weights of a decoder's head to the GPU of `device`, which must outlive this. Release it
 * with cuda_head_free(), where NULL is allowed. */
struct cuda_head *cuda_head_new(gumbel_device *device, gumbel_tensor weight);
void cuda_head_free(struct cuda_head *head);

/* A generate_draw; `context` is a struct cuda_head. */
gumbel_status cuda_head_draw(void *context, const gumbel_head *head,
                             const gumbel_sampling *sampling, const gumbel_output *output,
                             gumbel_error *error);

/* The weights of another head, on the GPU: those of the draft's model, of which there is one. They
 * are copied when they are first met, and stay as long as this. */
gumbel_tensor cuda_head_other(struct cuda_head *head, gumbel_tensor weight);

/* Its device; its weights, on the GPU; and memory there of at least so many bytes, which the next
 * call of this or of a draw may move. */
gumbel_device *cuda_head_device(const struct cuda_head *head);
gumbel_tensor cuda_head_weight(const struct cuda_head *head);
void *cuda_head_workspace(struct cuda_head *head, size_t bytes);

#endif

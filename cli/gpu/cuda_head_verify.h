/* SPDX-License-Identifier: Apache-2.0
 *
 * Verifies drafts by an LM head in the memory of an NVIDIA GPU.
 */
#ifndef GUMBEL_CLI_CUDA_HEAD_VERIFY_H
#define GUMBEL_CLI_CUDA_HEAD_VERIFY_H

#include "cuda_head.h"
#include "decoder/drafts/text_draws.h"

/* A text_verify; `context` is a struct cuda_head. */
gumbel_status cuda_head_verify(void *context, const gumbel_head *head, const gumbel_logits *logits,
                               const gumbel_sampling *sampling, const gumbel_draft *draft,
                               const gumbel_verified *verified, gumbel_error *error);

#endif

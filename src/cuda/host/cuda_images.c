/* SPDX-License-Identifier: Apache-2.0
 *
 * Includes the fat binaries that nvcc wrote to CUDA_IMAGE_FOLDER.
 */
#include "cuda/host/cuda_images.h"

#define IMAGE(name)                                                                                \
    __asm__(".pushsection .rodata\n"                                                               \
            ".balign 64\n"                                                                         \
            ".globl cuda_image_" #name "\n"                                                        \
            ".hidden cuda_image_" #name "\n"                                                       \
            ".type cuda_image_" #name ", %object\n"                                                \
            "cuda_image_" #name ":\n"                                                              \
            ".incbin \"" CUDA_IMAGE_FOLDER "/" #name ".fatbin\"\n"                                 \
            ".size cuda_image_" #name ", . - cuda_image_" #name "\n"                               \
            ".popsection\n")

IMAGE(advance);
IMAGE(allow);
IMAGE(allowed_fused);
IMAGE(allowed_product);
IMAGE(best);
IMAGE(entropy);
IMAGE(entropy_cluster);
IMAGE(top64_draw);
IMAGE(group_tokens);
IMAGE(drafts);
IMAGE(draw_allowed);
IMAGE(rule_drafts);
IMAGE(exchange);
IMAGE(finish);
IMAGE(fused_fallback_sm90);
IMAGE(fused_fallback_sm80);
IMAGE(fused_half_sm90);
IMAGE(fused_sm80);
IMAGE(fused_wide_sm80);
IMAGE(fused_sm90);
IMAGE(gather);
IMAGE(history);
IMAGE(make_lists);
IMAGE(watermark);
IMAGE(top64_select);
IMAGE(logits);
IMAGE(naive);
IMAGE(noise);
IMAGE(token_ids);
IMAGE(truncated_two_pass);
IMAGE(edit_logits);
IMAGE(truncated_naive);
IMAGE(truncated_blocks);
IMAGE(truncated_bounded);
IMAGE(truncated_pivots);
IMAGE(truncated_cluster);
IMAGE(truncated_grid);
IMAGE(program_blocks);
IMAGE(program_cluster);
IMAGE(program_grid);
IMAGE(program_pivots);
IMAGE(screen_draw);
IMAGE(screen_draw_sm80);
IMAGE(screen_make);
IMAGE(screen_rows);
IMAGE(screen_score);
IMAGE(screen_score_sm80);
IMAGE(softmax);

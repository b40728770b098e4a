/* SPDX-License-Identifier: Apache-2.0
 *
 * The compiled kernels in the library: a fat binary for each source file.
 */
#ifndef GUMBEL_CUDA_IMAGES_H
#define GUMBEL_CUDA_IMAGES_H

extern const unsigned char cuda_image_advance[];
extern const unsigned char cuda_image_allow[];
extern const unsigned char cuda_image_allowed_fused[];
extern const unsigned char cuda_image_allowed_product[];
extern const unsigned char cuda_image_best[];
extern const unsigned char cuda_image_entropy[];
extern const unsigned char cuda_image_entropy_cluster[];
extern const unsigned char cuda_image_top64_draw[];
extern const unsigned char cuda_image_group_tokens[];
extern const unsigned char cuda_image_drafts[];
extern const unsigned char cuda_image_draw_allowed[];
extern const unsigned char cuda_image_rule_drafts[];
extern const unsigned char cuda_image_exchange[];
extern const unsigned char cuda_image_finish[];
extern const unsigned char cuda_image_fused_fallback_sm90[];
extern const unsigned char cuda_image_fused_fallback_sm80[];
extern const unsigned char cuda_image_fused_half_sm90[];
extern const unsigned char cuda_image_fused_sm80[];
extern const unsigned char cuda_image_fused_wide_sm80[];
extern const unsigned char cuda_image_fused_sm90[];
extern const unsigned char cuda_image_gather[];
extern const unsigned char cuda_image_history[];
extern const unsigned char cuda_image_make_lists[];
extern const unsigned char cuda_image_watermark[];
extern const unsigned char cuda_image_top64_select[];
extern const unsigned char cuda_image_logits[];
extern const unsigned char cuda_image_naive[];
extern const unsigned char cuda_image_noise[];
extern const unsigned char cuda_image_token_ids[];
extern const unsigned char cuda_image_truncated_two_pass[];
extern const unsigned char cuda_image_edit_logits[];
extern const unsigned char cuda_image_truncated_naive[];
extern const unsigned char cuda_image_truncated_blocks[];
extern const unsigned char cuda_image_truncated_bounded[];
extern const unsigned char cuda_image_truncated_pivots[];
extern const unsigned char cuda_image_truncated_cluster[];
extern const unsigned char cuda_image_truncated_grid[];
extern const unsigned char cuda_image_program_blocks[];
extern const unsigned char cuda_image_program_cluster[];
extern const unsigned char cuda_image_program_grid[];
extern const unsigned char cuda_image_program_pivots[];
extern const unsigned char cuda_image_screen_draw[];
extern const unsigned char cuda_image_screen_draw_sm80[];
extern const unsigned char cuda_image_screen_make[];
extern const unsigned char cuda_image_screen_rows[];
extern const unsigned char cuda_image_screen_score[];
extern const unsigned char cuda_image_screen_score_sm80[];
extern const unsigned char cuda_image_softmax[];

#endif

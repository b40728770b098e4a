/* SPDX-License-Identifier: Apache-2.0
 *
 * Definitions that both tables of rungs use (cuda_product_rungs.c, cuda_row_rungs.c), and refusals.
 */
#ifndef GUMBEL_CUDA_REFUSALS_H
#define GUMBEL_CUDA_REFUSALS_H

#include "cuda/plan/cuda_plan.h"

/* Capabilities of a draw that reads its logits once. */
#define CAPABILITIES_OF_A_DRAW                                                                     \
    (GUMBEL_CAPABILITY_SAMPLES | GUMBEL_CAPABILITY_SOFT_CAP | GUMBEL_CAPABILITY_SCALE |            \
     GUMBEL_CAPABILITY_SUMMARIES)

/* Why a call does not allow few tokens; NULL if it does. From a quarter of a head on, the full pass
 * can be faster: a product of gathered weights serves eight rows at once. */
const char *cuda_refuse_many_allowed(const gumbel_problem *p);

/* Refusals of the rungs that serve rows. */
extern cuda_row_refusal cuda_draw_allowed_refuses, cuda_pivots_refuse, cuda_bounded_refuses,
    cuda_blocks_refuse, cuda_cluster_refuses, cuda_program_blocks_refuse,
    cuda_program_pivots_refuse, cuda_blocks_grid_refuse, cuda_grid_refuses,
    cuda_program_blocks_grid_refuse, cuda_program_pivots_grid_refuse, cuda_two_pass_refuses;

#endif

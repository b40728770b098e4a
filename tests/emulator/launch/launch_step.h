/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the kernels around a draw: drafts, histories, recent tokens and their lists,
 * lists of allowed tokens, best scores, entropies, tables of token ids, and draws of parts.
 */
#ifndef TESTS_EMULATOR_LAUNCH_STEP_H
#define TESTS_EMULATOR_LAUNCH_STEP_H

#include "drafts/rule_params.h"
#include "drafts/watermark_rows.h"
#include "cuda/common/cuda_params.h"
#include "cuda/common/cuda_parts.h"
#include "cuda/common/cuda_recent_params.h"
#include "cuda/common/cuda_truncated_params.h"

/* Work of residual draws from a draft's head beyond their lists: warps that searched again, their
 * tokens, and products of the head with a token. */
struct argmax_effort {
    int64_t races, tokens, products;
};

/* Each as the backend launches it. `random` is the state of the thread order, `what` is for
 * messages. Ends the program if threads deadlock. */
void emulate_expand_drafts(const gumbel_verification &v, uint64_t *random, const char *what);
void emulate_accept_drafts(const gumbel_verification &v, uint64_t *random, const char *what);
void emulate_expand_rule_drafts(const gumbel_rule_params &p, uint64_t *random, const char *what);
void emulate_sum_draft_masses(const gumbel_rule_params &p, uint64_t *random, const char *what);
void emulate_sum_draft_residuals(const gumbel_rule_params &p, uint64_t *random, const char *what);
argmax_effort emulate_draw_residuals(const gumbel_rule_params &p, uint64_t *random,
                                     const char *what);
void emulate_start_history(const cuda_history_params &p, uint64_t *random, const char *what);
void emulate_update_history(const cuda_history_params &p, uint64_t *random, const char *what);
void emulate_start_recent(const cuda_recent_params &p, uint64_t *random, const char *what);
void emulate_append_recent(const cuda_recent_params &p, uint64_t *random, const char *what);
void emulate_make_lists(const cuda_lists_params &p, uint64_t *random, const char *what);
void emulate_watermark(const gumbel_watermark_call &c, uint64_t *random, const char *what);
void emulate_best(const cuda_best_params &p, uint64_t *random, const char *what);
void emulate_entropy(const cuda_entropy_params &p, bool by_cluster, uint64_t *random,
                     const char *what);
void emulate_parts(const cuda_parts_params &p, uint64_t *random, const char *what);
void emulate_table_noise(const cuda_noise_params &p, int64_t ctas, uint64_t *random,
                         const char *what);
void emulate_map_token_ids(const cuda_token_ids_params &p, int64_t ctas, uint64_t *random,
                           const char *what);
void emulate_allow(const cuda_allow_params &p, uint64_t *random, const char *what);

#endif

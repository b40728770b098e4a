// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included after the stand-ins for the hardware's intrinsics; their headers come
// first, so that macros can observe their calls.
#include "launch_step.h"
#include "ptx_emulated.h"

#include "cuda/step/model_row.cuh"

namespace
{

argmax_effort effort;

} // namespace

#define draft_logprob(p, b, token) (effort.products++, draft_logprob(p, b, token))

#include "cuda/step/node_argmax.cuh"

#define argmax_above(argmax, begin, end, threshold)                                                \
    (effort.tokens += (end) - (begin), effort.races++, argmax_above(argmax, begin, end, threshold))

#include "cuda/logits/best.cu"
#include "cuda/logits/entropy.cu"
#include "cuda/logits/entropy_cluster.cu"
#include "cuda/logits/group_tokens.cu"
#include "cuda/step/drafts.cu"
#include "cuda/step/history.cu"
#include "cuda/step/make_lists.cu"
#include "cuda/step/rule_drafts.cu"
#include "cuda/step/token_ids.cu"

// The CTAs of a launch run one after the other, so shared memory may be static.
#undef __shared__
#define __shared__ static
#include "cuda/logits/allow.cu"
#include "cuda/step/watermark.cu"

#include "ctas.h"

namespace
{

template <class P, void (*kernel)(P)> void body(const void *argument)
{
    kernel(*(const P *)argument);
}

/* Runs a kernel whose only parameter is `p`. */
template <class P, void (*kernel)(P)>
void emulate(const P &p, int64_t ctas, int threads, size_t bytes, uint64_t *random,
             const char *what)
{
    run_ctas(body<P, kernel>, &p, {ctas, 1, threads, bytes, memories}, random, what);
}

int64_t ctas_of(int64_t items) { return (items + CUDA_THREADS - 1) / CUDA_THREADS; }

} // namespace

void emulate_expand_drafts(const gumbel_verification &v, uint64_t *random, const char *what)
{
    emulate<gumbel_verification, gumbel_expand_drafts>(v, ctas_of(v.rows), CUDA_THREADS, 0, random,
                                                       what);
}

void emulate_accept_drafts(const gumbel_verification &v, uint64_t *random, const char *what)
{
    const size_t bytes = (size_t)v.draft.max_nodes * sizeof(gumbel_node);
    emulate<gumbel_verification, gumbel_accept_drafts>(v, v.draft.requests, CUDA_DRAFT_THREADS,
                                                       bytes, random, what);
}

void emulate_expand_rule_drafts(const gumbel_rule_params &p, uint64_t *random, const char *what)
{
    const gumbel_verification &v = p.verification;
    emulate<gumbel_rule_params, gumbel_expand_rule_drafts>(
        p, ctas_of(std::max(v.rows, v.draft.requests)), CUDA_THREADS, 0, random, what);
}

void emulate_sum_draft_masses(const gumbel_rule_params &p, uint64_t *random, const char *what)
{
    emulate<gumbel_rule_params, gumbel_sum_draft_masses>(
        p, (p.proposal.supplied ? 1 : 2) * p.verification.rows * p.splits, CUDA_MASS_THREADS,
        CUDA_MASS_BYTES, random, what);
}

void emulate_sum_draft_residuals(const gumbel_rule_params &p, uint64_t *random, const char *what)
{
    emulate<gumbel_rule_params, gumbel_sum_draft_residuals>(
        p, p.verification.rows * p.splits, CUDA_MASS_THREADS, CUDA_MASS_BYTES, random, what);
}

argmax_effort emulate_draw_residuals(const gumbel_rule_params &p, uint64_t *random,
                                     const char *what)
{
    effort = {};
    const gumbel_draft &d = p.verification.draft;
    emulate<gumbel_rule_params, gumbel_draw_residuals>(
        p, d.requests * p.splits, CUDA_MASS_THREADS,
        CUDA_MASS_BYTES + (size_t)d.max_nodes * sizeof(gumbel_node), random, what);
    /* each counted by all lanes */
    return {effort.races / 32, effort.tokens / 32, effort.products / 32};
}

void emulate_start_history(const cuda_history_params &p, uint64_t *random, const char *what)
{
    emulate<cuda_history_params, gumbel_start_history>(p, p.tiles * p.batch, CUDA_THREADS, 0,
                                                       random, what);
}

void emulate_update_history(const cuda_history_params &p, uint64_t *random, const char *what)
{
    emulate<cuda_history_params, gumbel_update_history>(p, ctas_of(p.batch), CUDA_THREADS, 0,
                                                        random, what);
}

void emulate_start_recent(const cuda_recent_params &p, uint64_t *random, const char *what)
{
    emulate<cuda_recent_params, gumbel_start_recent>(p, p.tiles * p.call.batch, CUDA_THREADS, 0,
                                                     random, what);
}

void emulate_append_recent(const cuda_recent_params &p, uint64_t *random, const char *what)
{
    emulate<cuda_recent_params, gumbel_append_recent>(p, ctas_of(p.call.batch), CUDA_THREADS, 0,
                                                      random, what);
}

void emulate_make_lists(const cuda_lists_params &p, uint64_t *random, const char *what)
{
    emulate<cuda_lists_params, gumbel_make_row_lists>(
        p, p.call.batch, CUDA_LISTS_THREADS, CUDA_LISTS_BYTES(p.places, p.call.lists.capacity),
        random, what);
}

void emulate_watermark(const gumbel_watermark_call &c, uint64_t *random, const char *what)
{
    emulate<gumbel_watermark_call, gumbel_watermark_draws_of_rows>(
        c, c.rows, CUDA_WATERMARK_THREADS, 0, random, what);
}

void emulate_best(const cuda_best_params &p, uint64_t *random, const char *what)
{
    emulate<cuda_best_params, gumbel_list_best>(p, p.problem.batch, CUDA_THREADS, CUDA_BEST_BYTES,
                                                random, what);
}

void emulate_entropy(const cuda_entropy_params &p, bool by_cluster, uint64_t *random,
                     const char *what)
{
    const int64_t rows = p.problem.batch, ctas = CUDA_CLUSTER_CTAS;
    if (by_cluster)
        run_ctas(body<cuda_entropy_params, gumbel_row_entropy_by_cluster>, &p,
                 {rows * ctas, (int)ctas, CUDA_ENTROPY_THREADS, CUDA_ENTROPY_BYTES, memories},
                 random, what);
    else
        emulate<cuda_entropy_params, gumbel_row_entropy>(p, rows, CUDA_ENTROPY_THREADS,
                                                         CUDA_ENTROPY_BYTES, random, what);
}

void emulate_allow(const cuda_allow_params &p, uint64_t *random, const char *what)
{
    emulate<cuda_allow_params, gumbel_allow_tokens>(p, p.tiles * p.problem.batch, CUDA_THREADS, 0,
                                                    random, what);
}

void emulate_table_noise(const cuda_noise_params &p, int64_t ctas, uint64_t *random,
                         const char *what)
{
    emulate<cuda_noise_params, gumbel_make_table_noise>(p, ctas, CUDA_THREADS, 0, random, what);
}

void emulate_map_token_ids(const cuda_token_ids_params &p, int64_t ctas, uint64_t *random,
                           const char *what)
{
    emulate<cuda_token_ids_params, gumbel_replace_rows_by_ids>(p, ctas, CUDA_THREADS, 0, random,
                                                               what);
}

void emulate_parts(const cuda_parts_params &p, uint64_t *random, const char *what)
{
    const int64_t draws = p.problem.batch * p.problem.sampling.num_samples;
    const int64_t each = CUDA_PARTS_THREADS / 32;
    if (p.draws)
        emulate<cuda_parts_params, gumbel_update_stream_draws>(
            p, (draws + CUDA_PARTS_THREADS - 1) / CUDA_PARTS_THREADS, CUDA_PARTS_THREADS, 0, random,
            what);
    else
        emulate<cuda_parts_params, gumbel_draw_group_tokens>(p, (draws + each - 1) / each,
                                                             CUDA_PARTS_THREADS, 0, random, what);
}

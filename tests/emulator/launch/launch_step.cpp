// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included, so that what stands in for the hardware's words comes before them; and
// their headers before them, so that what they call can be watched.
#include "launch_step.h"
#include "ptx_words.h"

#include "cuda/step/weighed_row.cuh"

namespace
{

race_effort effort;

} // namespace

#define draft_logprob(p, b, token) (effort.products++, draft_logprob(p, b, token))

#include "cuda/step/draft_race.cuh"

#define race_above(race, begin, end, floor)                                                        \
    (effort.tokens += (end) - (begin), effort.races++, race_above(race, begin, end, floor))

#include "cuda/logits/best.cu"
#include "cuda/logits/draw_parts.cu"
#include "cuda/step/drafts.cu"
#include "cuda/step/history.cu"
#include "cuda/step/weigh_drafts.cu"

// The CTAs of a launch run one after the other, so that what one shares may be static.
#undef __shared__
#define __shared__ static
#include "cuda/logits/allow.cu"

#include "ctas.h"

namespace
{

template <class P, void (*kernel)(P)> void body(const void *argument)
{
    kernel(*(const P *)argument);
}

/* Run a kernel that is handed `p` alone. */
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

void emulate_expand_weighed(const gumbel_weighing &p, uint64_t *random, const char *what)
{
    const gumbel_verification &v = p.verification;
    emulate<gumbel_weighing, gumbel_expand_weighed>(p, ctas_of(std::max(v.rows, v.draft.requests)),
                                                    CUDA_THREADS, 0, random, what);
}

void emulate_weigh_drafts(const gumbel_weighing &p, uint64_t *random, const char *what)
{
    emulate<gumbel_weighing, gumbel_weigh_drafts>(
        p, (p.by.told ? 1 : 2) * p.verification.rows * p.parts, CUDA_MASS_THREADS, CUDA_MASS_BYTES,
        random, what);
}

void emulate_sum_drafts(const gumbel_weighing &p, uint64_t *random, const char *what)
{
    emulate<gumbel_weighing, gumbel_sum_drafts>(p, p.verification.rows * p.parts, CUDA_MASS_THREADS,
                                                CUDA_MASS_BYTES, random, what);
}

race_effort emulate_race_drafts(const gumbel_weighing &p, uint64_t *random, const char *what)
{
    effort = {};
    const gumbel_draft &d = p.verification.draft;
    emulate<gumbel_weighing, gumbel_race_drafts>(
        p, d.requests * p.parts, CUDA_MASS_THREADS,
        CUDA_MASS_BYTES + (size_t)d.max_nodes * sizeof(gumbel_node), random, what);
    return {effort.races / 32, effort.tokens / 32, effort.products / 32}; /* each by all lanes */
}

void emulate_start_history(const cuda_history_params &p, uint64_t *random, const char *what)
{
    emulate<cuda_history_params, gumbel_start_history>(p, p.slices * p.batch, CUDA_THREADS, 0,
                                                       random, what);
}

void emulate_update_history(const cuda_history_params &p, uint64_t *random, const char *what)
{
    emulate<cuda_history_params, gumbel_update_history>(p, ctas_of(p.batch), CUDA_THREADS, 0,
                                                        random, what);
}

void emulate_best(const cuda_best_params &p, uint64_t *random, const char *what)
{
    emulate<cuda_best_params, gumbel_list_best>(p, p.problem.batch, CUDA_THREADS, CUDA_BEST_BYTES,
                                                random, what);
}

void emulate_allow(const cuda_allow_params &p, uint64_t *random, const char *what)
{
    emulate<cuda_allow_params, gumbel_allow_tokens>(p, p.slices * p.problem.batch, CUDA_THREADS, 0,
                                                    random, what);
}

void emulate_parts(const cuda_parts_params &p, uint64_t *random, const char *what)
{
    const int64_t draws = p.problem.batch * p.problem.sampling.num_samples;
    const int64_t each = CUDA_PARTS_THREADS / 32;
    if (p.draws)
        emulate<cuda_parts_params, gumbel_add_part>(
            p, (draws + CUDA_PARTS_THREADS - 1) / CUDA_PARTS_THREADS, CUDA_PARTS_THREADS, 0, random,
            what);
    else
        emulate<cuda_parts_params, gumbel_draw_parts>(p, (draws + each - 1) / each,
                                                      CUDA_PARTS_THREADS, 0, random, what);
}

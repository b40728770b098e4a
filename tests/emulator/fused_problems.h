/* SPDX-License-Identifier: Apache-2.0
 *
 * Problems of kernels that multiply and draw, and the outputs of their launches.
 */
#ifndef TESTS_EMULATOR_FUSED_PROBLEMS_H
#define TESTS_EMULATOR_FUSED_PROBLEMS_H

extern "C" {
#include "outcome.h"
}
#include "launch_sm90.h"

/* A problem, and how it is launched. */
struct fused_problem {
    problem *generated;
    outcome_parts parts;
    int ctas;
    uint64_t random;
    char what[400];
};

/* Sets the outputs of a launch, poisoned, its tag, the thresholds of the launch before, and
 * poisoned summaries, which the caller frees. */
static inline void set_outputs(cuda_params *p, outcome *into, uint64_t tag, uint64_t *thresholds)
{
    const size_t draws = (size_t)(p->problem.batch * p->problem.sampling.num_samples);
    outcome_poison(into);
    p->output = into->output;
    if (!p->problem.with_mass)
        p->output.lse = p->output.logprobs = NULL;
    p->tag = tag;
    p->row_thresholds = thresholds;
    p->summaries =
        (gumbel_summary *)poisoned_workspace((size_t)p->splits * draws * sizeof *p->summaries);
}

#endif

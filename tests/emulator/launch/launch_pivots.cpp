// SPDX-License-Identifier: Apache-2.0
//
// The kernel is included after the stand-ins for the hardware's intrinsics; its header comes first,
// so that macros can observe its calls.
#include "launch_pivots.h"
#include "ctas.h"

#include "cuda/truncated/pivots/split_draw.cuh"
#include "cuda/truncated/pivots/truncated_pivots.cuh"

#include <cmath>

namespace
{

std::vector<pivot_paths> paths;

pivot_paths &path_of_row(const cuda_truncated_params &p)
{
    return paths[blockIdx.x / (unsigned)p.splits];
}

/* Replaces the likely score of every third row by one that no token reaches. */
float choose_least_score(const cuda_truncated_params &p, float least_score)
{
    const bool third = blockIdx.x / (unsigned)p.splits % 3 == 2;
    path_of_row(p).drawn_twice |= third && !std::isnan(least_score);
    return third ? least_score + 100.0f : least_score;
}

} // namespace

#define draw_from_split(row, filter, begin, least_score)                                           \
    (path_of_row(p).drawn_again = true,                                                            \
     draw_from_split(row, filter, begin, choose_least_score(p, least_score)))
#define sum_split_exactly(row) (path_of_row(p).summed_exactly = true, sum_split_exactly(row))

#include "cuda/truncated/pivots/truncated_pivots.cu"
#include "cuda/truncated/programs/program_pivots.cu"

namespace
{

void pivots_body(const void *argument)
{
    gumbel_truncated_pivots(*(const cuda_truncated_params *)argument);
}

void program_body(const void *argument)
{
    gumbel_program_pivots(*(const cuda_program_params *)argument);
}

} // namespace

std::vector<pivot_paths> emulate_pivots(const cuda_truncated_params &p, bool at_once,
                                        uint64_t *random, const char *what)
{
    paths.assign((size_t)p.problem.batch, {});
    run_ctas(pivots_body, &p,
             {p.problem.batch * p.splits, at_once ? p.splits : 1, CUDA_PIVOT_THREADS,
              CUDA_PIVOT_BYTES, memories},
             random, what);
    return paths;
}

std::vector<pivot_paths> emulate_program_pivots(const cuda_program_params &p, bool at_once,
                                                uint64_t *random, const char *what)
{
    const cuda_truncated_params &call = p.call;
    paths.assign((size_t)call.problem.batch, {});
    run_ctas(program_body, &p,
             {call.problem.batch * call.splits, at_once ? call.splits : 1, CUDA_PIVOT_THREADS,
              CUDA_PIVOT_BYTES, memories},
             random, what);
    return paths;
}

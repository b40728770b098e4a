// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included after the stand-ins for the hardware's intrinsics; their headers come
// first, so that macros can observe their calls.
#include "ptx_emulated.h"

#include "cuda/common/cta_counter.cuh"
#include "cuda/truncated/row/candidate_list.cuh"
#include "cuda/truncated/row/serve_row.cuh"

#include "ctas.h"
#include "launch_portable_rows.h"

namespace
{

int64_t served_from_candidates;

/* Counts a row once, by its first thread, if candidates serve it. */
template <class Source, class... Rest>
void serve_and_count(const cuda_truncated_params &p, const Source &source, Rest &...rest)
{
    served_from_candidates += !Source::is_row && threadIdx.x == 0;
    serve_row(p, source, rest...);
}

} // namespace

#define serve_row serve_and_count

/* The CTAs of a launch run one after the other, so shared memory may be static. */
#define truncated_shared static truncated_shared

#include "cuda/truncated/row/truncated_naive.cu"
#include "cuda/truncated/row/truncated_two_pass.cu"

namespace
{

void alone_body(const void *argument)
{
    gumbel_truncated_naive(*(const cuda_truncated_params *)argument);
}

void two_pass_body(const void *argument)
{
    gumbel_truncated_two_pass(*(const cuda_truncated_params *)argument);
}

} // namespace

void emulate_alone(const cuda_truncated_params &p, uint64_t *random, const char *what)
{
    run_ctas(alone_body, &p, {p.problem.batch, 1, kThreads, CUDA_EDIT_BYTES, memories}, random,
             what);
}

int64_t emulate_two_pass(const cuda_truncated_params &p, uint64_t *random, const char *what)
{
    served_from_candidates = 0;
    run_ctas(two_pass_body, &p,
             {p.problem.batch * p.splits, 1, kThreads, CUDA_TWO_PASS_BYTES, memories}, random,
             what);
    return served_from_candidates;
}

// SPDX-License-Identifier: Apache-2.0
//
// The kernel is included after the stand-ins for the hardware's intrinsics; its headers come first,
// so that macros can observe its calls.
#include "launch_cluster.h"
#include "ptx_emulated.h"

#include "cuda/truncated/cluster/cluster_serve.cuh"
#include "cuda/truncated/cluster/cluster_pivot.cuh"
#include "cuda/truncated/programs/program_gather.cuh"
#include "cuda/truncated/programs/program_pivot.cuh"

namespace
{

std::vector<cluster_path> paths;

/* Records how row b is served, by any thread. */
bool note_path(int64_t b, cluster_path path, bool served)
{
    if (served)
        paths[(size_t)b] = path;
    return served;
}

} // namespace

#define serve_by_pivots(p, source, b) note_path(b, CLUSTER_PIVOTED, serve_by_pivots(p, source, b))
#define serve_few_by_pivots(p, source, facts, b, seen)                                             \
    note_path(b, CLUSTER_PIVOTED_FEW, serve_few_by_pivots(p, source, facts, b, seen))
#define serve_program_by_pivots(p, source, b)                                                      \
    note_path(b, CLUSTER_PIVOTED, serve_program_by_pivots(p, source, b))
#define serve_by_mass(source, facts, wanted, b, seen, raw)                                         \
    note_path(b, CLUSTER_BY_MASS, serve_by_mass(source, facts, wanted, b, seen, raw))
#define serve_before_program(source, facts, required, b, flags, raw)                               \
    note_path(b, CLUSTER_BEFORE_PROGRAM,                                                           \
              serve_before_program(source, facts, required, b, flags, raw))
#define serve_by_passes(p, source, facts, b, seen, raw)                                            \
    (note_path(b, CLUSTER_BY_PASSES, true), serve_by_passes(p, source, facts, b, seen, raw))

#include "cuda/truncated/cluster/truncated_cluster.cu"
#include "cuda/truncated/programs/program_cluster.cu"

namespace
{

void cluster_body(const void *argument)
{
    gumbel_truncated_cluster(*(const cuda_truncated_params *)argument);
}

void program_body(const void *argument)
{
    gumbel_program_cluster(*(const cuda_program_params *)argument);
}

} // namespace

std::vector<cluster_path> emulate_cluster(const cuda_truncated_params &p, int64_t clusters,
                                          uint64_t *random, const char *what)
{
    size_t bytes = CUDA_CLUSTER_SHARED_BYTES + (size_t)p.split_size * sizeof(float);
    paths.assign((size_t)p.problem.batch, CLUSTER_LISTED);
    run_ctas(cluster_body, &p, {clusters * kClusterCtas, kClusterCtas, kThreads, bytes, memories},
             random, what);
    return paths;
}

cuda_program_params program_params_of(const cuda_truncated_params &call)
{
    const gumbel_programs &programs = call.problem.programs;
    cuda_program_params p = {};
    p.call = call;
    memcpy(p.rules, programs.rules, (size_t)programs.count * GUMBEL_PROGRAM_LENGTH);
    p.call.problem.programs.rules = nullptr; /* memory of the host */
    return p;
}

std::vector<cluster_path> emulate_programs(const cuda_truncated_params &call, uint64_t *random,
                                           const char *what)
{
    const cuda_program_params p = program_params_of(call);
    const size_t bytes = CUDA_CLUSTER_SHARED_BYTES + (size_t)call.split_size * sizeof(float);
    const int64_t clusters = 1 + random_below(random, (uint32_t)call.problem.batch);
    paths.assign((size_t)call.problem.batch, CLUSTER_LISTED);
    run_ctas(program_body, &p, {clusters * kClusterCtas, kClusterCtas, kThreads, bytes, memories},
             random, what);
    return paths;
}

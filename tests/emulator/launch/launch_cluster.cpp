// SPDX-License-Identifier: Apache-2.0
//
// The kernels are included after the stand-ins for the hardware's intrinsics.
#include "cluster_paths.h"

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

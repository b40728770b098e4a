// SPDX-License-Identifier: Apache-2.0
//
// The kernel is included, so that what stands in for the hardware's words comes before it; and its
// headers before it, so that what it calls can be watched.
#include "launch_team.h"
#include "ptx_words.h"

#include "cuda/request/team/request_team_draw.cuh"
#include "cuda/request/team/request_team_pivot.cuh"

namespace
{

std::vector<team_way> ways;

/* Note how row b is served, by any thread. */
bool note_way(int64_t b, team_way way, bool served)
{
    if (served)
        ways[(size_t)b] = way;
    return served;
}

} // namespace

#define serve_by_pivots(p, source, b) note_way(b, TEAM_PIVOTED, serve_by_pivots(p, source, b))
#define serve_few_by_pivots(p, source, facts, b, seen)                                             \
    note_way(b, TEAM_PIVOTED_FEW, serve_few_by_pivots(p, source, facts, b, seen))
#define serve_weighed(source, facts, wanted, b, seen, raw)                                         \
    note_way(b, TEAM_WEIGHED, serve_weighed(source, facts, wanted, b, seen, raw))
#define serve_team(p, source, facts, b, seen, raw)                                                 \
    (note_way(b, TEAM_WHOLE, true), serve_team(p, source, facts, b, seen, raw))

#include "cuda/request/team/request_team.cu"

namespace
{

void team_body(const void *argument)
{
    gumbel_request_team(*(const cuda_request_params *)argument);
}

} // namespace

std::vector<team_way> emulate_team(const cuda_request_params &p, int64_t clusters, uint64_t *random,
                                   const char *what)
{
    size_t bytes = CUDA_CLUSTER_SHARED_BYTES + (size_t)p.chunk * sizeof(float);
    ways.assign((size_t)p.problem.batch, TEAM_LISTED);
    run_ctas(team_body, &p, {clusters * kRanks, kRanks, kThreads, bytes, memories}, random, what);
    return ways;
}

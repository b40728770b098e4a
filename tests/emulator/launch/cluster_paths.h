/* SPDX-License-Identifier: Apache-2.0
 *
 * Records how rows are served by kernels of several CTAs a row, which are included after this file:
 * macros observe the calls of their headers.
 */
#ifndef TESTS_EMULATOR_CLUSTER_PATHS_H
#define TESTS_EMULATOR_CLUSTER_PATHS_H

#include "launch_cluster.h"
#include "ctas.h"

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

#endif

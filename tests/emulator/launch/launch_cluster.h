/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches, as fibers, the kernels that draw truncated rows by clusters, or by the CTAs of a
 * cooperative launch.
 */
#ifndef TESTS_EMULATOR_LAUNCH_CLUSTER_H
#define TESTS_EMULATOR_LAUNCH_CLUSTER_H

#include "cuda/common/cuda_program_params.h"

#include <vector>

/* How a row was served: from a list of the tokens that matter; from a list and the mass of all
 * tokens; by pivots among all tokens, also of a program, or among few; from a list that was
 * gathered before the program of the row; or by passes of the whole cluster, the last resort. */
enum cluster_path {
    CLUSTER_LISTED,
    CLUSTER_BY_MASS,
    CLUSTER_PIVOTED,
    CLUSTER_PIVOTED_FEW,
    CLUSTER_BEFORE_PROGRAM,
    CLUSTER_BY_PASSES,
    CLUSTER_PATHS
};

/* Runs the kernel over p.problem.batch rows by `clusters` clusters, one after the other. Returns
 * how each row was served; entries of rows that were not served are meaningless. `random` is the
 * state of the thread order, `what` is for messages. Ends the program if threads deadlock. */
std::vector<cluster_path> emulate_cluster(const cuda_truncated_params &p, int64_t clusters,
                                          uint64_t *random, const char *what);

/* As emulate_cluster(), by `groups` groups of CTAs of a cooperative launch; sets the splits. */
std::vector<cluster_path> emulate_grid(const cuda_truncated_params &p, int64_t groups,
                                       uint64_t *random, const char *what);

/* The parameters of kernels that draw rows by the programs of call.problem. */
cuda_program_params program_params_of(const cuda_truncated_params &call);

/* Runs the kernel that draws rows by the programs of p.problem, on a random number of clusters.
 * Returns how each row was served. */
std::vector<cluster_path> emulate_programs(const cuda_truncated_params &p, uint64_t *random,
                                           const char *what);

/* As emulate_programs(), by groups of CTAs of a cooperative launch; sets the splits. */
std::vector<cluster_path> emulate_program_grid(const cuda_truncated_params &p, uint64_t *random,
                                               const char *what);

#endif

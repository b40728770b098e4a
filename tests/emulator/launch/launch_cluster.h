/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the kernel that serves rows of requests by clusters, as fibers.
 */
#ifndef TESTS_EMULATOR_LAUNCH_CLUSTER_H
#define TESTS_EMULATOR_LAUNCH_CLUSTER_H

#include "cuda/common/cuda_request.h"

#include <vector>

/* How a row was served: by a list of the tokens that matter, from a list and the mass of all, by
 * pivots among all tokens or among few, or by the whole team, which what did not serve goes on to.
 */
enum cluster_path {
    CLUSTER_LISTED,
    CLUSTER_BY_MASS,
    CLUSTER_PIVOTED,
    CLUSTER_PIVOTED_FEW,
    CLUSTER_BY_PASSES,
    CLUSTER_PATHS
};

/* Run the kernel over p.problem.batch rows by some clusters, one after the other; how each row was
 * served, which says nothing of rows that are not. `random` is the state of the order in which
 * threads run, `what` is for messages. Ends the program where threads wait for ever. */
std::vector<cluster_path> emulate_cluster(const cuda_request_params &p, int64_t clusters,
                                          uint64_t *random, const char *what);

#endif

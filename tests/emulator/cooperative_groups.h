/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for CUDA's header of this name, for kernels that share functions with those of clusters
 * and call none of these: CTAs here run one after the other.
 */
#ifndef TESTS_EMULATOR_COOPERATIVE_GROUPS_H
#define TESTS_EMULATOR_COOPERATIVE_GROUPS_H

extern "C" {
#include "inputs.h"
}

namespace cooperative_groups
{

struct cluster_group {
    void sync() const { die("a CTA waits for its cluster, which is not emulated"); }
    template <class T> T *map_shared_rank(T *, int) const
    {
        die("a CTA reaches into another one, which is not emulated");
    }
};

static inline cluster_group this_cluster() { return {}; }

} // namespace cooperative_groups

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Stands in for CUDA's header of this name: clusters whose CTAs run at the same time.
 */
#ifndef TESTS_EMULATOR_COOPERATIVE_GROUPS_H
#define TESTS_EMULATOR_COOPERATIVE_GROUPS_H

#include "ctas.h"

namespace cooperative_groups
{

struct cluster_group {
    void barrier_arrive() const { fibers_arrive(); }
    void barrier_wait() const { fibers_await(); }
    void sync() const
    {
        barrier_arrive();
        barrier_wait();
    }

    /* The address in another CTA that corresponds to `own`. */
    template <class T> T *map_shared_rank(T *own, int rank) const
    {
        ptrdiff_t at = (unsigned char *)own - *cta_memory;
        if (rank < 0 || rank >= running.shape->cluster)
            die("%s: CTA %u reaches out of its cluster", running.what, blockIdx.x);
        if (at < 0 || at >= (ptrdiff_t)running.shape->shared_bytes)
            die("%s: CTA %u reaches for what is no CTA's", running.what, blockIdx.x);
        return (T *)(memories[rank] + at);
    }
};

static inline cluster_group this_cluster() { return {}; }

} // namespace cooperative_groups

#endif

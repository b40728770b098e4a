/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that are threads of one process and share a GPU: the transport of thread_ranks.h, plus
 * exchanges of device memory that are queued on a stream, like NCCL's collectives.
 */
#ifndef TESTS_QUEUED_RANKS_H
#define TESTS_QUEUED_RANKS_H

#include <gumbel/dist.h>

typedef struct queued_ranks queued_ranks;

/* The state that `ranks` threads share; free it after all of them have finished. */
queued_ranks *queued_ranks_make(int32_t ranks);
void queued_ranks_free(queued_ranks *shared);

/* The transport of one rank. */
gumbel_transport queued_ranks_transport(queued_ranks *shared, int32_t rank);

/* From now on all host collectives of this rank fail. */
void queued_ranks_fail_collectives(queued_ranks *shared, int32_t rank);

/* Returns how many host collectives rank 0 has run. */
int queued_ranks_count_collectives(const queued_ranks *shared);

#endif

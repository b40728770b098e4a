/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that are threads of one process and share a GPU: the transport of thread_ranks.h, with
 * exchanges of device memory, as NCCL has them among several GPUs.
 */
#ifndef TESTS_QUEUED_RANKS_H
#define TESTS_QUEUED_RANKS_H

#include <gumbel/dist.h>

typedef struct queued_ranks queued_ranks;

/* A meeting place of `ranks`; free it when all threads are done. */
queued_ranks *queued_ranks_make(int32_t ranks);
void queued_ranks_free(queued_ranks *place);

/* The transport of one rank. */
gumbel_transport queued_ranks_transport(queued_ranks *place, int32_t rank);

/* From now on the rank refuses all host collectives. */
void queued_ranks_refuse(queued_ranks *place, int32_t rank);

/* How many host collectives rank 0 has run. */
int queued_ranks_collectives(const queued_ranks *place);

#endif

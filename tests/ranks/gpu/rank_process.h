/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that is a process with a GPU of its own, the groups that it opens, and its tests.
 */
#ifndef TESTS_RANK_PROCESS_H
#define TESTS_RANK_PROCESS_H

#include "gpu_shards.h"

enum { RANKS_MAX = 8, TIMEOUT_MS = 6000 };

extern int32_t rank, ranks;
extern int failed_communicators;       /* a test that breaks a communicator increments it */
extern gumbel_peer_memory peer_memory; /* whether ranks exchange through peer memory */

/* Allocates memory that all processes share, before they are forked. Returns 0 without memory. */
int share_nccl_ids(void);

/* Opens a group of all processes. An error ends the program. */
gumbel_group *open_group(int64_t first_token, int64_t rows);

/* Prints the progress of a long test, at most once in five seconds. */
void print_progress(const char *what, int done, int count);

/* ranks_gpu_draws.c: draws from fixed problems, their graphs, and failing ranks. */
void draw_plain(void);
void replay_graphs(void);
void draw_fallback_rows(void);
void draw_with_different_parameters(void);
void draw_with_absent_rank(void);
void draw_with_killed_rank(void);

/* ranks_gpu_requests.c: requests of all kinds, and verified drafts. */
void draw_requests(void);
void draw_common_requests(void);
void verify_drafts(void);

#endif

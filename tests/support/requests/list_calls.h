/* SPDX-License-Identifier: Apache-2.0
 *
 * Random calls that make lists: rings that repeat themselves, and rules of every kind, some of them
 * off for a row.
 */
#ifndef TESTS_LIST_CALLS_H
#define TESTS_LIST_CALLS_H

#include "inputs.h"
#include <gumbel/recent.h>

/* Ids of rings, rules and lists are below this. */
enum { LIST_CALL_TOKENS = 40 };

/* A call and its memory. All pointers of the structs point into it. */
typedef struct list_call {
    gumbel_recent recent;
    gumbel_list_rules rules;
    gumbel_slots slots;
    gumbel_row_lists lists;
    int64_t batch, places; /* places: slots, or the batch without slots */
    void *memory[40];
    int blocks;
} list_call;

/* Generates call `seed`; its rings are filled through `device`. `offsets` etc. of lists are
 * poisoned. */
list_call *list_call_make(uint64_t seed, gumbel_device *device);
void list_call_free(list_call *call);

/* New outputs for the call: poisoned, owned by the call. */
gumbel_row_lists list_call_outputs(list_call *call);

/* Whether both lists and the statuses of two outputs have the same bytes. */
int list_call_same(const list_call *call, const gumbel_row_lists *a, const gumbel_row_lists *b);

/* Zeroed memory that is freed with the call. */
void *list_call_memory(list_call *call, size_t count, size_t size);

#endif

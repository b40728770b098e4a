/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of an engine with continuous batching: the parameters, mask and history of a row are in
 * its slot.
 */
#ifndef TESTS_SLOTTED_H
#define TESTS_SLOTTED_H

#include "requests.h"

/* A request whose rows' parameters, masks and histories lie in slots. Unused slots hold values that
 * no call may read. The request draws the tokens of `whole`. */
typedef struct slotted {
    request req;
    int64_t count;   /* slots */
    int32_t *of_row; /* [B] */
    void *owned[40];
    int owned_count;
} slotted;

slotted *slotted_make(const request *whole, uint64_t *random);
void slotted_free(slotted *generated);

#endif

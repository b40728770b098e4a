/* SPDX-License-Identifier: Apache-2.0
 *
 * A call of a soak in device memory: what it gives alone, and what it gives beside others.
 */
#ifndef TESTS_SOAK_CALL_H
#define TESTS_SOAK_CALL_H

#include "cuda_requests.h"
#include "soak_plan.h"

#include <gumbel/drafts.h>

/* One output among those of a step: where it begins and how many there are, in words of 4 bytes. */
typedef struct soak_place {
    const char *name;
    size_t at, count;
    int is_float;
} soak_place;

/* Arrays of rows, then arrays of requests. */
enum { SOAK_OF_ROWS = 10, SOAK_PLACES = 19 };

typedef struct soak_call {
    soak_plan plan;
    char text[640]; /* the plan in words */
    request *req;   /* in host memory, without tensors */
    gpu_request *on_gpu;
    void *spoilt; /* a copy of hidden states or logits that holds NaN and +inf; NULL where none */
    gumbel_screen screen; /* of the head; data NULL: none */
    soak_place places[SOAK_PLACES];
    size_t words; /* of a step's outputs */
    int slots;    /* steps whose outputs are kept: all, or the last */
    uint32_t *outputs, *ring;
    int64_t ring_length; /* 0: none */
    float *noise;
    gumbel_draft draft; /* where drafts are verified; its arrays are the call's */
    void *workspace;
    size_t workspace_bytes;
    uint32_t *wanted_outputs, *wanted_ring; /* in host memory */
    gpu_graph graph;                        /* the stream alone where nothing is captured */
} soak_call;

/* Make a call; its data is the pool's, at places that `seed` chooses. */
soak_call *soak_call_make(const soak_plan *plan, uint64_t seed);
void soak_call_free(soak_call *call);

/* Draw all steps with nothing beside them, without screens, one at a time, and keep what they give.
 */
void soak_call_expect(soak_call *call);

/* Whether the call is drawn by its screen. */
int soak_call_is_screened(const soak_call *call);

/* Compare a lone step with the CPU's, which the plan must suit. */
void soak_call_compare_cpu(soak_call *call);

/* Back to the start: positions, histories; outputs and workspace are poisoned. */
void soak_call_reset(soak_call *call);

/* Queue a step on the call's stream; or on the default stream, directly, without a screen, the
 * workspace poisoned. */
void soak_call_queue(soak_call *call, int step);
void soak_call_queue_alone(soak_call *call, int step);

/* Where drafts are verified: make them, of which many are what the target draws, when outputs and
 * workspace are there; verify them, and count what is emitted, as a step; how many requests there
 * are. */
void soak_drafts_make(soak_call *call, const gumbel_output *out, uint64_t *random);
void soak_drafts_free(soak_call *call);
size_t soak_drafts_workspace(const soak_call *call, const gumbel_output *rows);
void soak_drafts_queue(const soak_call *call, int slot, const gumbel_output *rows, CUstream stream);
int64_t soak_drafts_requests(const soak_plan *plan);

/* Output i of a step; NULL where the call has none. */
void *soak_place_of(const soak_call *call, int slot, int i);

/* Bytes of what a call keeps, and of a tensor. */
size_t soak_output_bytes(const soak_call *call);
size_t soak_ring_bytes(const soak_call *call);
size_t soak_tensor_bytes(const gumbel_tensor *t);

/* CHECK that what the steps left has the bits of soak_call_expect(). */
int soak_call_check(soak_call *call, const char *beside);

#endif

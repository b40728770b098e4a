/* SPDX-License-Identifier: Apache-2.0
 *
 * A call of the soak test, in device memory: its results alone, and its results beside other calls.
 */
#ifndef TESTS_SOAK_CALL_H
#define TESTS_SOAK_CALL_H

#include "cuda_requests.h"
#include "soak_plan.h"
#include "step_rules.h"

#include <gumbel/drafts.h>

/* One output array of a step: its offset and its length, in words of 4 bytes. */
typedef struct soak_place {
    const char *name;
    size_t at, count;
    int is_float;
} soak_place;

/* Number of output arrays: the first SOAK_OF_ROWS have an entry a row, the others one a request. */
enum { SOAK_OF_ROWS = 13, SOAK_PLACES = 22 };

typedef struct soak_call {
    soak_plan plan;
    char text[640]; /* the plan in words */
    request *req;   /* in host memory, without tensors */
    gpu_request *on_gpu;
    void *faulty;         /* a copy of hidden states or logits with NaN and +inf, or NULL */
    gumbel_screen screen; /* of the head; data NULL: none */
    soak_place places[SOAK_PLACES];
    size_t words; /* of a step's outputs */
    int slots;    /* steps whose outputs are kept: all, or the last */
    uint32_t *outputs, *ring;
    int64_t ring_length; /* 0: none */
    float *noise;
    gumbel_draft draft; /* if drafts are verified; the call owns its arrays */
    step_rules *rules;  /* if plan.rules; otherwise NULL, as is wanted_rules */
    void *workspace;
    size_t workspace_bytes;
    uint32_t *wanted_outputs, *wanted_ring; /* in host memory */
    char *wanted_rules;                     /* in host memory: the arrays of the rules */
    gpu_graph graph;                        /* only the stream is set if nothing is captured */
} soak_call;

/* Makes a call. Its data are in the pool, at offsets that `seed` determines. */
soak_call *soak_call_make(const soak_plan *plan, uint64_t seed);
void soak_call_free(soak_call *call);

/* Runs all steps alone, one at a time and without screens, and keeps their results. */
void soak_call_expect(soak_call *call);

/* Whether the library draws this call with its screen. */
int soak_call_is_screened(const soak_call *call);

/* Compares a step that runs alone with the CPU's results; for plans that
 * soak_plan_suits_cpu(). */
void soak_call_compare_cpu(soak_call *call);

/* Restores the initial positions and histories; poisons outputs and workspace. */
void soak_call_reset(soak_call *call);

/* Queues a step: on the call's stream, as a graph replay if plan.in_graph; or, `alone`, directly
 * on the default stream, without a screen and in a poisoned workspace. */
void soak_call_queue(soak_call *call, int step);
void soak_call_queue_alone(soak_call *call, int step);

/* For calls that verify drafts. soak_drafts_make() needs the call's outputs and workspace; many of
 * its drafts equal the target's draws. soak_drafts_queue() queues a step: it verifies the drafts
 * and counts the emitted tokens. soak_drafts_requests() returns the number of requests. */
void soak_drafts_make(soak_call *call, const gumbel_output *out, uint64_t *random);
void soak_drafts_free(soak_call *call);
size_t soak_drafts_workspace(const soak_call *call, const gumbel_output *rows);
void soak_drafts_queue(const soak_call *call, int slot, const gumbel_output *rows, CUstream stream);
int64_t soak_drafts_requests(const soak_plan *plan);

/* For calls with rules (step_rules.h); otherwise they do nothing. soak_rules_expect() keeps the
 * lists, rings and parameters after the last step alone; soak_rules_check() CHECKs that they have
 * these bits. soak_rules_host() makes the rules of a copy of the request in host memory, starts
 * them and makes their lists; soak_rules_compare() updates them after a draw, CHECKs that the GPU's
 * have the same bits, and frees them. */
void soak_rules_make(soak_call *call);
void soak_rules_free(soak_call *call);
void soak_rules_reset(const soak_call *call);
void soak_rules_queue_lists(const soak_call *call, CUstream stream);
void soak_rules_queue_updates(const soak_call *call, const gumbel_output *out, CUstream stream);
void soak_rules_expect(soak_call *call);
int soak_rules_check(const soak_call *call, const char *beside);
step_rules *soak_rules_host(const soak_call *call, request *host);
void soak_rules_compare(const soak_call *call, step_rules *host, const gumbel_output *out);

/* Output i of a step; NULL if the call does not request it. */
void *soak_place_of(const soak_call *call, int slot, int i);

/* Bytes of the outputs of all kept steps, of the ring, and of a tensor. */
size_t soak_output_bytes(const soak_call *call);
size_t soak_ring_bytes(const soak_call *call);
size_t soak_tensor_bytes(const gumbel_tensor *t);

/* CHECKs that the results of the steps have the bits that soak_call_expect() kept. */
int soak_call_check(soak_call *call, const char *beside);

#endif

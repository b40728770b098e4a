/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules that follow the drawn tokens: token lists and watermarks made from rings of recent tokens,
 * and row parameters that change from step to step. They are the state of a decode loop, in host
 * memory or on a GPU, with the same contents in both.
 */
#ifndef TESTS_STEP_RULES_H
#define TESTS_STEP_RULES_H

#include "requests.h"

#include <gumbel/watermark.h>

/* Memory of a device. `copy` allocates, `release` frees. */
typedef struct step_memory {
    void *(*copy)(const void *from, size_t bytes);
    void (*put)(void *to, const void *from, size_t bytes);
    void (*release)(void *memory);
} step_memory;

extern const step_memory step_host_memory;

/* The state; all pointers are to memory of the device, unless noted. */
typedef struct step_rules {
    int64_t batch;
    const step_memory *memory;
    gumbel_recent recent;
    gumbel_token_lists texts; /* the first tokens of the rings */
    gumbel_list_rules rules;
    gumbel_row_lists lists;
    gumbel_rule_updates updates;
    gumbel_watermark watermark;
    gumbel_watermark_draws draws;
    /* In host memory: the values before the first step. */
    float *first_surprise, *first_top_p, *first_adaptive;
    void *owned[48];
    int owned_count;
} step_rules;

/* Makes the state of a request with this plan; its seed determines the contents. */
step_rules *step_rules_make(const request_plan *plan, const step_memory *memory);
void step_rules_free(step_rules *s);

/* Lets a request, whose memory is the device's, read lists and parameters. Its `programs`, NULL if
 * it has none, then have the updated surprise or target of ADAPTIVE_P, and its truncation has the
 * updated top_p. The rings count tokens in its history, if it has one. The seeds are those of
 * watermarks. */
void step_rules_attach(step_rules *s, request *req, gumbel_programs *programs);

/* Restores rings, history and parameters to their state before the first step. */
gumbel_status step_rules_start(const step_rules *s, gumbel_device *device, void *stream,
                               gumbel_error *error);

/* Makes the lists and the seeds for the next draw. */
gumbel_status step_rules_list(const step_rules *s, gumbel_device *device, void *stream,
                              gumbel_error *error);

/* Appends the first of each row's `samples` tokens to its ring, and updates the parameters of
 * programs. `logprobs` have the shape of the tokens; NULL: only top_p changes. */
gumbel_status step_rules_follow(const step_rules *s, gumbel_device *device, void *stream,
                                const int32_t *tokens, const float *logprobs, int32_t samples,
                                gumbel_error *error);

/* An array that the calls above write. */
typedef struct step_array {
    const char *name;
    void *data;
    size_t bytes;
} step_array;

enum { STEP_ARRAYS = 15 };

void step_rules_arrays(const step_rules *s, step_array arrays[STEP_ARRAYS]);

#endif

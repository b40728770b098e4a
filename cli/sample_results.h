/* SPDX-License-Identifier: Apache-2.0
 *
 * What `gumbel sample` gives: B rows of S draws, as .npy files or JSON.
 */
#ifndef GUMBEL_CLI_SAMPLE_RESULTS_H
#define GUMBEL_CLI_SAMPLE_RESULTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "gumbel/gumbel.h"

/* Every array of `output` is there. Release it with results_free(). */
struct results {
    int64_t batch;
    int64_t samples;
    gumbel_output output;
};

/* The .npy files to write; NULL for those not wanted. */
struct result_paths {
    const char *tokens;   /* int32 [B, S] */
    const char *logprobs; /* float32 [B, S] */
    const char *scores;   /* float32 [B, S] */
    const char *lse;      /* float32 [B] */
    const char *status;   /* int32 [B] */
};

bool results_have_path(const struct result_paths *paths);

/* fail() where a folder is missing or read-only: before the work, not after it. */
void results_check_paths(const struct result_paths *paths);

struct results results_new(int64_t batch, int64_t samples);
void results_free(struct results *results);

/* Write the files that are wanted; each appears complete or not at all. */
void results_write(const struct results *results, const struct result_paths *paths);

json_t *results_to_json(const struct results *results);

#endif

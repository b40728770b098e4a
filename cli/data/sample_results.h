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

/* The arrays of a gumbel_output, in the order of the JSON. */
enum result {
    RESULT_TOKENS,
    RESULT_LOGPROBS,
    RESULT_SCORES,
    RESULT_LSE,
    RESULT_STATUS,
    RESULT_RANKS,
    RESULT_KEPT,
    RESULT_TOP_IDS,
    RESULT_TOP_LOGPROBS,
    RESULT_BEST_IDS,
    RESULT_BEST_SCORES,
    RESULT_COUNT,
};

/* What is wanted beside the first five arrays, which always are. */
struct results_wanted {
    bool ranks;
    bool kept;
    int32_t num_top;  /* 0: no top arrays */
    int32_t num_best; /* 0: no arrays of best scores */
    bool raw;         /* log-probabilities of the logits as they are */
};

/* Release it with results_free(). */
struct results {
    int64_t batch;
    int64_t samples;
    void *arrays[RESULT_COUNT]; /* NULL: not wanted */
    gumbel_output output;       /* the same arrays */
};

/* The .npy files to write; NULL for those not wanted. */
struct result_paths {
    const char *of[RESULT_COUNT];
};

bool results_have_path(const struct result_paths *paths);

/* fail() where a path cannot be written, or two lead to the same file: before the work, not after
 * it. `json`: the results go to stdout, too. */
void results_check_paths(const struct result_paths *paths, bool json);

/* fail() if a path leads to the input file `name` of `option`, which would be lost. `name` NULL is
 * no file. */
void results_check_input(const struct result_paths *paths, const char *option, const char *name);

struct results results_new(int64_t batch, int64_t samples, const struct results_wanted *wanted);
void results_free(struct results *results);

/* Write the files that are wanted; each appears complete or not at all (decoder/output_file.h). */
void results_write(const struct results *results, const struct result_paths *paths);

json_t *results_to_json(const struct results *results);

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Results of `gumbel sample`: B rows of S draws, as .npy files or JSON.
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

/* The arrays to compute beside the first five. */
struct result_choice {
    bool ranks;
    bool kept;
    int32_t num_top;  /* 0: no top arrays */
    int32_t num_best; /* 0: no arrays of best scores */
    bool raw;         /* log-probabilities of the raw logits */
};

/* Release it with results_free(). */
struct results {
    int64_t batch;
    int64_t samples;
    void *arrays[RESULT_COUNT]; /* NULL: not computed */
    gumbel_output output;       /* the same arrays */
};

/* Paths of the .npy files to write, or NULL. */
struct result_paths {
    const char *of[RESULT_COUNT];
};

bool results_have_path(const struct result_paths *paths);

/* fail() if a path cannot be written, or two paths name one file; called before the work. `json`:
 * results are also printed on stdout. */
void results_check_paths(const struct result_paths *paths, bool json);

/* fail() if a path names the input file `name` of `option`, which would be overwritten. NULL: no
 * file. */
void results_check_input(const struct result_paths *paths, const char *option, const char *name);

struct results results_new(int64_t batch, int64_t samples, const struct result_choice *wanted);
void results_free(struct results *results);

/* Writes the files; each appears complete or not at all (decoder/output_file.h). */
void results_write(const struct results *results, const struct result_paths *paths);

json_t *results_to_json(const struct results *results);

#endif

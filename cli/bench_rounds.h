/* SPDX-License-Identifier: Apache-2.0
 *
 * The timed half of `gumbel bench`: a synthetic head, the ways to draw from it, and rounds in which
 * every way is timed once, so that a slow moment of the machine hits all of them alike.
 */
#ifndef GUMBEL_CLI_BENCH_ROUNDS_H
#define GUMBEL_CLI_BENCH_ROUNDS_H

#include <stdbool.h>
#include <stdint.h>

#include "gumbel/gumbel.h"
#include "report.h"

enum way {
    WAY_READ,         /* read the weights, nothing else */
    WAY_PRODUCT,      /* gumbel_multiply() */
    WAY_FUSED,        /* gumbel_sample() */
    WAY_MATERIALISED, /* gumbel_multiply(), then [B, V] stores, softmax and inverse CDF */
    WAY_LOGITS,       /* gumbel_sample_logits() on float32 [B, V] */
    WAY_LOGITS_ONE,   /* the same on one thread */
    WAYS,
};
extern const char *const way_names[WAYS];

/* What all batch sizes share. Release it with bench_free(). */
struct bench {
    gumbel_device *device;
    gumbel_device *single; /* one thread, the same ISA */
    gumbel_device_info info;
    int64_t vocab;
    int64_t hidden_size;
    gumbel_dtype dtype;
    int64_t most_rows;
    bool logprobs;                 /* ask for log-probabilities too */
    void *weights;                 /* [V, D] */
    void *hidden;                  /* [most_rows, D] */
    float *logits;                 /* [most_rows, V] those of weights and hidden */
    float *stored, *probabilities; /* [most_rows, V] */
};

/* Fill weights and hidden states with numbers whose logits have a standard deviation near
 * sqrt(D / 2048) * 3.2, compute the logits. Device fields, sizes and dtype are set by the caller.
 */
void bench_prepare(struct bench *bench);
void bench_free(struct bench *bench);

/* Bytes of the weights. */
size_t bench_weight_bytes(const struct bench *bench);

/* The first row whose token or score differs between fused and from logits; -1 where none does. */
int64_t bench_check(const struct bench *bench);

struct bench_result {
    int64_t batch;
    size_t workspace_bytes;
    struct spread seconds[WAYS];
    double to_product[WAYS];      /* median over rounds of time / time of WAY_PRODUCT */
    double to_materialised[WAYS]; /* likewise */
};

/* Time `rounds` rounds of every way with `batch` rows, after one that does not count. */
struct bench_result bench_rounds(const struct bench *bench, int64_t batch, int rounds);

/* Pages for large buffers, huge where the system gives them; fail() where there are none. */
void *map_pages(const char *what, size_t bytes);
void unmap_pages(void *pages, size_t bytes);

/* Fill bytes at `pages`, a multiple of 8, with random numbers of either sign with magnitudes in
 * [2^exponent, 2^(exponent + 1)), exponent in -14..15; equal for equal `stream`s. */
void fill_numbers(void *pages, size_t bytes, gumbel_dtype dtype, int exponent, uint64_t stream,
                  int32_t threads);

#endif

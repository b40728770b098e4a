/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the sources of `gumbel bench`: a synthetic head, the ways to draw from it, and rounds
 * that time every way once, so that a slow moment of the machine affects all ways.
 */
#ifndef GUMBEL_CLI_BENCH_H
#define GUMBEL_CLI_BENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "gumbel/gumbel.h"
#include "options.h"
#include "report.h"
#include "rung_names.h"

enum way {
    WAY_READ,         /* read the weights, nothing else */
    WAY_PRODUCT,      /* gumbel_multiply() */
    WAY_FUSED,        /* gumbel_sample() */
    WAY_SCREENED,     /* CPU: gumbel_sample() with a screen */
    WAY_GEMM,         /* CUDA: cuBLAS writing [B, V] logits */
    WAY_MATERIALISED, /* a product, [B, V] stores, and a draw from the stored logits */
    WAY_LOGITS,       /* gumbel_sample_logits() on float32 [B, V] */
    WAY_LOGITS_ONE,   /* CPU: WAY_LOGITS on one thread */
    WAYS,
};

/* Ways whose times the others' are divided by. */
enum baseline {
    BASELINE_PRODUCT,
    BASELINE_MATERIALISED,
    BASELINE_GEMM,
    BASELINE_SCREENED,
    BASELINES
};
extern const enum way baseline_ways[BASELINES];

/* The device's best rates, measured by loops that do nothing else. */
struct ceiling {
    size_t buffer_bytes; /* bytes read to measure the bandwidth */
    double bandwidth;    /* bytes a second */
    double flops;        /* operations a second; 0: unknown */
};

struct bench_machine;

/* A benchmark: its options and data, shared by all batch sizes. */
struct bench {
    const struct bench_machine *machine;
    gumbel_device *device;
    struct device_choice choice;
    gumbel_device_info info;
    int64_t vocab;
    int64_t hidden_size;
    gumbel_dtype dtype;
    int64_t most_rows;  /* the largest batch */
    int64_t buffer_mib; /* MiB to read for the bandwidth; 0: chosen by the size of the caches */
    bool logprobs;      /* draws return log-probabilities */
    bool screen;        /* also time draws with a screen */
    bool nibbles;       /* the screen's format */
    /* Set by open(). */
    bool is_timed[WAYS]; /* the ways that the device has */
    int64_t checked_rows;
    struct ceiling ceiling;
    size_t screen_bytes;   /* 0: none */
    double screen_seconds; /* to prepare the screen */
    void *data;            /* private to the machine */
};

/* A kind of device: functions that prepare its data and time its ways. */
struct bench_machine {
    const char *materialised_label, *flops_label, *check_label;
    /* Measures the ceiling, and prepares the synthetic head. */
    void (*open)(struct bench *bench);
    void (*close)(struct bench *bench);
    /* Returns the first row whose token differs between two ways; -1: none. */
    int64_t (*check)(const struct bench *bench);
    /* Allocates the buffers of one batch size; sets the workspace size and the rungs of its fused
     * draw. */
    void *(*stage_new)(const struct bench *bench, int64_t batch, size_t *workspace_bytes,
                       char served[RUNG_NAMES_BYTES]);
    void (*stage_free)(void *stage);
    /* Seconds of one pass of a way. Within a round, ways are timed in the order of `enum way`. */
    double (*time_way)(void *stage, enum way way, uint32_t round);
    /* Describes the machine: one line of text, and JSON fields. */
    void (*describe)(const struct bench *bench, char *line, size_t size);
    void (*describe_json)(const struct bench *bench, json_t *root);
};
extern const struct bench_machine bench_cpu, bench_cuda;

/* The least bytes that a way reads, and its least floating-point operations: two for a
 * multiply-add, 0 for ways without a product in floating point. */
double bench_way_bytes(const struct bench *bench, int64_t batch, enum way way);
double bench_way_operations(const struct bench *bench, int64_t batch, enum way way);

/* Bytes of the weights. */
size_t bench_weight_bytes(const struct bench *bench);

struct bench_result {
    int64_t batch;
    size_t workspace_bytes;
    char served[RUNG_NAMES_BYTES]; /* the rungs of the fused draw */
    struct spread seconds[WAYS];
    double ratios[WAYS][BASELINES]; /* median over rounds of time / the baseline's time */
    struct ceiling ceiling;         /* the device's, or the rates of a faster round */
};

/* Times `rounds` rounds of every way with `batch` rows, after a round to warm up. */
struct bench_result bench_rounds(const struct bench *bench, int64_t batch, int rounds);

/* The report: a header, then a block for each result; as text, or as one JSON object. */
void bench_print_header(const struct bench *bench, int rounds);
void bench_print_result(const struct bench *bench, const struct bench_result *result);
json_t *bench_header_to_json(const struct bench *bench, int rounds);
json_t *bench_result_to_json(const struct bench *bench, const struct bench_result *result);

#endif

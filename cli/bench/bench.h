/* SPDX-License-Identifier: Apache-2.0
 *
 * What the parts of `gumbel bench` share: a synthetic head, the ways to draw from it, and rounds in
 * which every way is timed once, so that a slow moment of the machine hits all of them alike.
 */
#ifndef GUMBEL_CLI_BENCH_H
#define GUMBEL_CLI_BENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "gumbel/gumbel.h"
#include "options.h"
#include "report.h"
#include "served.h"

enum way {
    WAY_READ,         /* read the weights, nothing else */
    WAY_PRODUCT,      /* gumbel_multiply() */
    WAY_FUSED,        /* gumbel_sample() */
    WAY_SCREENED,     /* CPU: the same by a screen */
    WAY_GEMM,         /* CUDA: cuBLAS writing [B, V] logits */
    WAY_MATERIALISED, /* a product, [B, V] stores, and a draw from what is stored */
    WAY_LOGITS,       /* gumbel_sample_logits() on float32 [B, V] */
    WAY_LOGITS_ONE,   /* CPU: the same on one thread */
    WAYS,
};

/* Ways that others are divided by. */
enum base { BASE_PRODUCT, BASE_MATERIALISED, BASE_GEMM, BASE_SCREENED, BASES };
extern const enum way base_ways[BASES];

/* What the device can do at best, as loops that do nothing else measure it. */
struct ceiling {
    size_t buffer_bytes; /* what was read for the bandwidth */
    double bandwidth;    /* bytes a second */
    double peak;         /* operations a second; 0: unknown */
};

struct bench_machine;

/* What all batch sizes share. */
struct bench {
    const struct bench_machine *machine;
    gumbel_device *device;
    struct device_choice choice;
    gumbel_device_info info;
    int64_t vocab;
    int64_t hidden_size;
    gumbel_dtype dtype;
    int64_t most_rows;
    int64_t buffer_mib; /* to read for the bandwidth; 0: chosen */
    bool logprobs;      /* ask for log-probabilities too */
    bool screen;        /* time draws by a screen too */
    /* What open() sets. */
    bool has[WAYS]; /* the ways that this device times */
    int64_t checked_rows;
    struct ceiling ceiling;
    size_t screen_bytes;   /* 0: none */
    double screen_seconds; /* that making it took */
    void *data;            /* the machine's own */
};

/* A kind of device: its data, and how its ways are timed. */
struct bench_machine {
    const char *materialised_is, *peak_is, *check_is;
    /* Measure the ceiling, make the head. */
    void (*open)(struct bench *bench);
    void (*close)(struct bench *bench);
    /* The first row whose token is not the one that another way gives; -1 where none is. */
    int64_t (*check)(const struct bench *bench);
    /* The buffers of one batch size; the workspace and the rungs of its fused draw. */
    void *(*stage_new)(const struct bench *bench, int64_t batch, size_t *workspace_bytes,
                       char served[SERVED_BYTES]);
    void (*stage_free)(void *stage);
    /* Seconds of one pass of a way; within a round ways come in the order of `enum way`. */
    double (*time_way)(void *stage, enum way way, uint32_t round);
    /* What this machine is: one line of text, and JSON fields. */
    void (*describe)(const struct bench *bench, char *line, size_t size);
    void (*describe_json)(const struct bench *bench, json_t *root);
};
extern const struct bench_machine bench_cpu, bench_cuda;

/* Bytes that a way must read at least, and operations that it must do at least: 0 of ways that
 * multiply nothing, or by other operations. */
double bench_way_bytes(const struct bench *bench, int64_t batch, enum way way);
double bench_way_operations(const struct bench *bench, int64_t batch, enum way way);

/* Bytes of the weights. */
size_t bench_weight_bytes(const struct bench *bench);

struct bench_result {
    int64_t batch;
    size_t workspace_bytes;
    char served[SERVED_BYTES]; /* the rungs of the fused draw */
    struct spread seconds[WAYS];
    double ratios[WAYS][BASES]; /* median over rounds of time / time of the base */
    struct ceiling ceiling;     /* the device's, or what a round of a way reached if it is more */
};

/* Time `rounds` rounds of every way with `batch` rows, after one that does not count. */
struct bench_result bench_rounds(const struct bench *bench, int64_t batch, int rounds);

/* The report: a head, then a block for each result; or one JSON object. */
void bench_print_head(const struct bench *bench, int rounds);
void bench_print_result(const struct bench *bench, const struct bench_result *result);
json_t *bench_head_to_json(const struct bench *bench, int rounds);
json_t *bench_result_to_json(const struct bench *bench, const struct bench_result *result);

#endif

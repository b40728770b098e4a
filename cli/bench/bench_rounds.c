/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "bench.h"
#include "number_pages.h"

const enum way baseline_ways[BASELINES] = {WAY_PRODUCT, WAY_MATERIALISED, WAY_GEMM, WAY_SCREENED};

size_t bench_weight_bytes(const struct bench *bench)
{
    return matrix_bytes(bench->vocab, bench->hidden_size, bench->dtype);
}

static bool reads_logits(enum way way) { return way == WAY_LOGITS || way == WAY_LOGITS_ONE; }

double bench_way_bytes(const struct bench *bench, int64_t batch, enum way way)
{
    if (way == WAY_SCREENED) {
        return (double)bench->screen_bytes / (bench->nibbles ? 2 : 1);
    }
    return reads_logits(way) ? 4.0 * (double)batch * (double)bench->vocab
                             : (double)bench_weight_bytes(bench);
}

double bench_way_operations(const struct bench *bench, int64_t batch, enum way way)
{
    if (way == WAY_READ || way == WAY_SCREENED || reads_logits(way)) {
        return 0;
    }
    return 2.0 * (double)bench->vocab * (double)bench->hidden_size * (double)batch;
}

/* The ceiling of a result: at least the rate of every round of a way that reads the head. */
static struct ceiling raise_ceiling(const struct bench *bench, const struct bench_result *result)
{
    struct ceiling ceiling = bench->ceiling;

    for (int way = 0; way < WAYS; way++) {
        const double seconds = result->seconds[way].least;
        const double bandwidth = bench_way_bytes(bench, result->batch, (enum way)way) / seconds;
        const double rate = bench_way_operations(bench, result->batch, (enum way)way) / seconds;

        if (!bench->is_timed[way] || reads_logits((enum way)way)) {
            continue;
        }
        ceiling.bandwidth = bandwidth > ceiling.bandwidth ? bandwidth : ceiling.bandwidth;
        if (ceiling.flops > 0 && rate > ceiling.flops) {
            ceiling.flops = rate;
        }
    }
    return ceiling;
}

/* Median over rounds of times[way][round] / times[baseline][round]. */
static double median_ratio(const double *times, int rounds, enum way way, enum way baseline)
{
    double *ratios = require_memory("ratios", rounds, sizeof *ratios);
    double median = 0;

    for (int round = 0; round < rounds; round++) {
        ratios[round] = times[way * rounds + round] / times[baseline * rounds + round];
    }
    median = compute_spread(ratios, rounds).median;
    free(ratios);
    return median;
}

static void time_round(const struct bench *bench, void *stage, double *times, int round, int rounds)
{
    for (int way = 0; way < WAYS; way++) {
        const double seconds =
            bench->is_timed[way]
                ? bench->machine->time_way(stage, (enum way)way, (uint32_t)(round + 1))
                : 0;

        if (round >= 0) {
            times[way * rounds + round] = seconds;
        }
    }
}

struct bench_result bench_rounds(const struct bench *bench, int64_t batch, int rounds)
{
    struct bench_result result = {.batch = batch};
    void *stage = bench->machine->stage_new(bench, batch, &result.workspace_bytes, result.served);
    double *times = require_memory("times", (int64_t)WAYS * rounds, sizeof *times);

    for (int round = -1; round < rounds; round++) {
        time_round(bench, stage, times, round, rounds);
        progress_update(round + 1, rounds);
    }
    for (int way = 0; way < WAYS; way++) {
        for (int baseline = 0; baseline < BASELINES; baseline++) {
            result.ratios[way][baseline] =
                median_ratio(times, rounds, (enum way)way, baseline_ways[baseline]);
        }
    }
    for (int way = 0; way < WAYS; way++) {
        result.seconds[way] = compute_spread(times + way * rounds, rounds);
    }
    result.ceiling = raise_ceiling(bench, &result);
    free(times);
    bench->machine->stage_free(stage);
    return result;
}

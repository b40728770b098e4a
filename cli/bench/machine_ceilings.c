/* SPDX-License-Identifier: Apache-2.0
 *
 * WHAT   Two loops: one limited by memory bandwidth, one by the multiply-add units.
 * COST   Read pass: 64 bytes an add, 8 adds in flight. Multiply-adds: 16 independent chains, more
 *        than latency (4 cycles) times units (2) of a core; 2 * lanes * 16 operations a round.
 * BUILD  This file is compiled with -ffp-contract=fast, so that a * x + y is one fused operation
 *        where the target has it.
 */
#include "machine_ceilings.h"

#include "report.h"
#include "thread_ranges.h"
#include "vectors.h"

typedef uint64_t words16 __attribute__((vector_size(16)));
typedef uint64_t words32 __attribute__((vector_size(32)));
typedef uint64_t words64 __attribute__((vector_size(64)));

/* Sum of `streams` runs of `lines` 64-byte lines, run k beginning at data + k * lines * 64. */
typedef uint64_t (*sum_lines)(const unsigned char *data, size_t lines, int streams);
/* `rounds` rounds of 16 chained multiply-adds a lane; the value depends on all of them. */
typedef float (*chain_floats)(int64_t rounds, float x, float y);

enum { CHAINS = 16 };

#define DEFINE_SUM(name, target, vector)                                                           \
    target static uint64_t name(const unsigned char *data, size_t lines, int streams)              \
    {                                                                                              \
        enum { EACH = 64 / sizeof(vector) };                                                       \
        vector sum[EACH] = {{0}};                                                                  \
        uint64_t total = 0;                                                                        \
                                                                                                   \
        for (size_t i = 0; i < lines; i++) {                                                       \
            for (int k = 0; k < streams; k++) {                                                    \
                const vector *line = (const vector *)(data + ((size_t)k * lines + i) * 64);        \
                                                                                                   \
                for (int j = 0; j < EACH; j++) {                                                   \
                    sum[j] += line[j];                                                             \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        for (int j = 0; j < EACH; j++) {                                                           \
            for (size_t lane = 0; lane < sizeof(vector) / 8; lane++) {                             \
                total += sum[j][lane];                                                             \
            }                                                                                      \
        }                                                                                          \
        return total;                                                                              \
    }

DEFINE_SUM(sum_128, , words16)
DEFINE_SUM(sum_256, TARGET_AVX2, words32)
DEFINE_SUM(sum_512, TARGET_AVX512, words64)

#define EACH_CHAIN(step)                                                                           \
    step(0) step(1) step(2) step(3) step(4) step(5) step(6) step(7) step(8) step(9) step(10)       \
        step(11) step(12) step(13) step(14) step(15)
#define DECLARE_CHAIN(i) c##i = x_all + (float)i,
#define ADVANCE_CHAIN(i) c##i = c##i * x_all + y_all;
#define COLLECT_CHAIN(i) sum += c##i;

#define DEFINE_CHAINS(name, target, vector)                                                        \
    target static float name(int64_t rounds, float x, float y)                                     \
    {                                                                                              \
        const vector x_all = (vector){0} + x, y_all = (vector){0} + y;                             \
        vector EACH_CHAIN(DECLARE_CHAIN) sum = {0};                                                \
        float total = 0;                                                                           \
                                                                                                   \
        for (int64_t round = 0; round < rounds; round++) {                                         \
            EACH_CHAIN(ADVANCE_CHAIN)                                                              \
        }                                                                                          \
        EACH_CHAIN(COLLECT_CHAIN)                                                                  \
        for (size_t lane = 0; lane < sizeof(vector) / 4; lane++) {                                 \
            total += sum[lane];                                                                    \
        }                                                                                          \
        return total;                                                                              \
    }

DEFINE_CHAINS(chains_128, , floats16)
DEFINE_CHAINS(chains_256, TARGET_AVX2, floats32)
DEFINE_CHAINS(chains_512, TARGET_AVX512, floats64)

struct unit {
    sum_lines sum;
    chain_floats chain;
    int lanes; /* float32 lanes of a register */
};

static struct unit find_vector_unit(gumbel_isa isa)
{
    switch (isa) {
    case GUMBEL_ISA_AVX512:
        return (struct unit){sum_512, chains_512, 16};
    case GUMBEL_ISA_AVX2:
        return (struct unit){sum_256, chains_256, 8};
    default:
        return (struct unit){sum_128, chains_128, 4};
    }
}

/* Results of the loops, stored so that the compiler keeps the loops. */
static _Atomic uint64_t sink_words;
static _Atomic float sink_floats;

struct read_work {
    const unsigned char *data;
    int64_t lines;
    int streams;
    sum_lines sum;
};

static void read_lines(void *argument, int32_t index, int32_t threads)
{
    const struct read_work *work = argument;
    const struct item_range part = find_thread_range(work->lines, 64, index, threads);
    const size_t lines = (size_t)((part.end - part.begin) / work->streams);

    sink_words = work->sum(work->data + part.begin * 64, lines, work->streams);
}

static double time_read(const void *buffer, size_t bytes, int32_t threads, gumbel_isa isa,
                        int streams)
{
    struct read_work work = {buffer, (int64_t)(bytes / 64), streams, find_vector_unit(isa).sum};
    const double start = seconds_now();

    run_on_threads(threads, read_lines, &work);
    return seconds_now() - start;
}

static int best_streams = 1;

double measure_read_bandwidth(const void *buffer, size_t bytes, int32_t threads, gumbel_isa isa)
{
    static const int patterns[] = {1, 2, 4};
    enum { PASSES = 5 };
    double best = 0;

    for (int pass = 0; pass < PASSES; pass++) {
        for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
            const double rate = (double)bytes / time_read(buffer, bytes, threads, isa, patterns[i]);

            if (rate > best) {
                best = rate;
                best_streams = patterns[i];
            }
        }
    }
    return best;
}

double time_read_pass(const void *buffer, size_t bytes, int32_t threads, gumbel_isa isa)
{
    return time_read(buffer, bytes, threads, isa, best_streams);
}

struct chain_work {
    chain_floats chain;
    int64_t rounds;
};

static void run_chains(void *argument, int32_t index, int32_t threads)
{
    const struct chain_work *work = argument;

    (void)index;
    (void)threads;
    /* |x| < 1: every chain converges to y / (1 - x), never to a slow subnormal. */
    sink_floats = work->chain(work->rounds, 0.5f, 0.25f);
}

double measure_flops(int32_t threads, gumbel_isa isa)
{
    enum { PASSES = 5 };
    const struct unit unit = find_vector_unit(isa);
    struct chain_work work = {unit.chain, 4000000};
    double best = 0;

    for (int pass = 0; pass < PASSES; pass++) {
        const double start = seconds_now();
        double operations = 0;
        double rate = 0;

        run_on_threads(threads, run_chains, &work);
        operations = 2.0 * CHAINS * unit.lanes * (double)work.rounds * threads;
        rate = operations / (seconds_now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

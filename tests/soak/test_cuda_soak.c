/* SPDX-License-Identifier: Apache-2.0
 *
 * Random calls run concurrently for a long time, beside kernels that occupy multiprocessors. Every
 * wait of a CTA must end, and the results must equal those of the call alone and without a screen.
 *
 *   GUMBEL_SOAK_SECONDS   how long; 120, or 1800 where GUMBEL_NIGHTLY is set
 *   GUMBEL_SOAK_SEED      repeats the calls of this seed; a failure prints it
 *   GUMBEL_SOAK_ROUND     this round alone: once, or for GUMBEL_SOAK_SECONDS
 *   GUMBEL_SOAK_PATIENCE  seconds without progress after which the program gives up; 20
 *   GUMBEL_SOAK_STALL     only shows that it does; needs no GPU
 */
#define _GNU_SOURCE
#include "soak_hog.h"
#include "soak_pool.h"
#include "soak_round.h"
#include "soak_watch.h"
#include "test_scale.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { FAILURES_MAX = 5 };

/* Seconds between two lines of progress. */
#define SIGN_OF_LIFE 60.0

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return otherwise;
    uint64_t number = strtoull(text, &end, 0);
    if (*end)
        die("%s: \"%s\" is no number", name, text);
    return number;
}

static uint64_t seed_of_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t state = ((uint64_t)now.tv_sec << 30) + (uint64_t)now.tv_nsec + (uint64_t)getpid();
    return random_bits(&state);
}

static void run_rounds(uint64_t seed, double seconds, soak_tally *tally)
{
    double begin = watch_seconds(), reported = begin;
    int lone = getenv("GUMBEL_SOAK_ROUND") != NULL, failed = 0;
    uint64_t first = number_from("GUMBEL_SOAK_ROUND", 0);
    do {
        uint64_t number = lone ? first : (uint64_t)tally->rounds;
        failed += !soak_round_run(seed, number, tally);
        if (watch_seconds() - reported > SIGN_OF_LIFE) {
            reported = watch_seconds();
            printf("%" PRId64 " rounds in %.0f s\n", tally->rounds, reported - begin);
        }
    } while (failed < FAILURES_MAX && watch_seconds() - begin < seconds);
    double took = watch_seconds() - begin;
    printf("%" PRId64 " rounds, %" PRId64 " beside a hog; %" PRId64 " calls, %" PRId64
           " compared with the CPU, %" PRId64 " by screens, %" PRId64 " by programs, %" PRId64
           " with lists; %" PRId64 " steps; %.1f rounds a second\n",
           tally->rounds, tally->hogged, tally->calls, tally->compared, tally->screened,
           tally->programs, tally->rules, tally->steps, (double)tally->rounds / took);
    CHECK(failed == 0, "GUMBEL_SOAK_SEED=%#" PRIx64 ": %d rounds failed", seed, failed);
}

static void soak(void)
{
    uint64_t seed = number_from("GUMBEL_SOAK_SEED", seed_of_clock());
    double usual = getenv("GUMBEL_SOAK_ROUND") ? 0 : is_nightly() ? 1800 : 120;
    double seconds = watch_number("GUMBEL_SOAK_SECONDS", usual);
    soak_tally tally = {0};
    printf("GUMBEL_SOAK_SEED=%#" PRIx64 ", for %g s\n", seed, seconds);
    watch_start("soak");
    pool_open();
    hogs_open();
    run_rounds(seed, seconds, &tally);
    hogs_close();
    pool_close();
    watch_stop();
}

static void crowded(void)
{
    watch_start("crowded");
    pool_open();
    hogs_open();
    soak_crowded();
    hogs_close();
    pool_close();
    watch_stop();
}

/* Makes no progress, so that the watchdog ends the program. */
static void stall(void)
{
    watch_start("stall");
    watch_note("nothing, on purpose");
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {{"soak", soak}, {"crowded", crowded}, {NULL, NULL}};
    if (getenv("GUMBEL_SOAK_STALL"))
        stall();
    /* Streams that share a hardware queue would wait for each other. */
    if (setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0) != 0)
        die("the environment cannot be set");
    /* Screens are used even if the full pass is faster. */
    if (setenv("GUMBEL_RUNGS", "screen", 0) != 0)
        die("the environment cannot be set");
    return cuda_run_tests(argc, argv, tests);
}

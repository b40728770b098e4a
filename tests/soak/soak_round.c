/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "soak_round.h"

#include "soak_hog.h"
#include "soak_watch.h"

#include <inttypes.h>
#include <time.h>

enum { STREAMS_MAX = 4, HOGS_MAX = 3, BURST_MAX = 4 };

/* Seconds that a hog's CTAs run, and the maximum if the round releases the hog. */
#define STAY_MIN 1e-5
#define STAY_MAX 2e-2
#define HELD_MAX 5e-2

/* The step at which a hog is queued, and the number of steps after which it is released, if at
 * all. */
typedef struct hog_plan {
    int ctas, held, from, to, queued, released;
} hog_plan;

typedef struct soak_round {
    soak_call *calls[STREAMS_MAX];
    int next[STREAMS_MAX]; /* step to queue */
    int count, steps, hog_count;
    hog_plan hogs[HOGS_MAX];
    uint64_t random;
} soak_round;

void soak_sleep(void)
{
    const struct timespec pause = {0, 20000};
    nanosleep(&pause, NULL);
}

/* ----------------------------------------------------------------------------------- plans ---- */

static void plan_hogs(soak_round *round)
{
    uint64_t *random = &round->random;
    uint32_t most = (uint32_t)hogs_most(), steps = (uint32_t)round->steps;
    round->hog_count = random_below(random, 3) ? 1 + (int)random_below(random, HOGS_MAX) : 0;
    if (most < 2)
        round->hog_count = 0;
    for (int i = 0; i < round->hog_count; i++) {
        hog_plan *hog = &round->hogs[i];
        int nearly_all = random_below(random, 3) == 0;
        hog->ctas = (int)(nearly_all ? most - 1 : 1 + random_below(random, most - 1));
        hog->held = random_below(random, 3) == 0;
        hog->from = random_below(random, 2) ? 0 : (int)random_below(random, steps);
        hog->to = hog->from + 1 + (int)random_below(random, steps);
        if (hog->held)
            watch_add("hog %d: %d CTAs, from step %d to %d", i, hog->ctas, hog->from, hog->to);
        else
            watch_add("hog %d: %d CTAs, from step %d on for some time", i, hog->ctas, hog->from);
    }
}

static void make_calls(soak_round *round)
{
    uint64_t *random = &round->random;
    round->count = 1 + (int)random_below(random, STREAMS_MAX);
    for (int i = 0; i < round->count; i++) {
        soak_plan plan;
        char text[640];
        soak_plan_at_random(&plan, hogs_most(), random);
        soak_plan_describe(&plan, text, sizeof text);
        watch_add("stream %d: %s", i, text);
        round->calls[i] = soak_call_make(&plan, random_bits(random));
        round->steps += plan.steps;
        watch_step("making calls");
    }
}

/* ------------------------------------------------------------------------------------ runs ---- */

/* Queues the hogs that are due, and the release of hogs on the stream that received the last
 * step. */
static void queue_hogs(soak_round *round, int queued, CUstream last)
{
    for (int i = 0; i < round->hog_count; i++) {
        hog_plan *hog = &round->hogs[i];
        if (!hog->queued && queued >= hog->from) {
            uint64_t seed = random_bits(&round->random);
            hog_queue(i, hog->ctas, seed, hog->held ? HELD_MAX : STAY_MIN,
                      hog->held ? HELD_MAX : STAY_MAX);
            hog->queued = 1;
        } else if (hog->held && !hog->released && queued >= hog->to) {
            hog_release_queue(i, last);
            hog->released = 1;
        }
    }
}

/* A random stream with remaining steps. */
static int choose_stream(soak_round *round)
{
    int i = (int)random_below(&round->random, (uint32_t)round->count);
    while (round->next[i] == round->calls[i]->plan.steps)
        i = (i + 1) % round->count;
    return i;
}

static void queue_all(soak_round *round)
{
    int queued = 0;
    CUstream last = round->calls[0]->graph.stream;
    while (queued < round->steps) {
        queue_hogs(round, queued, last);
        int i = choose_stream(round), burst = 1 + (int)random_below(&round->random, BURST_MAX);
        soak_call *call = round->calls[i];
        last = call->graph.stream;
        for (; burst > 0 && round->next[i] < call->plan.steps; burst--, queued++)
            soak_call_queue(call, round->next[i]++);
    }
    queue_hogs(round, queued, last);
}

static void wait_for_all(soak_round *round)
{
    for (int i = 0; i < round->count; i++) {
        while (gpu_runs(round->calls[i]->graph.stream))
            soak_sleep();
        watch_step("waiting for the next stream");
    }
    for (int i = 0; i < round->hog_count; i++) {
        hog_release(i);
        while (hog_runs(i))
            soak_sleep();
        watch_step("waiting for hogs");
    }
}

static void draw_alone(soak_round *round, soak_tally *tally)
{
    for (int i = 0; i < round->count; i++) {
        soak_call *call = round->calls[i];
        soak_call_expect(call);
        tally->screened += soak_call_is_screened(call);
        tally->programs += call->plan.req.programs > 0;
        tally->rules += call->plan.rules;
        const uint32_t one_in = call->plan.rules ? 2 : 4;
        if (random_below(&round->random, one_in) == 0 && soak_plan_suits_cpu(&call->plan)) {
            soak_call_compare_cpu(call);
            tally->compared++;
        }
        soak_call_reset(call);
    }
}

int soak_round_run(uint64_t seed, uint64_t number, soak_tally *tally)
{
    soak_round round = {.count = 0};
    int failed = checks_failed();
    uint64_t state = seed;
    round.random = random_bits(&state) ^ (number + 1) * 0xD1342543DE82EF95ull;
    watch_note("GUMBEL_SOAK_SEED=%#" PRIx64 " GUMBEL_SOAK_ROUND=%" PRIu64, seed, number);
    make_calls(&round);
    plan_hogs(&round);
    draw_alone(&round, tally);
    watch_step("queueing calls side by side");
    queue_all(&round);
    watch_step("waiting for the first stream");
    wait_for_all(&round);
    watch_step("comparing");
    for (int i = 0; i < round.count; i++)
        soak_call_check(round.calls[i], "beside others");
    if (checks_failed() > failed)
        watch_print();
    watch_step("freeing calls");
    for (int i = 0; i < round.count; i++)
        soak_call_free(round.calls[i]);
    tally->rounds++;
    tally->calls += round.count;
    tally->steps += round.steps;
    tally->hogged += round.hog_count > 0;
    return checks_failed() == failed;
}

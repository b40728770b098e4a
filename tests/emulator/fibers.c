/* SPDX-License-Identifier: Apache-2.0
 *
 * Each fiber is entered once, by swapcontext(), and from then on left and resumed by longjmp(),
 * which makes no system call: swapcontext() makes one each time. A fiber outlives its run, and
 * starts over in the next one.
 */
#define _GNU_SOURCE
#include "fibers.h"

#include "inputs.h"

#include <setjmp.h>
#include <string.h>
#include <ucontext.h>

enum { WARP = 32, WARPS_MOST = FIBERS_MOST / WARP, STACK_BYTES = 256 * 1024 };

/* Switches for which a warp is favoured and another one neglected, at most, and the odds that one
 * which is not favoured runs meanwhile. */
enum { BURST_MOST = 3000, ELSEWHERE = 8 };

/* A fiber can go on unless the bits of *word in `mask` are `bits`. */
typedef struct obstacle {
    const uint64_t *word;
    uint64_t mask, bits;
} obstacle;

typedef struct barrier {
    uint64_t phase;
    int arrived;
    int sums[2]; /* of what is given, by turns of phases */
} barrier;

fibers_index threadIdx, blockIdx, gridDim;

static jmp_buf places[FIBERS_MOST], home;
static ucontext_t entrance, outside;
static int entered, entering;

/* Before a fiber that may go on, and before one that has returned. */
static const uint64_t zero;
static const obstacle nothing = {&zero, 0, 1}, end = {&zero, 0, 0};

static struct {
    int threads, left;
    void (*body)(const void *);
    const void *argument;
    uint64_t random;
    int favoured, neglected, burst;
    obstacle before[FIBERS_MOST];
    barrier barriers[FIBERS_BARRIERS], warps[WARPS_MOST];
    unsigned exchanges[FIBERS_MOST];
    uint64_t given[WARPS_MOST][2][WARP];
} run;

/* A fiber of the `count` from `first` on, after the last comes 0, that can go on: from a random one
 * on; -1 for none. */
static int find(int first, int count)
{
    int start = (int)random_below(&run.random, (uint32_t)count);
    for (int i = 0; i < count; i++) {
        int place = start + i < count ? start + i : start + i - count;
        int at = first + place < run.threads ? first + place : first + place - run.threads;
        const obstacle *o = &run.before[at];
        if ((*o->word & o->mask) != o->bits)
            return at;
    }
    return -1;
}

/* The fiber to go on: of the neglected warp where no other can; where there is none, the run ends.
 */
static int choose(void)
{
    int warps = run.threads / WARP;
    if (run.burst-- == 0) {
        run.favoured = (int)random_below(&run.random, (uint32_t)warps);
        run.neglected = (int)random_below(&run.random, (uint32_t)warps);
        run.burst = (int)random_below(&run.random, BURST_MOST);
    }
    int at = random_below(&run.random, ELSEWHERE) ? find(run.favoured * WARP, WARP) : -1;
    if (at < 0 && warps > 1)
        at = find((run.neglected + 1) * WARP, run.threads - WARP);
    at = at >= 0 ? at : find(run.neglected * WARP, WARP);
    if (at < 0)
        _longjmp(home, 1);
    return at;
}

/* Leave this fiber for another one, until some fiber resumes it. */
static void resume(int next)
{
    unsigned own = threadIdx.x;
    if (next == (int)own || _setjmp(places[own]) != 0)
        return;
    threadIdx.x = (unsigned)next;
    _longjmp(places[next], 1);
}

void fibers_yield(void) { resume(choose()); }

void fibers_wait(const uint64_t *word, uint64_t mask, uint64_t bits)
{
    run.before[threadIdx.x] = (obstacle){word, mask, bits};
    fibers_yield();
    run.before[threadIdx.x] = nothing;
}

static void live(void)
{
    if (_setjmp(places[entering]) == 0)
        swapcontext(&entrance, &outside);
    for (;;) {
        run.body(run.argument);
        run.before[threadIdx.x] = end;
        if (--run.left > 0)
            resume(choose());
        else if (_setjmp(places[threadIdx.x]) == 0)
            _longjmp(home, 1);
    }
}

/* Take fiber `entered` to where runs begin. Its stack lasts as long as the program. */
static void enter(void)
{
    entering = entered++;
    getcontext(&entrance);
    entrance.uc_stack.ss_sp = make_zeroed(1, STACK_BYTES);
    entrance.uc_stack.ss_size = STACK_BYTES;
    entrance.uc_link = NULL;
    makecontext(&entrance, live, 0);
    swapcontext(&outside, &entrance);
}

int fibers_run(int threads, uint64_t seed, void (*body)(const void *), const void *argument)
{
    while (entered < threads)
        enter();
    memset(&run, 0, sizeof run);
    run.threads = run.left = threads;
    run.body = body;
    run.argument = argument;
    run.random = seed;
    for (int i = 0; i < threads; i++)
        run.before[i] = nothing;
    if (_setjmp(home) != 0)
        return run.left;
    threadIdx.x = (unsigned)choose();
    _longjmp(places[threadIdx.x], 1);
}

/* The sum of what all give. The next one starts from 0 once all have come, who have read the one
 * before. */
static int wait_at(barrier *at, int threads, int own)
{
    uint64_t phase = at->phase;
    at->sums[phase % 2] += own;
    if (++at->arrived == threads) {
        at->arrived = 0;
        at->sums[++at->phase % 2] = 0;
    }
    fibers_wait(&at->phase, ~UINT64_C(0), phase);
    return at->sums[phase % 2];
}

void fibers_barrier(int id, int threads)
{
    wait_at(&run.barriers[id], threads ? threads : run.threads, 0);
}

int fibers_sum(int own) { return wait_at(&run.barriers[0], run.threads, own); }

/* Two sets of values take turns: nobody can be two exchanges ahead of a lane that still reads. */
const uint64_t *fibers_exchange(uint64_t own)
{
    unsigned warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    uint64_t *all = run.given[warp][run.exchanges[threadIdx.x]++ % 2];
    all[lane] = own;
    wait_at(&run.warps[warp], WARP, 0);
    return all;
}

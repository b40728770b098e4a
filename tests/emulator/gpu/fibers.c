/* SPDX-License-Identifier: Apache-2.0
 *
 * Each fiber is entered once, by swapcontext(), which makes a system call. From then on, the
 * compiler's own setjmp() and longjmp() leave and resume it, which save three words and no signal
 * mask. A fiber outlives its run and starts over in the next one.
 */
#define _GNU_SOURCE
#include "fibers.h"

#include "inputs.h"

#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { WARP = 32, WARPS_MAX = FIBERS_MAX / WARP };

/* A few hundred bytes of a stack are in use. Stacks begin at different offsets, since equal offsets
 * would share few cache lines. Below each stack lies a guard page. */
enum { STACK_BYTES = 192 * 1024, PAGE_BYTES = 4096, PLACES = 128, PLACE_BYTES = 512 };

/* Number of switches for which a warp is favoured and another neglected: from BURST_MIN on,
 * doubled up to BURST_DOUBLED times, each as likely; for a CTA, that number for each of its warps.
 * The longest neglect outlasts several tiles, as a sleeping warp or late loads may. ELSEWHERE: odds
 * that another warp runs meanwhile. LEAVE: odds that a warp which can continue does not; switching
 * costs cache misses. */
enum { BURST_MIN = 64, BURST_DOUBLED = 12, ELSEWHERE = 8, LEAVE = 32 };

/* The condition that blocks a waiting fiber: the bits of *word in `mask` equal `bits`. */
typedef struct obstacle {
    const uint64_t *word;
    uint64_t mask, bits;
} obstacle;

typedef struct barrier {
    uint64_t phase;
    int arrived;
    int sums[2]; /* of the threads' values; phases alternate */
} barrier;

/* Adjacent warps; the first follows the last. */
typedef struct span {
    int first, count;
} span;

fibers_index threadIdx, blockIdx, gridDim;

typedef void *left_at[5]; /* required by __builtin_setjmp() */

static left_at places[FIBERS_MAX], home;
static ucontext_t entrance, outside;
static int entered, entering;

static struct {
    fibers_shape shape;
    int fibers, warps, left;
    int self, cta; /* running */
    void (*body)(const void *);
    const void *argument;
    uint64_t random;
    span favoured, neglected;
    int burst;
    uint32_t ready[WARPS_MAX]; /* fibers that wait for nothing, or for a word */
    uint32_t looks[WARPS_MAX]; /* of these, the fibers that wait for a word */
    obstacle before[FIBERS_MAX];
    const barrier *waits[FIBERS_MAX];
    int left_of[FIBERS_CTAS];
    barrier of_warp[WARPS_MAX], of_cta[FIBERS_CTAS][FIBERS_BARRIERS], of_all;
    uint64_t arrivals[FIBERS_MAX]; /* at the barrier of all CTAs: the phase to wait for, or 0 */
    unsigned exchanges[FIBERS_MAX];
    uint64_t given[WARPS_MAX][2][WARP];
} run;

/* --------------------------------------------------------------------------- scheduling ---- */

static int can_go(int fiber)
{
    const obstacle *o = &run.before[fiber];
    return !(run.looks[fiber / WARP] >> fiber % WARP & 1) || (*o->word & o->mask) != o->bits;
}

/* A fiber of a warp that can continue, from lane `turn` on; -1 for none. */
static int find_lane(int warp, int turn)
{
    for (uint32_t left = run.ready[warp]; left;) {
        uint32_t after = left >> turn << turn;
        int lane = __builtin_ctz(after ? after : left);
        if (can_go(warp * WARP + lane))
            return warp * WARP + lane;
        left &= ~(1u << lane);
    }
    return -1;
}

/* A fiber of some warps that can continue, from a random warp on; -1 for none. */
static int find(span among, uint32_t random)
{
    int start = (int)((uint64_t)random * (uint32_t)among.count >> 32), at = -1;
    for (int i = 0; at < 0 && i < among.count; i++) {
        int place = start + i < among.count ? start + i : start + i - among.count;
        int warp =
            among.first + place < run.warps ? among.first + place : among.first + place - run.warps;
        at = find_lane(warp, (int)(random % WARP));
    }
    return at;
}

/* A random warp, or the warps of a random CTA. */
static span choose_span(int of_cta)
{
    int count = of_cta ? run.warps / run.shape.ctas : 1;
    int first = (int)random_below(&run.random, (uint32_t)(run.warps / count));
    return (span){first * count, count};
}

static int burst_of(uint64_t *random)
{
    int least = BURST_MIN << random_below(random, BURST_DOUBLED);
    return least + (int)random_below(random, (uint32_t)least);
}

/* The fiber to run next; a neglected one only if no other can run. If there is none, the run ends.
 */
static int choose(void)
{
    if (run.burst-- == 0) {
        int of_cta = run.shape.ctas > 1 && random_below(&run.random, 2);
        run.favoured = choose_span(of_cta);
        run.neglected = choose_span(of_cta);
        run.burst = burst_of(&run.random) * run.favoured.count;
    }
    uint64_t bits = random_bits(&run.random);
    const uint32_t random = (uint32_t)(bits >> 32);
    const int own = run.self / WARP, from = own - run.neglected.first;
    int at = -1;
    if (bits % LEAVE && (from < 0 || from >= run.neglected.count))
        at = find_lane(own, (int)(random % WARP));
    if (at < 0 && bits / LEAVE % ELSEWHERE)
        at = find(run.favoured, random);
    if (at < 0)
        at =
            find((span){run.neglected.first + run.neglected.count, run.warps - run.neglected.count},
                 random);
    at = at >= 0 ? at : find(run.neglected, random);
    if (at < 0)
        __builtin_longjmp(home, 1);
    return at;
}

/* Continues as a fiber. */
__attribute__((noreturn)) static void become(int next)
{
    int cta = next / run.shape.threads;
    run.self = next;
    threadIdx.x = (unsigned)(next - cta * run.shape.threads);
    if (cta != run.cta)
        run.shape.enter(run.cta = cta);
    __builtin_longjmp(places[next], 1);
}

/* Leaves this fiber for another one, until some fiber resumes it. */
static void resume(int next)
{
    if (next != run.self && __builtin_setjmp(places[run.self]) == 0)
        become(next);
}

int fibers_self(void) { return run.self; }

uint32_t fibers_random(void) { return (uint32_t)(random_bits(&run.random) >> 32); }

void fibers_yield(void) { resume(choose()); }

/* ---------------------------------------------------------------------------------- runs ---- */

static void live(void)
{
    if (__builtin_setjmp(places[entering]) == 0)
        swapcontext(&entrance, &outside);
    for (;;) {
        run.body(run.argument);
        run.ready[run.self / WARP] &= ~(1u << run.self % WARP);
        if (--run.left_of[run.cta] == 0)
            run.shape.leave(run.cta);
        if (--run.left > 0)
            resume(choose());
        else if (__builtin_setjmp(places[run.self]) == 0)
            __builtin_longjmp(home, 1);
    }
}

/* Enters fiber `entered` and waits for runs. Its stack lasts as long as the program. */
static void enter(void)
{
    char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, PAGE_BYTES, PROT_NONE) != 0)
        die("there is no memory for the stacks of fibers");
    entering = entered++;
    getcontext(&entrance);
    entrance.uc_stack.ss_sp = stack;
    entrance.uc_stack.ss_size = (size_t)(STACK_BYTES - entering % PLACES * PLACE_BYTES);
    entrance.uc_link = NULL;
    makecontext(&entrance, live, 0);
    swapcontext(&outside, &entrance);
}

int fibers_run(const fibers_shape *shape, uint64_t seed, void (*body)(const void *),
               const void *argument)
{
    int fibers = shape->ctas * shape->threads;
    while (entered < fibers)
        enter();
    memset(&run, 0, sizeof run);
    run.shape = *shape;
    run.fibers = run.left = fibers;
    run.warps = fibers / WARP;
    run.cta = -1;
    run.body = body;
    run.argument = argument;
    run.random = seed;
    memset(run.ready, 0xff, (size_t)run.warps * sizeof *run.ready);
    for (int cta = 0; cta < shape->ctas; cta++)
        run.left_of[cta] = shape->threads;
    if (__builtin_setjmp(home) == 0)
        become(choose());
    return run.left;
}

/* -------------------------------------------------------------------------------- waiting ---- */

void fibers_wait(const uint64_t *word, uint64_t mask, uint64_t bits)
{
    run.before[run.self] = (obstacle){word, mask, bits};
    run.looks[run.self / WARP] |= 1u << run.self % WARP;
    fibers_yield();
    run.looks[run.self / WARP] &= ~(1u << run.self % WARP);
}

/* Waits until a barrier's phase ends. */
static void wait_for(const barrier *at)
{
    run.waits[run.self] = at;
    run.ready[run.self / WARP] &= ~(1u << run.self % WARP);
    fibers_yield();
}

/* Ends a phase and wakes its waiting fibers. The next phase's sum starts from 0, since every thread
 * has read the sum before it. */
static void end_phase(barrier *at, span warps)
{
    at->arrived = 0;
    at->sums[++at->phase % 2] = 0;
    for (int i = warps.first * WARP; i < (warps.first + warps.count) * WARP; i++)
        if (run.waits[i] == at) {
            run.waits[i] = NULL;
            run.ready[i / WARP] |= 1u << i % WARP;
        }
}

/* Waits for `threads` threads of these warps; returns the sum of their values. */
static int wait_at(barrier *at, span warps, int threads, int own)
{
    uint64_t phase = at->phase;
    at->sums[phase % 2] += own;
    if (++at->arrived < threads) {
        wait_for(at);
    } else {
        end_phase(at, warps);
        fibers_yield();
    }
    return at->sums[phase % 2];
}

static span warps_of_cta(void)
{
    int warps = run.shape.threads / WARP;
    return (span){run.cta * warps, warps};
}

void fibers_barrier(int id, int threads)
{
    wait_at(&run.of_cta[run.cta][id], warps_of_cta(), threads ? threads : run.shape.threads, 0);
}

int fibers_sum(int own)
{
    return wait_at(&run.of_cta[run.cta][0], warps_of_cta(), run.shape.threads, own);
}

void fibers_arrive(void)
{
    if (run.arrivals[run.self])
        die("thread %u of CTA %u comes twice to its cluster's barrier", threadIdx.x, blockIdx.x);
    run.arrivals[run.self] = run.of_all.phase + 1;
    if (++run.of_all.arrived == run.fibers)
        end_phase(&run.of_all, (span){0, run.warps});
    fibers_yield();
}

void fibers_await(void)
{
    uint64_t behind = run.arrivals[run.self];
    if (!behind)
        die("thread %u of CTA %u waits where it has not come", threadIdx.x, blockIdx.x);
    run.arrivals[run.self] = 0;
    if (run.of_all.phase < behind)
        wait_for(&run.of_all);
    else
        fibers_yield();
}

/* Two sets of values alternate: no lane can be two exchanges ahead of a lane that still reads. */
const uint64_t *fibers_exchange(uint64_t own)
{
    int warp = run.self / WARP;
    uint64_t *all = run.given[warp][run.exchanges[run.self]++ % 2];
    all[run.self % WARP] = own;
    wait_at(&run.of_warp[warp], (span){warp, 1}, WARP, 0);
    return all;
}

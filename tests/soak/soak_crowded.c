/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls whose kernels have no clusters, on the few multiprocessors that a hog leaves free. Each
 * call must end, however few of its CTAs run at once.
 */
#include "soak_hog.h"
#include "soak_round.h"
#include "soak_watch.h"

#include <stdio.h>

enum { VOCAB = 151936, SIZE = 128 };

/* Maximum seconds that a hog runs, and that its start takes. */
#define STAY  2.0
#define START 1.0

/* The numbers of free multiprocessors. */
static const int LEFT[] = {1, 2, 8, 40};
enum { LEFT_COUNT = sizeof LEFT / sizeof *LEFT };

static void wait_for_hog(void)
{
    hog_release(0);
    while (hog_runs(0))
        soak_sleep();
    watch_step("the hog has ended");
}

/* Starts a hog that leaves `left` multiprocessors free; returns 0 if it does not start in time. */
static int start_hog(int left, const char *what)
{
    int ctas = hogs_most() - left;
    double begin = watch_seconds();
    hog_queue(0, ctas, 0, STAY, STAY);
    while (hog_begun(0) < ctas && watch_seconds() - begin < START)
        soak_sleep();
    return CHECK(hog_begun(0) == ctas, "%s: the hog holds %d multiprocessors instead of %d", what,
                 hog_begun(0), ctas);
}

/* Returns the seconds that the call takes beside a hog, or -1 if it did not end before the hog. */
static double draw_beside(soak_call *call, int left, const char *what)
{
    double took = -1;
    soak_call_reset(call);
    watch_step("a call beside a hog");
    if (!start_hog(left, what)) {
        wait_for_hog();
        return took;
    }
    double begin = watch_seconds();
    soak_call_queue(call, 0);
    while (took < 0 && hog_runs(0))
        if (!gpu_runs(call->graph.stream))
            took = watch_seconds() - begin;
    CHECK(took >= 0, "%s, %d multiprocessors: waits for CTAs that cannot start", what, left);
    wait_for_hog();
    while (gpu_runs(call->graph.stream))
        soak_sleep();
    soak_call_check(call, "beside a hog");
    return took;
}

/* The input of a crowded draw. */
typedef enum crowded_input { FROM_LOGITS, FROM_HEAD, FROM_BYTES, FROM_NIBBLES } crowded_input;

static void check_crowded(int64_t batch, crowded_input input, float top_p)
{
    static const char *const names[] = {"logits", "fused", "screened", "screened by nibbles"};
    soak_plan plan = {.req = {.batch = batch,
                              .vocab = VOCAB,
                              .hidden_size = input == FROM_LOGITS ? 0 : SIZE,
                              .samples = 1,
                              .truncation = top_p > 0,
                              .usual = 1,
                              .cuts = top_p > 0 ? REQUEST_TOP_P : 0,
                              .top_p = top_p,
                              .seed = (uint64_t)batch},
                      .weight = GUMBEL_BFLOAT16,
                      .hidden = GUMBEL_BFLOAT16,
                      .outputs = SOAK_SCORES,
                      .screened = input == FROM_BYTES || input == FROM_NIBBLES,
                      .nibbles = input == FROM_NIBBLES,
                      .steps = 1};
    char what[80], line[200];
    snprintf(what, sizeof what, "%s, B %d, top_p %g", names[input], (int)batch, (double)top_p);
    watch_note("%s", what);
    soak_call *call = soak_call_make(&plan, (uint64_t)batch);
    soak_call_expect(call);
    int used = snprintf(line, sizeof line, "%-39s", what);
    for (int i = 0; i < LEFT_COUNT && LEFT[i] < hogs_most(); i++) {
        double took = draw_beside(call, LEFT[i], what);
        size_t room = sizeof line - (size_t)used;
        used += took < 0 ? snprintf(line + used, room, "  %d left: never", LEFT[i])
                         : snprintf(line + used, room, "  %d left: %.3f ms", LEFT[i], 1e3 * took);
    }
    printf("%s\n", line);
    soak_call_free(call);
}

void soak_crowded(void)
{
    static const int64_t plain[] = {8, 64}, rows[] = {1, 2, 5, 16, 64};
    for (int i = 0; i < 2; i++)
        for (int input = FROM_LOGITS; input <= FROM_NIBBLES; input++)
            check_crowded(plain[i], (crowded_input)input, 0);
    check_crowded(200, FROM_LOGITS, 0); /* from a head, more than 64 rows have clusters */
    for (int i = 0; i < 5; i++)
        for (int input = FROM_LOGITS; input <= FROM_HEAD; input++) {
            check_crowded(rows[i], (crowded_input)input, 0.3f);
            check_crowded(rows[i], (crowded_input)input, 0.95f);
        }
}

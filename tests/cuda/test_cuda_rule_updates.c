/* SPDX-License-Identifier: Apache-2.0
 *
 * Row parameters that change from step to step on a GPU: a thousand steps of mirostat 2, and of a
 * top_p that decays, as replays of a graph that draws and updates. Each step's tokens and
 * parameters have the CPU's bits, and follow the rule in double.
 */
#include "cuda_requests.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Updates of many rows at once have the CPU's bits. */
static void updates_alone(void)
{
    enum { ROWS = 300 };
    float mu[ROWS], found_mu[ROWS], top_p[ROWS], found_top_p[ROWS], logprobs[ROWS], target[ROWS];
    int32_t tokens[ROWS], live = ROWS - 5;
    const float decay = 0.9f;
    const int32_t reset = 3;
    uint64_t random = 15;
    gumbel_error error = {"", ""};
    for (int b = 0; b < ROWS; b++) {
        mu[b] = 0.01f * (float)random_below(&random, 1000);
        top_p[b] = 0.001f * (float)(1 + random_below(&random, 999));
        logprobs[b] = -0.01f * (float)random_below(&random, 1500);
        target[b] = 0.1f * (float)random_below(&random, 80);
        tokens[b] = (int32_t)random_below(&random, 9) - 1;
    }
    float *mu_on_gpu = gpu_copy(mu, sizeof mu), *top_p_on_gpu = gpu_copy(top_p, sizeof top_p);
    gumbel_rule_updates host = {.struct_size = sizeof host,
                                .batch = ROWS,
                                .tokens = tokens,
                                .logprobs = logprobs,
                                .live_rows = &live,
                                .surprise = mu,
                                .surprise_target = {target, 1},
                                .top_p = top_p,
                                .top_p_decay = {&decay, GUMBEL_SAME},
                                .top_p_reset = {&reset, GUMBEL_SAME}};
    gumbel_rule_updates device = host;
    device.tokens = gpu_copy(tokens, sizeof tokens);
    device.logprobs = gpu_copy(logprobs, sizeof logprobs);
    device.live_rows = gpu_copy(&live, sizeof live);
    device.surprise = mu_on_gpu;
    device.surprise_target.data = gpu_copy(target, sizeof target);
    device.top_p = top_p_on_gpu;
    device.top_p_decay.data = gpu_copy(&decay, sizeof decay);
    device.top_p_reset.data = gpu_copy(&reset, sizeof reset);
    CHECK(gumbel_update_rules(cpu, NULL, &host, &error) == GUMBEL_OK, "%s", error.message);
    CHECK(gumbel_update_rules(gpu, NULL, &device, &error) == GUMBEL_OK, "%s", error.message);
    GPU(cuCtxSynchronize);
    gpu_fetch(found_mu, mu_on_gpu, sizeof mu);
    gpu_fetch(found_top_p, top_p_on_gpu, sizeof top_p);
    CHECK(memcmp(mu, found_mu, sizeof mu) == 0, "surprise differs");
    CHECK(memcmp(top_p, found_top_p, sizeof top_p) == 0, "top_p differs");
    const void *all[] = {device.tokens,
                         device.logprobs,
                         device.live_rows,
                         mu_on_gpu,
                         top_p_on_gpu,
                         device.surprise_target.data,
                         device.top_p_decay.data,
                         device.top_p_reset.data};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        gpu_free((void *)(uintptr_t)all[i]);
}

/* Targets of ADAPTIVE_P of many rows at once have the CPU's bits. */
static void updates_adaptive(void)
{
    enum { ROWS = 300, ARRAYS = 3 };
    float state[ARRAYS][ROWS], found[ROWS], logprobs[ROWS], goals[ROWS], decays[ROWS];
    int32_t tokens[ROWS];
    uint64_t random = 16;
    gumbel_error error = {"", ""};
    for (int b = 0; b < ROWS; b++) {
        for (int k = 0; k < ARRAYS; k++)
            state[k][b] = 0.01f * (float)random_below(&random, 1000);
        logprobs[b] = b % 50 ? -0.01f * (float)random_below(&random, 1500) : -INFINITY;
        goals[b] = -0.1f + 0.01f * (float)random_below(&random, 110);
        decays[b] = 0.01f * (float)random_below(&random, 100);
        tokens[b] = (int32_t)random_below(&random, 9) - 1;
    }
    gumbel_rule_updates host = {.struct_size = sizeof host,
                                .batch = ROWS,
                                .tokens = tokens,
                                .logprobs = logprobs,
                                .adaptive_target = state[0],
                                .adaptive_sum = state[1],
                                .adaptive_weight = state[2],
                                .adaptive_goal = {goals, 1},
                                .adaptive_decay = {decays, 1}};
    gumbel_rule_updates device = host;
    device.tokens = gpu_copy(tokens, sizeof tokens);
    device.logprobs = gpu_copy(logprobs, sizeof logprobs);
    device.adaptive_target = gpu_copy(state[0], sizeof state[0]);
    device.adaptive_sum = gpu_copy(state[1], sizeof state[1]);
    device.adaptive_weight = gpu_copy(state[2], sizeof state[2]);
    device.adaptive_goal.data = gpu_copy(goals, sizeof goals);
    device.adaptive_decay.data = gpu_copy(decays, sizeof decays);
    CHECK(gumbel_update_rules(cpu, NULL, &host, &error) == GUMBEL_OK, "%s", error.message);
    CHECK(gumbel_update_rules(gpu, NULL, &device, &error) == GUMBEL_OK, "%s", error.message);
    GPU(cuCtxSynchronize);
    const void *all[] = {
        device.adaptive_target, device.adaptive_sum,       device.adaptive_weight,    device.tokens,
        device.logprobs,        device.adaptive_goal.data, device.adaptive_decay.data};
    for (int k = 0; k < ARRAYS; k++) {
        gpu_fetch(found, all[k], sizeof found);
        CHECK(memcmp(state[k], found, sizeof found) == 0, "array %d differs", k);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        gpu_free((void *)(uintptr_t)all[i]);
}

/* ----------------------------------------------------------------------------------- loops ---- */

enum { ROWS_MAX = 24, VOCAB = 3000, STEPS = 1000, RESET = 7, INVALID = 1 /* a row with NaN */ };

static const float RATE = 0.1f, FIRST = 0.95f, DECAY = 0.9f, LEAST = 0.3f;
static const float TARGETS[] = {3, 5, 0.5f};
static const int32_t RESET_TOKEN = RESET;

/* A decode loop on both devices. The parameters are members of the request. */
typedef struct update_loop {
    int rows;
    float mu[ROWS_MAX], top_p[ROWS_MAX], targets[ROWS_MAX];
    int32_t top_k[ROWS_MAX];
    request *req;
    gpu_request *on_gpu;
    outcome *host, *device;
    gumbel_rule_updates updates, updates_on_gpu;
    gumbel_output out; /* on the GPU */
    void *workspace;
    gpu_copies copies;
    gpu_graph graph;
    double surprise; /* sum of the surprise of row 0's tokens */
    int resets;
} update_loop;

/* The request of a loop: drawn by `rules`, or by an order if they are NULL. */
static void make_request(update_loop *loop, const uint8_t *rules)
{
    const request_plan plan = {
        .batch = loop->rows, .vocab = VOCAB, .truncation = 1, .usual = 1, .seed = 70};
    request *r = loop->req = request_make(&plan, cpu);
    for (int b = 0; b < loop->rows; b++) {
        loop->targets[b] = TARGETS[b % 3];
        loop->mu[b] = 2 * loop->targets[b];
        loop->top_p[b] = FIRST;
        loop->top_k[b] = 400;
    }
    r->sampling.temperature = (gumbel_row_f32){NULL, 0};
    r->truncation.top_k = (gumbel_row_i32){loop->top_k, 1};
    r->truncation.top_p = (gumbel_row_f32){loop->top_p, 1};
    if (!rules)
        return;
    r->programs = (gumbel_programs){
        .struct_size = sizeof r->programs, .rules = rules, .count = 1, .surprise = {loop->mu, 1}};
    r->truncation.programs = &r->programs;
}

/* The updates on both devices; the GPU's change the arrays that its request reads. */
static void make_updates(update_loop *loop, int has_surprise)
{
    gumbel_rule_updates *u = &loop->updates, *on_gpu = &loop->updates_on_gpu;
    const request *r = &loop->on_gpu->req;
    *u = (gumbel_rule_updates){.struct_size = sizeof *u,
                               .batch = loop->rows,
                               .tokens = loop->host->tokens,
                               .logprobs = loop->device->logprobs,
                               .surprise = has_surprise ? loop->mu : NULL,
                               .surprise_target = {loop->targets, 1},
                               .surprise_rate = {&RATE, GUMBEL_SAME},
                               .top_p = loop->top_p,
                               .top_p_first = {&FIRST, GUMBEL_SAME},
                               .top_p_decay = {&DECAY, GUMBEL_SAME},
                               .top_p_min = {&LEAST, GUMBEL_SAME},
                               .top_p_reset = {&RESET_TOKEN, GUMBEL_SAME}};
    *on_gpu = *u;
    on_gpu->tokens = loop->out.tokens;
    on_gpu->logprobs = loop->out.logprobs;
    on_gpu->surprise = has_surprise ? (float *)loop->on_gpu->programs.surprise.data : NULL;
    on_gpu->top_p = (float *)r->truncation.top_p.data;
    on_gpu->surprise_target.data =
        gpu_copies_add(&loop->copies, loop->targets, (size_t)loop->rows * sizeof(float));
    on_gpu->surprise_rate.data = gpu_copies_add(&loop->copies, &RATE, sizeof RATE);
    on_gpu->top_p_first.data = gpu_copies_add(&loop->copies, &FIRST, sizeof FIRST);
    on_gpu->top_p_decay.data = gpu_copies_add(&loop->copies, &DECAY, sizeof DECAY);
    on_gpu->top_p_min.data = gpu_copies_add(&loop->copies, &LEAST, sizeof LEAST);
    on_gpu->top_p_reset.data = gpu_copies_add(&loop->copies, &RESET_TOKEN, sizeof RESET_TOKEN);
}

/* Captures a step of the GPU: the draw, the updates, and the next positions. */
static void capture_step(update_loop *loop)
{
    const request *r = &loop->on_gpu->req;
    const gumbel_step step = {.struct_size = sizeof step,
                              .batch = loop->rows,
                              .num_samples = 1,
                              .position = (uint64_t *)r->sampling.position.data};
    gumbel_error error = {"", ""};
    size_t bytes;
    if (gumbel_workspace_size(gpu, NULL, &r->logits, &r->sampling, &loop->out, &bytes, &error) !=
        GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    loop->workspace = gpu_hostile(bytes);
    loop->graph = gpu_graph_begin();
    CUstream stream = loop->graph.stream;
    if (gumbel_sample_logits(gpu, stream, &r->logits, &r->sampling, &loop->out, loop->workspace,
                             bytes, &error) != GUMBEL_OK ||
        gumbel_update_rules(gpu, stream, &loop->updates_on_gpu, &error) != GUMBEL_OK ||
        gumbel_advance(gpu, stream, &step, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    gpu_graph_end(&loop->graph);
}

/* Other logits for each step, on both devices; in some steps a row has a NaN, and draws nothing. */
static void put_logits(update_loop *loop, int step)
{
    const gumbel_tensor *t = &loop->req->logits.logits;
    float *logits = (float *)t->data;
    const int64_t stride = t->stride ? t->stride : t->cols;
    uint64_t random = 77 + (uint64_t)step;
    for (int b = 0; b < loop->rows; b++) {
        for (int i = 0; i < VOCAB; i++)
            logits[b * stride + i] = 2 * random_normal(&random);
        logits[b * stride + RESET] = 7;
    }
    if (step % 10 == 9)
        logits[INVALID * stride] = NAN;
    gpu_put((void *)loop->on_gpu->req.logits.logits.data, logits,
            (size_t)(loop->rows * stride) * sizeof *logits);
}

/* CHECKs that a row's parameters, with the values `mu` and `top_p` before, follow the rules. */
static int follows_rules(update_loop *loop, int b, double mu, double top_p)
{
    const int32_t token = loop->device->tokens[b];
    const double bits = -(double)loop->device->logprobs[b] / log(2.0);
    if (token >= 0) {
        mu = fmax(mu - (double)RATE * (bits - (double)loop->targets[b]), 0);
        top_p = token == RESET ? (double)FIRST : fmax(top_p * (double)DECAY, (double)LEAST);
        loop->resets += token == RESET;
        loop->surprise += b == 0 ? bits : 0;
    }
    return CHECK(!loop->updates.surprise || fabs((double)loop->mu[b] - mu) < 1e-5 * (1 + mu),
                 "row %d: mu is %g instead of %g", b, (double)loop->mu[b], mu) &&
           CHECK(fabs((double)loop->top_p[b] - top_p) < 1e-6, "row %d: top_p is %g instead of %g",
                 b, (double)loop->top_p[b], top_p);
}

/* Runs a step on both devices. The CPU's updates read the GPU's log-probabilities, which may differ
 * from its own by two ulps. Returns 0 if anything differs. */
static int run_step(update_loop *loop, int step)
{
    const size_t bytes = (size_t)loop->rows * sizeof(float);
    float mu[ROWS_MAX], top_p[ROWS_MAX], found_mu[ROWS_MAX], found_top_p[ROWS_MAX];
    gumbel_error error = {"", ""};
    const gumbel_step next = {.struct_size = sizeof next,
                              .batch = loop->rows,
                              .num_samples = 1,
                              .position = (uint64_t *)loop->req->sampling.position.data};
    put_logits(loop, step);
    gpu_graph_replay(&loop->graph);
    gpu_output_fetch(&loop->out, loop->device);
    memcpy(mu, loop->mu, bytes);
    memcpy(top_p, loop->top_p, bytes);
    int same = CHECK(request_draw(cpu, loop->req, loop->host) == GUMBEL_OK, "step %d", step) &&
               compare_request(loop->host, loop->device, "a step") &&
               CHECK(gumbel_update_rules(cpu, NULL, &loop->updates, &error) == GUMBEL_OK &&
                         gumbel_advance(cpu, NULL, &next, &error) == GUMBEL_OK,
                     "%s: %s", error.field, error.message);
    memcpy(found_mu, loop->mu, bytes);
    if (loop->updates.surprise)
        gpu_fetch(found_mu, loop->updates_on_gpu.surprise, bytes);
    gpu_fetch(found_top_p, loop->updates_on_gpu.top_p, bytes);
    same = same && CHECK(memcmp(loop->mu, found_mu, bytes) == 0, "step %d: mu differs", step) &&
           CHECK(memcmp(loop->top_p, found_top_p, bytes) == 0, "step %d: top_p differs", step);
    for (int b = 0; b < loop->rows && same; b++)
        same = follows_rules(loop, b, (double)mu[b], (double)top_p[b]);
    return same;
}

static void run_loop(int rows, const uint8_t *rules)
{
    update_loop *loop = make_zeroed(1, sizeof *loop);
    int steps = 0;
    loop->rows = rows;
    make_request(loop, rules);
    loop->on_gpu = gpu_request_make(loop->req);
    loop->host = request_outcome(loop->req);
    loop->device = request_outcome(loop->req);
    loop->out = gpu_output_make(loop->device);
    make_updates(loop, rules != NULL);
    capture_step(loop);
    while (steps < STEPS && run_step(loop, steps))
        steps++;
    CHECK(steps == STEPS, "%d rows: step %d differs", rows, steps);
    CHECK(loop->resets > STEPS / 20, "%d resets", loop->resets);
    CHECK(!rules || fabs(loop->surprise / STEPS - (double)TARGETS[0]) < 0.1,
          "the mean surprise of row 0 is %g", loop->surprise / STEPS);
    gpu_graph_free(&loop->graph);
    gpu_output_free(&loop->out);
    gpu_free(loop->workspace);
    gpu_copies_free(&loop->copies);
    gpu_request_free(loop->on_gpu);
    outcome_free(loop->host);
    outcome_free(loop->device);
    request_free(loop->req);
    free(loop);
}

/* mu over whole rows, and by rules that lists of the largest tokens serve. */
static void updates_mirostat(void)
{
    static const uint8_t rules[GUMBEL_PROGRAM_LENGTH] = {GUMBEL_PROGRAM_TEMPERATURE,
                                                         GUMBEL_PROGRAM_SURPRISE};
    static const uint8_t listed[GUMBEL_PROGRAM_LENGTH] = {
        GUMBEL_PROGRAM_TOP_K, GUMBEL_PROGRAM_TEMPERATURE, GUMBEL_PROGRAM_SURPRISE};
    run_loop(3, rules);
    run_loop(ROWS_MAX, listed);
}

/* top_p before the surprise of a program, and in an order. */
static void updates_top_p(void)
{
    static const uint8_t rules[GUMBEL_PROGRAM_LENGTH] = {
        GUMBEL_PROGRAM_TOP_P, GUMBEL_PROGRAM_TEMPERATURE, GUMBEL_PROGRAM_SURPRISE};
    run_loop(4, rules);
    run_loop(ROWS_MAX, NULL);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"updates_alone", updates_alone},
        {"updates_adaptive", updates_adaptive},
        {"updates_mirostat", updates_mirostat},
        {"updates_top_p", updates_top_p},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}

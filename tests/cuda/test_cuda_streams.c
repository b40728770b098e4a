/* SPDX-License-Identifier: Apache-2.0
 *
 * Calls on streams of a GPU: repeats, two streams at once, graphs, chains of steps without the CPU,
 * noise on a side stream, and errors.
 */
#include "cuda_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A call whose buffers stay in device memory during a test. */
typedef struct call {
    problem *host, *device;
    void *workspace;
    size_t workspace_bytes;
    gumbel_output output; /* tokens and scores */
    int64_t draws;
} call;

static call call_make_by(const problem_plan *plan)
{
    int64_t batch = plan->batch;
    call c = {.host = problem_make(plan), .draws = batch};
    gumbel_error error;
    c.device = gpu_problem(c.host);
    c.output = (gumbel_output){.struct_size = sizeof c.output,
                               .tokens = gpu_make((size_t)batch * sizeof(int32_t)),
                               .scores = gpu_make((size_t)batch * sizeof(float))};
    gumbel_sampling ahead = c.device->sampling; /* the largest workspace */
    ahead.noise = c.output.scores;
    CHECK(gumbel_workspace_size(gpu, &c.device->head, NULL, &ahead, &c.output, &c.workspace_bytes,
                                &error) == GUMBEL_OK,
          "%s", error.message);
    c.workspace = gpu_hostile(c.workspace_bytes);
    return c;
}

static call call_make_of(int64_t batch, uint64_t seed, gumbel_dtype dtype)
{
    problem_plan plan = {.batch = batch,
                         .vocab = 4096,
                         .hidden_size = 256,
                         .seed = seed,
                         .weight_dtype = dtype,
                         .hidden_dtype = dtype};
    return call_make_by(&plan);
}

static call call_make(int64_t batch, uint64_t seed)
{
    return call_make_of(batch, seed, GUMBEL_BFLOAT16);
}

static void call_free(call *c)
{
    gpu_free(c->workspace);
    gpu_free(c->output.tokens);
    gpu_free(c->output.scores);
    gpu_problem_free(c->device);
    problem_free(c->host);
}

static void call_queue(call *c, CUstream stream)
{
    gumbel_error error = {"", ""};
    gumbel_status status = gumbel_sample(gpu, stream, &c->device->head, &c->device->sampling,
                                         &c->output, c->workspace, c->workspace_bytes, &error);
    if (status != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
}

/* Tokens, then the bits of scores. */
static int32_t *call_results(const call *c)
{
    size_t bytes = (size_t)c->draws * sizeof(int32_t);
    int32_t *results = make_zeroed(2 * (size_t)c->draws, sizeof *results);
    gpu_fetch(results, c->output.tokens, bytes);
    gpu_fetch(results + c->draws, c->output.scores, bytes);
    return results;
}

static void check_results(const call *c, const int32_t *wanted, const char *what, int index)
{
    int32_t *found = call_results(c);
    for (int64_t i = 0; i < 2 * c->draws; i++)
        if (!CHECK(found[i] == wanted[i], "%s %d, B %d: result %d is %d, not %d", what, index,
                   (int)c->draws, (int)i, (int)found[i], (int)wanted[i]))
            break;
    free(found);
}

static void repeats(void)
{
    static const int64_t batches[] = {1, 5, 64, 256};
    for (int i = 0; i < 4; i++) {
        call c = call_make(batches[i], 40 + (uint64_t)i);
        call_queue(&c, NULL);
        GPU(cuCtxSynchronize);
        int32_t *wanted = call_results(&c);
        for (int repeat = 0; repeat < 1000; repeat++) {
            call_queue(&c, NULL);
            GPU(cuCtxSynchronize);
            check_results(&c, wanted, "repeat", repeat);
        }
        free(wanted);
        call_free(&c);
    }
}

static void two_streams(void)
{
    call a = call_make(3, 50), b = call_make(130, 51);
    CUstream first, second;
    GPU(cuStreamCreate, &first, CU_STREAM_NON_BLOCKING);
    GPU(cuStreamCreate, &second, CU_STREAM_NON_BLOCKING);
    call_queue(&a, first);
    GPU(cuCtxSynchronize);
    call_queue(&b, first);
    GPU(cuCtxSynchronize);
    int32_t *wanted_a = call_results(&a), *wanted_b = call_results(&b);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 8; i++) {
            call_queue(&a, first);
            call_queue(&b, second);
        }
        GPU(cuStreamSynchronize, first);
        GPU(cuStreamSynchronize, second);
        check_results(&a, wanted_a, "first stream, round", round);
        check_results(&b, wanted_b, "second stream, round", round);
    }
    GPU(cuStreamDestroy, first);
    GPU(cuStreamDestroy, second);
    free(wanted_a);
    free(wanted_b);
    call_free(&a);
    call_free(&b);
}

/* A step captured once and replayed with positions advanced in device memory. */
static void graphs(void)
{
    static const int64_t batches[] = {1, 20, 300};
    enum { STEPS = 30 };
    for (int i = 0; i < 3; i++) {
        call c = call_make(batches[i], 60 + (uint64_t)i);
        size_t bytes = (size_t)c.draws * sizeof(uint64_t);
        int32_t *wanted[STEPS];
        for (int step = 0; step < STEPS; step++) {
            for (int64_t b = 0; b < c.draws; b++)
                c.host->position[b]++;
            gpu_put(c.device->position, c.host->position, bytes);
            call_queue(&c, NULL);
            GPU(cuCtxSynchronize);
            wanted[step] = call_results(&c);
        }
        gpu_graph graph = gpu_graph_begin();
        call_queue(&c, graph.stream);
        gpu_graph_end(&graph);
        gpu_poison(c.workspace, c.workspace_bytes);
        for (int64_t b = 0; b < c.draws; b++)
            c.host->position[b] -= STEPS;
        for (int step = 0; step < STEPS; step++) {
            for (int64_t b = 0; b < c.draws; b++)
                c.host->position[b]++;
            gpu_put(c.device->position, c.host->position, bytes);
            gpu_graph_replay(&graph);
            check_results(&c, wanted[step], "replay", step);
            free(wanted[step]);
        }
        gpu_graph_free(&graph);
        call_free(&c);
    }
}

/* Noise of the call's rows at its positions, into `noise` [B, V]. */
static void noise_queue(const call *c, float *noise, CUstream stream)
{
    gumbel_sampling sampling = c->device->sampling;
    sampling.noise = NULL;
    make_noise(gpu, stream, &sampling, c->draws, 0, c->host->plan.vocab, noise, 0);
}

/* Queue the end of a step. */
static void step_queue(const call *c, int32_t *ring, int64_t length, CUstream stream)
{
    gumbel_error error = {"", ""};
    gumbel_step step = {.struct_size = sizeof step,
                        .batch = c->draws,
                        .tokens = c->output.tokens,
                        .position = c->device->position,
                        .ring = ring,
                        .ring_length = length};
    if (gumbel_advance(gpu, stream, &step, &error) != GUMBEL_OK)
        die("gumbel_advance: %s: %s", error.field, error.message);
}

/* Tokens [steps, B] of separate calls; the CPU advances positions in between, and restores them. */
static int32_t *separate_calls(call *c, int steps)
{
    size_t rows = (size_t)c->draws, bytes = rows * sizeof(int32_t);
    int32_t *tokens = make_zeroed((size_t)steps * rows, sizeof *tokens);
    for (int step = 0; step < steps; step++) {
        call_queue(c, NULL);
        GPU(cuCtxSynchronize);
        gpu_fetch(tokens + (size_t)step * rows, c->output.tokens, bytes);
        for (size_t b = 0; b < rows; b++)
            c->host->position[b]++;
        gpu_put(c->device->position, c->host->position, rows * sizeof(uint64_t));
    }
    for (size_t b = 0; b < rows; b++)
        c->host->position[b] -= (uint32_t)steps;
    gpu_put(c->device->position, c->host->position, rows * sizeof(uint64_t));
    return tokens;
}

/* The ring holds the last `length` of `steps` tokens of each row, by its own positions. */
static void check_ring(const call *c, const int32_t *wanted, int steps, const int32_t *ring,
                       int64_t length, const char *what)
{
    int64_t rows = c->draws;
    int32_t *found = make_zeroed((size_t)(length * rows), sizeof *found);
    gpu_fetch(found, ring, (size_t)(length * rows) * sizeof *found);
    for (int64_t step = steps > length ? steps - length : 0; step < steps; step++)
        for (int64_t b = 0; b < rows; b++) {
            int64_t slot = (int64_t)((c->host->position[b] + (uint64_t)step) % (uint64_t)length);
            CHECK(found[slot * rows + b] == wanted[step * rows + b],
                  "%s, B %d: step %d of row %d is %d, not %d", what, (int)rows, (int)step, (int)b,
                  (int)found[slot * rows + b], (int)wanted[step * rows + b]);
        }
    draws_compared += steps * rows;
    free(found);
}

/* A captured step (noise ahead or on the fly, the draw, the end of the step), replayed several
 * times without synchronisation, gives the tokens of separate calls. */
static void check_chain_of(call *c, int64_t length, int ahead, const char *what)
{
    enum { STEPS = 40 };
    const int64_t batch = c->draws;
    int32_t *wanted = separate_calls(c, STEPS);
    int32_t *ring = gpu_make((size_t)(length * batch) * sizeof *ring);
    float *noise = ahead ? gpu_make((size_t)(batch * c->host->plan.vocab) * sizeof *noise) : NULL;
    gpu_graph graph = gpu_graph_begin();
    if (ahead)
        noise_queue(c, noise, graph.stream);
    c->device->sampling.noise = noise;
    call_queue(c, graph.stream);
    step_queue(c, ring, length, graph.stream);
    gpu_graph_end(&graph);
    for (int step = 0; step < STEPS; step++)
        GPU(cuGraphLaunch, graph.replay, graph.stream);
    GPU(cuStreamSynchronize, graph.stream);
    check_ring(c, wanted, STEPS, ring, length, what);
    gpu_graph_free(&graph);
    gpu_free(noise);
    gpu_free(ring);
    free(wanted);
    call_free(c);
}

static void check_chain(int64_t batch, gumbel_dtype dtype, int64_t length, int ahead)
{
    call c = call_make_of(batch, 80 + (uint64_t)batch, dtype);
    check_chain_of(&c, length, ahead, ahead ? "noise ahead" : "on the fly");
}

/* Captured steps with a truncation, with enough tokens that products of medium batches store only
 * logits above a bound. Rows are read before such a product ends: stale reads would use positions
 * of the step before the previous one. */
static void check_truncated_chain(int64_t batch, int by_top_k)
{
    static const int32_t top_k = 20;
    static const float min_p = 0.02f, top_p = 0.95f;
    problem_plan plan = {.batch = batch,
                         .vocab = 65536,
                         .hidden_size = 128,
                         .seed = 90 + (uint64_t)batch,
                         .weight_dtype = GUMBEL_BFLOAT16,
                         .hidden_dtype = GUMBEL_BFLOAT16};
    call c = call_make_by(&plan);
    int32_t *k = gpu_copy(&top_k, sizeof top_k);
    float *p = gpu_copy(&top_p, sizeof top_p), *m = gpu_copy(&min_p, sizeof min_p);
    gumbel_truncation cut = {.struct_size = sizeof cut,
                             .top_k = {by_top_k ? k : NULL, by_top_k ? GUMBEL_SAME : 0},
                             .top_p = {by_top_k ? p : NULL, by_top_k ? GUMBEL_SAME : 0},
                             .min_p = {by_top_k ? NULL : m, by_top_k ? 0 : GUMBEL_SAME}};
    gumbel_error error = {"", ""};
    c.device->sampling.truncation = &cut;
    gpu_free(c.workspace);
    CHECK(gumbel_workspace_size(gpu, &c.device->head, NULL, &c.device->sampling, &c.output,
                                &c.workspace_bytes, &error) == GUMBEL_OK,
          "%s", error.message);
    c.workspace = gpu_hostile(c.workspace_bytes);
    check_chain_of(&c, 40, 0, by_top_k ? "top_k, top_p" : "min_p");
    gpu_free(k);
    gpu_free(p);
    gpu_free(m);
}

static void chain(void)
{
    check_chain(1, GUMBEL_BFLOAT16, 40, 0);
    check_chain(5, GUMBEL_BFLOAT16, 7, 0);
    check_chain(300, GUMBEL_BFLOAT16, 64, 0);
    check_chain(3, GUMBEL_FLOAT32, 40, 0);
    check_chain(3, GUMBEL_FLOAT32, 40, 1);
    for (int by_top_k = 0; by_top_k < 2; by_top_k++) {
        check_truncated_chain(3, by_top_k);
        check_truncated_chain(8, by_top_k);
        check_truncated_chain(64, by_top_k);
    }
}

/* While a step is drawn, a side stream computes the noise of the next step, with two buffers. Each
 * stream waits for an event of the other before it reuses a buffer. */
static void side_stream(void)
{
    enum { STEPS = 40, BATCH = 6 };
    call c = call_make_of(BATCH, 90, GUMBEL_FLOAT32);
    int32_t *wanted = separate_calls(&c, STEPS), *ring = gpu_make(STEPS * BATCH * sizeof *ring);
    size_t bytes = BATCH * (size_t)c.host->plan.vocab * sizeof(float);
    float *noise[2] = {gpu_make(bytes), gpu_make(bytes)};
    uint64_t *drawing = c.device->position;
    uint64_t *making = gpu_copy(c.host->position, BATCH * sizeof *making);
    CUstream stream, side;
    CUevent generated[2], used[2];
    GPU(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    GPU(cuStreamCreate, &side, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 2; i++) {
        GPU(cuEventCreate, &generated[i], CU_EVENT_DISABLE_TIMING);
        GPU(cuEventCreate, &used[i], CU_EVENT_DISABLE_TIMING);
    }
    gumbel_step ahead = {.struct_size = sizeof ahead, .batch = BATCH, .position = making};
    for (int step = 0; step < STEPS; step++) {
        int turn = step % 2;
        if (step >= 2)
            GPU(cuStreamWaitEvent, side, used[turn], 0);
        c.device->sampling.position.data = making;
        noise_queue(&c, noise[turn], side);
        CHECK(gumbel_advance(gpu, side, &ahead, NULL) == GUMBEL_OK, "step %d", step);
        GPU(cuEventRecord, generated[turn], side);
        GPU(cuStreamWaitEvent, stream, generated[turn], 0);
        c.device->sampling.position.data = drawing;
        c.device->sampling.noise = noise[turn];
        call_queue(&c, stream);
        step_queue(&c, ring, STEPS, stream);
        GPU(cuEventRecord, used[turn], stream);
    }
    GPU(cuStreamSynchronize, stream);
    check_ring(&c, wanted, STEPS, ring, STEPS, "side stream");
    for (int i = 0; i < 2; i++) {
        GPU(cuEventDestroy, generated[i]);
        GPU(cuEventDestroy, used[i]);
        gpu_free(noise[i]);
    }
    GPU(cuStreamDestroy, stream);
    GPU(cuStreamDestroy, side);
    gpu_free(making);
    gpu_free(ring);
    free(wanted);
    call_free(&c);
}

/* Copy weights and hidden states of a call to those of `to`. */
static void inputs_queue(const call *to, const call *from, CUstream stream)
{
    const problem_plan *plan = &to->host->plan;
    size_t row = (size_t)plan->hidden_size * sizeof(uint16_t);
    GPU(cuMemcpyDtoDAsync, (CUdeviceptr)to->device->weight, (CUdeviceptr)from->device->weight,
        (size_t)plan->vocab * row, stream);
    GPU(cuMemcpyDtoDAsync, (CUdeviceptr)to->device->hidden, (CUdeviceptr)from->device->hidden,
        (size_t)plan->batch * row, stream);
}

/* A call reads data written just before it, although it may start while the write ends; also after
 * joining two streams. */
static void fresh_inputs(void)
{
    problem_plan plan = {.batch = 40,
                         .vocab = 40000,
                         .hidden_size = 512,
                         .seed = 80,
                         .weight_dtype = GUMBEL_BFLOAT16,
                         .hidden_dtype = GUMBEL_BFLOAT16};
    call from[2], into[2]; /* into[1] writes elsewhere */
    int32_t *wanted[2];
    CUstream side;
    CUevent begun, done;
    GPU(cuStreamCreate, &side, CU_STREAM_NON_BLOCKING);
    GPU(cuEventCreate, &begun, CU_EVENT_DISABLE_TIMING);
    GPU(cuEventCreate, &done, CU_EVENT_DISABLE_TIMING);
    into[0] = into[1] = call_make_by(&plan);
    into[1].output.tokens = gpu_make((size_t)plan.batch * sizeof(int32_t));
    into[1].output.scores = gpu_make((size_t)plan.batch * sizeof(float));
    for (int i = 0; i < 2; i++) {
        plan.seed = 81 + (uint64_t)i;
        from[i] = call_make_by(&plan);
        inputs_queue(&into[i], &from[i], NULL);
        call_queue(&into[i], NULL);
        GPU(cuCtxSynchronize);
        wanted[i] = call_results(&into[i]);
    }
    CHECK(memcmp(wanted[0], wanted[1], (size_t)plan.batch * sizeof(int32_t)) != 0, "as drawn from");
    gpu_graph graph = gpu_graph_begin();
    inputs_queue(&into[0], &from[0], graph.stream);
    call_queue(&into[0], graph.stream);
    GPU(cuEventRecord, begun, graph.stream);
    GPU(cuStreamWaitEvent, side, begun, 0);
    inputs_queue(&into[1], &from[1], side);
    GPU(cuEventRecord, done, side);
    GPU(cuStreamWaitEvent, graph.stream, done, 0);
    call_queue(&into[1], graph.stream);
    inputs_queue(&into[0], &from[0], graph.stream);
    call_queue(&into[0], graph.stream);
    gpu_graph_end(&graph);
    for (int round = 0; round < 100; round++) {
        gpu_graph_replay(&graph);
        for (int i = 0; i < 2; i++)
            check_results(&into[i], wanted[i], "inputs", i);
    }
    gpu_graph_free(&graph);
    GPU(cuEventDestroy, begun);
    GPU(cuEventDestroy, done);
    GPU(cuStreamDestroy, side);
    gpu_free(into[1].output.tokens);
    gpu_free(into[1].output.scores);
    call_free(&into[0]);
    for (int i = 0; i < 2; i++) {
        call_free(&from[i]);
        free(wanted[i]);
    }
}

static void refusals(void)
{
    call c = call_make(2, 70);
    gumbel_error error = {"", ""};
    gumbel_device_info info = {.struct_size = sizeof info};
    gumbel_device *none;
    gumbel_device_options options = {.struct_size = sizeof options, .device = "cuda:99"};
    CHECK(gumbel_describe(gpu, &info) == GUMBEL_OK && strcmp(info.name, "cuda:0") == 0, "%s",
          info.name);
    printf("%s: %s, %d multiprocessors\n", info.name, info.description, (int)info.threads);
    CHECK(gumbel_open(&options, &none, &error) == GUMBEL_ERROR_UNSUPPORTED && !none, "%s",
          error.message);
    size_t bytes = 0;
    CHECK(gumbel_workspace_size(gpu, &c.device->head, NULL, &c.device->sampling, &c.output, &bytes,
                                &error) == GUMBEL_OK,
          "%s", error.message);
    CHECK(gumbel_sample(gpu, NULL, &c.device->head, &c.device->sampling, &c.output, c.workspace,
                        bytes - 1, &error) == GUMBEL_ERROR_WORKSPACE,
          "%s", error.message);
    CHECK(gumbel_sample(cpu, &c, &c.host->head, &c.host->sampling, &c.output, c.workspace,
                        c.workspace_bytes, &error) == GUMBEL_ERROR_ARGUMENT &&
              strcmp(error.field, "stream") == 0,
          "%s: %s", error.field, error.message);
    call_free(&c);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"streams_repeats", repeats},         {"streams_pair", two_streams},
        {"streams_graphs", graphs},           {"streams_chain", chain},
        {"streams_side_stream", side_stream}, {"streams_fresh_inputs", fresh_inputs},
        {"streams_refusals", refusals},       {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}

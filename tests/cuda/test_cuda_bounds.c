/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests whose product stores only logits above a bound (bound_sm90.cuh), compared with the CPU:
 * products that are exact in any order of sums, and inputs that defeat the bounds.
 */
#include "cuda_requests.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Some five tiles of 128 tokens for each of 132 multiprocessors. With this D bounds are available
 * in time. */
enum {
    VOCAB = 80000,
    SIZE = 2048,
    SMALL_SIZE = 64,
    BATCH_MAX = 128,
    WORDS = (VOCAB + 31) / 32,
    EVERY = 97,
    HEAD_SIZE = 10000
};

/* Bits of a case: changes to logits of a standard deviation of about 19. */
enum {
    MASKED = 1, /* every EVERY-th token is masked */
    PENALISED = 2,
    RAISED = 4,   /* these tokens are the largest by far */
    RISING = 8,   /* the largest tokens come last */
    FALLING = 16, /* the largest tokens come first */
    FLAT = 32,    /* all are 0 */
    TIED = 64,    /* no bias distinguishes tokens */
    HEAD = 128,   /* the first HEAD_SIZE tokens are the largest by far */
    CAPPED = 256, /* a soft-cap makes the larger logits equal */
};

typedef struct bound_case {
    const char *name;
    float temperature;
    int32_t top_k;
    float top_p, min_p;
    int bits;
} bound_case;

static const bound_case CASES[] = {
    {"k = 50, p = 0.95", 8, 50, 0.95f, 0, 0},
    {"largest last", 8, 50, 0.95f, 0, RISING},
    {"largest first", 8, 50, 0.95f, 0, FALLING},
    {"the largest masked", 8, 50, 0.95f, 0, MASKED | RAISED},
    {"some masked", 8, 40, 1, 0.02f, MASKED},
    {"some penalised", 8, 50, 0.95f, 0, PENALISED},
    {"the largest penalised", 8, 50, 0.95f, 0, PENALISED | RAISED},
    {"all equal", 1, 50, 0.95f, 0, FLAT | TIED},
    {"ties at the cut", 8, 50, 0.95f, 0, TIED},
    {"more ties than one CTA serves", 8, 50, 0.95f, 0, FLAT | TIED | HEAD},
    {"more ties, some masked", 8, 50, 0.95f, 0, FLAT | TIED | HEAD | MASKED},
    {"soft-cap", 1, 50, 0.95f, 0, CAPPED},
    {"soft-cap, largest first", 1, 50, 0.95f, 0, CAPPED | FALLING},
    {"a temperature that makes ties", 1e25f, 50, 0.95f, 0, 0},
    {"k = V", 8, VOCAB, 1, 0, 0},
    {"k = 256, p = 1 - 1e-7", 8, 256, 0x1.fffffep-1f, 0, 0},
    {"min_p alone", 8, 0, 1, 0.1f, 0},
    {"min_p, the largest penalised", 2, 0, 1, 0.5f, PENALISED | RAISED},
    {"greedy", 0, 50, 0.95f, 0, 0},
    {"p alone", 2, 0, 0.9f, 0, 0},
};
enum { CASE_COUNT = sizeof CASES / sizeof *CASES };

/* The head of all cases, without its bias, and the bits of every EVERY-th token. */
typedef struct bound_world {
    int64_t size; /* D */
    gumbel_tensor weight, hidden;
    uint16_t *zeros; /* [BATCH_MAX, D] */
    float *bias;
    uint32_t *chosen, *nothing; /* [BATCH_MAX, WORDS] */
    uint16_t *counts;           /* [BATCH_MAX, VOCAB] */
} bound_world;

/* Multiples of 1/4: their products are exact in any order of sums. */
static gumbel_tensor make_exact(int64_t rows, int64_t size, uint64_t seed)
{
    uint16_t *data = make_zeroed((size_t)(rows * size), sizeof *data);
    for (int64_t i = 0; i < rows * size; i++)
        dtype_store(data, GUMBEL_BFLOAT16, i, 0.25f * ((float)random_below(&seed, 9) - 4));
    return tensor_of(data, GUMBEL_BFLOAT16, rows, size, 0);
}

static bound_world make_world(int64_t size)
{
    bound_world w = {.size = size};
    w.weight = make_exact(VOCAB, size, 1);
    w.hidden = make_exact(BATCH_MAX, size, 2);
    w.zeros = make_zeroed((size_t)(BATCH_MAX * size), sizeof *w.zeros);
    w.bias = make_zeroed(VOCAB, sizeof *w.bias);
    w.chosen = make_zeroed((size_t)BATCH_MAX * WORDS, sizeof *w.chosen);
    w.nothing = make_zeroed((size_t)BATCH_MAX * WORDS, sizeof *w.nothing);
    w.counts = make_zeroed((size_t)BATCH_MAX * VOCAB, sizeof *w.counts);
    for (int64_t b = 0; b < BATCH_MAX; b++)
        for (int64_t i = 0; i < VOCAB; i += EVERY) {
            w.chosen[b * WORDS + i / 32] |= 1u << i % 32;
            w.counts[b * VOCAB + i] = 1;
        }
    return w;
}

static void free_world(const bound_world *w)
{
    free((void *)w->weight.data);
    free((void *)w->hidden.data);
    free(w->zeros);
    free(w->bias);
    free(w->chosen);
    free(w->nothing);
    free(w->counts);
}

/* A bias that adds exactly to the product, and differs from token to token. */
static void fill_bias(bound_world *w, const bound_case *of)
{
    for (int64_t i = 0; i < VOCAB; i++) {
        float own = of->bits & TIED ? 0 : 0x1p-12f * (float)(i * 7919 % 4096);
        own += of->bits & RISING ? 0x1p-8f * (float)i : 0;
        own -= of->bits & FALLING ? 0x1p-8f * (float)i : 0;
        int raised = (of->bits & RAISED && i % EVERY == 0) || (of->bits & HEAD && i < HEAD_SIZE);
        w->bias[i] = own + (raised ? 512.0f : 0);
    }
}

/* A request of the world; free it with request_free(). `of` and the world own its arguments, and
 * must live as long. */
static request *make_generated_request(bound_world *w, const bound_case *of, int64_t batch)
{
    request_plan plan = {.batch = batch,
                         .vocab = VOCAB,
                         .num_top = of->top_k ? 20 : 0,
                         .truncation = 1,
                         .kind = 1 + ROW_EQUAL,
                         .seed = (uint64_t)batch};
    request *req = request_make(&plan, cpu);
    static const float much = 1000;
    req->head = (gumbel_head){.struct_size = sizeof req->head,
                              .hidden = w->hidden,
                              .weight = w->weight,
                              .bias = tensor_of(w->bias, GUMBEL_FLOAT32, 1, VOCAB, 0),
                              .soft_cap = of->bits & CAPPED ? 4.0f : 0.0f};
    fill_bias(w, of);
    req->plan.hidden_size = w->size;
    req->head.hidden.rows = batch;
    if (of->bits & FLAT)
        req->head.hidden.data = w->zeros;
    req->sampling.temperature = (gumbel_row_f32){&of->temperature, GUMBEL_SAME};
    req->truncation.top_k = (gumbel_row_i32){&of->top_k, GUMBEL_SAME};
    req->truncation.top_p = (gumbel_row_f32){&of->top_p, GUMBEL_SAME};
    req->truncation.min_p = (gumbel_row_f32){&of->min_p, GUMBEL_SAME};
    req->transforms = (gumbel_transforms){.struct_size = sizeof req->transforms};
    if (of->bits & MASKED) {
        for (int64_t i = 0; i < BATCH_MAX * WORDS; i++)
            w->nothing[i] = ~w->chosen[i];
        req->transforms.mask = (gumbel_row_i32){(const int32_t *)w->nothing, WORDS};
    } else if (of->bits & PENALISED) {
        memset(w->nothing, 0, (size_t)BATCH_MAX * WORDS * sizeof *w->nothing);
        req->history = (gumbel_history){.struct_size = sizeof req->history,
                                        .vocab_size = VOCAB,
                                        .prompt = w->nothing,
                                        .output = w->chosen,
                                        .counts = w->counts};
        req->transforms.history = &req->history;
        req->transforms.presence = (gumbel_row_f32){&much, GUMBEL_SAME};
    }
    if (of->bits & (MASKED | PENALISED))
        req->sampling.transforms = &req->transforms;
    return req;
}

static void compare_case(bound_world *w, const bound_case *of, int64_t batch)
{
    request *req = make_generated_request(w, of, batch);
    gpu_request *on_gpu = gpu_request_make(req);
    outcome *host = request_outcome(req), *device = request_outcome(req);
    CHECK(request_draw_fused(cpu, req, host) == GUMBEL_OK, "%s", of->name);
    gpu_request_draw(on_gpu, 1, device);
    compare_request(host, device, of->name);
    outcome_free(host);
    outcome_free(device);
    gpu_request_free(on_gpu);
    request_free(req);
}

static void bounds_cases(void)
{
    static const int64_t few[] = {5, 17, 9}, many[] = {64, 32, 100, 33, 128};
    bound_world w = make_world(SIZE);
    for (int i = 0; i < CASE_COUNT; i++) {
        compare_case(&w, &CASES[i], few[i % 3]);
        compare_case(&w, &CASES[i], many[i % 5]);
    }
    free_world(&w);
}

/* For compute-sanitizer. */
static void bounds_small(void)
{
    bound_world w = make_world(SMALL_SIZE);
    compare_case(&w, &CASES[6], 40);
    compare_case(&w, &CASES[9], 70);
    free_world(&w);
}

/* For racecheck, which takes half a second a row. */
static void bounds_few(void)
{
    bound_world w = make_world(SMALL_SIZE);
    compare_case(&w, &CASES[6], 34);
    free_world(&w);
}

/* Replays whose logits shrink and grow: bounds of the previous replay must not be used. */
static void bounds_graph(void)
{
    bound_world w = make_world(SIZE);
    request *req = make_generated_request(&w, &CASES[0], 64);
    gpu_request *on_gpu = gpu_request_make(req);
    request *r = &on_gpu->req;
    outcome *host = request_outcome(req), *device = request_outcome(req);
    gpu_replay captured = gpu_request_capture(on_gpu, 1, device);
    for (int replay = 0; replay < 6; replay++) {
        uint16_t *hidden = (uint16_t *)w.hidden.data;
        for (int64_t i = 0; i < 64 * SIZE; i++)
            dtype_store(hidden, GUMBEL_BFLOAT16, i,
                        dtype_load(hidden, GUMBEL_BFLOAT16, i) * (replay % 2 ? 0.25f : 4.0f));
        gpu_put((void *)r->head.hidden.data, hidden, 64 * SIZE * sizeof *hidden);
        gpu_replay_draw(&captured, device);
        CHECK(request_draw_fused(cpu, req, host) == GUMBEL_OK, "replay %d", replay);
        compare_request(host, device, "a replay");
    }
    gpu_replay_free(&captured);
    outcome_free(host);
    outcome_free(device);
    gpu_request_free(on_gpu);
    request_free(req);
    free_world(&w);
}

int main(int argc, char **argv)
{
    static const cuda_test tests[] = {
        {"bounds_cases", bounds_cases},
        {"bounds_graph", bounds_graph},
        {"bounds_small", bounds_small},
        {"bounds_few", bounds_few},
        {NULL, NULL},
    };
    return cuda_run_tests(argc, argv, tests);
}

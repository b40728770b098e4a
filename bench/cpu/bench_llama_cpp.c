/* SPDX-License-Identifier: Apache-2.0
 *
 * How much time does llama.cpp spend in its own chain of samplers, and how much in ours?
 *
 * usage: bench_llama_cpp MODEL.gguf STEPS      (bench_llama_cpp.py builds it and its model)
 *
 * top_k 40, top_p 0.95, min_p 0.05, T = 0.8. One text, decoded by three contexts in turns, two
 * with our sampler in the graph; on each row of logits all ways draw in turns. One thread; its
 * processor time in microseconds, printed as JSON: median, p10 and p90. That ours draw the same
 * token by every way, one that llama.cpp's own chain could have drawn, is checked at every step.
 */
#include <gumbel_llama.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS_MAX = 1000, WARM = 8 };

enum way {
    THEIRS_SAMPLE, /* llama_sampler_sample(), which lists all tokens and applies the chain */
    OURS_SAMPLE,
    THEIRS_APPLY, /* the chain alone */
    OURS_APPLY,
    OURS_ROW, /* gumbel_llama_sample(), from the row of logits */
    DECODE,
    DECODE_IN_GRAPH, /* and the draw, from logits */
    DECODE_FUSED,    /* and the draw, from hidden states */
    WAYS
};

static const char *const names[WAYS] = {"llama_sampler_sample, llama.cpp's chain",
                                        "llama_sampler_sample, ours",
                                        "apply, llama.cpp's chain",
                                        "apply, ours",
                                        "gumbel_llama_sample",
                                        "llama_decode",
                                        "llama_decode, ours in the graph",
                                        "llama_decode, ours fused"};
static double times[WAYS][STEPS_MAX];

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void fail(const char *message)
{
    fprintf(stderr, "bench_llama_cpp: %s\n", message);
    exit(1);
}

static void quiet(enum ggml_log_level level, const char *text, void *context)
{
    (void)context;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static struct llama_sampler *chain_of(struct llama_sampler *sampler)
{
    struct llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (sampler)
        llama_sampler_chain_add(chain, sampler);
    return chain;
}

static struct llama_sampler *theirs(void)
{
    struct llama_sampler *chain = chain_of(NULL);
    llama_sampler_chain_add(chain, llama_sampler_init_top_k(40));
    llama_sampler_chain_add(chain, llama_sampler_init_top_p(.95f, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_min_p(.05f, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_temp(.8f));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(1));
    return chain;
}

static struct llama_sampler *ours(int32_t vocab_size, bool fused)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();
    gumbel_error error = {"", ""};
    params.temperature = .8f;
    params.top_k = 40;
    params.top_p = .95f;
    params.min_p = .05f;
    params.fused = fused;
    struct llama_sampler *sampler = gumbel_llama_init(vocab_size, &params, &error);
    if (!sampler)
        fail(error.message);
    return chain_of(sampler);
}

static struct llama_context *context_of(struct llama_model *model, struct llama_sampler *chain)
{
    struct llama_sampler_seq_config config = {0, chain};
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = STEPS_MAX + WARM;
    params.n_threads = params.n_threads_batch = 1;
    params.samplers = chain ? &config : NULL;
    params.n_samplers = chain != NULL;
    struct llama_context *context = llama_init_from_model(model, params);
    if (!context)
        fail("no context");
    return context;
}

static double time_decode(struct llama_context *context, llama_token token)
{
    const double start = seconds_now();
    if (llama_decode(context, llama_batch_get_one(&token, 1)) != 0)
        fail("llama_decode");
    return seconds_now() - start;
}

/* A chain's apply() on a fresh array. */
static double time_apply(struct llama_sampler *chain, const float *logits,
                         llama_token_data_array *array, llama_token *token)
{
    for (size_t i = 0; i < array->size; i++)
        array->data[i] = (llama_token_data){(llama_token)i, logits[i], 0};
    llama_token_data_array candidates = *array;
    const double start = seconds_now();
    llama_sampler_apply(chain, &candidates);
    const double taken = seconds_now() - start;
    *token = candidates.data[candidates.selected].id;
    return taken;
}

static int rank_of(const float *logits, int32_t vocab_size, llama_token token)
{
    int larger = 0;
    for (int32_t i = 0; i < vocab_size; i++)
        larger += logits[i] > logits[token];
    return larger;
}

struct bench {
    struct llama_context *stock, *graph, *fusing;
    struct llama_sampler *theirs, *sample, *apply, *row, *in_graph, *fused;
    llama_token_data_array array;
    int32_t vocab_size;
};

/* One step: its times into place `at`; returns the next token. */
static llama_token run_step(struct bench *b, llama_token token, int at)
{
    times[DECODE][at] = time_decode(b->stock, token);
    times[DECODE_IN_GRAPH][at] = time_decode(b->graph, token);
    times[DECODE_FUSED][at] = time_decode(b->fusing, token);
    const float *logits = llama_get_logits_ith(b->stock, -1);
    llama_token drawn[WAYS];

    times[THEIRS_APPLY][at] = time_apply(b->theirs, logits, &b->array, &drawn[THEIRS_APPLY]);
    times[OURS_APPLY][at] = time_apply(b->apply, logits, &b->array, &drawn[OURS_APPLY]);
    double start = seconds_now();
    drawn[THEIRS_SAMPLE] = llama_sampler_sample(b->theirs, b->stock, -1);
    times[THEIRS_SAMPLE][at] = seconds_now() - start;
    start = seconds_now();
    drawn[OURS_SAMPLE] = llama_sampler_sample(b->sample, b->stock, -1);
    times[OURS_SAMPLE][at] = seconds_now() - start;
    start = seconds_now();
    drawn[OURS_ROW] = gumbel_llama_sample(b->row, b->stock, -1);
    times[OURS_ROW][at] = seconds_now() - start;
    llama_sampler_accept(b->apply, drawn[OURS_ROW]);
    llama_sampler_accept(b->in_graph, drawn[OURS_ROW]);
    llama_sampler_accept(b->fused, drawn[OURS_ROW]);

    if (drawn[OURS_APPLY] != drawn[OURS_ROW] ||
        llama_get_sampled_token_ith(b->graph, -1) != drawn[OURS_ROW] ||
        drawn[OURS_SAMPLE] != drawn[OURS_ROW])
        fail("ways of ours draw different tokens");
    if (rank_of(logits, b->vocab_size, drawn[OURS_ROW]) >= 40 ||
        rank_of(logits, b->vocab_size, drawn[THEIRS_SAMPLE]) >= 40)
        fail("a token outside the top 40");
    return drawn[OURS_ROW];
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_report(const struct bench *b, int steps)
{
    struct gumbel_llama_report fused = {0};
    if (!gumbel_llama_describe(b->fused, &fused) || fused.fused != steps + WARM || fused.failed)
        fail("the draws in the graph were not fused");
    printf("{\"vocab_size\": %d, \"steps\": %d, \"us\": {", b->vocab_size, steps);
    for (int way = 0; way < WAYS; way++) {
        double *t = times[way];
        qsort(t, (size_t)steps, sizeof *t, by_value);
        printf("%s\"%s\": [%.1f, %.1f, %.1f]", way ? ", " : "", names[way], t[steps / 2],
               t[steps / 10], t[steps - 1 - steps / 10]);
    }
    printf("}}\n");
}

int main(int argc, char **argv)
{
    const int steps = argc > 2 ? atoi(argv[2]) : 0;
    if (steps < 10 || steps > STEPS_MAX)
        fail("usage: bench_llama_cpp MODEL.gguf STEPS, 10 to 1000");
    llama_log_set(quiet, NULL);
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model)
        fail("no model");
    struct bench b = {.vocab_size = llama_vocab_n_tokens(llama_model_get_vocab(model))};
    b.theirs = theirs();
    b.sample = ours(b.vocab_size, false);
    b.apply = ours(b.vocab_size, false);
    b.row = ours(b.vocab_size, false);
    b.in_graph = ours(b.vocab_size, false);
    b.fused = ours(b.vocab_size, true);
    b.stock = context_of(model, NULL);
    b.graph = context_of(model, b.in_graph);
    b.fusing = context_of(model, b.fused);
    b.array.size = (size_t)b.vocab_size;
    b.array.data = malloc(b.array.size * sizeof *b.array.data);
    if (!b.array.data)
        fail("memory");
    b.array.selected = -1;
    llama_token token = 0;
    for (int i = 0; i < WARM; i++)
        token = run_step(&b, token, 0);
    for (int i = 0; i < steps; i++)
        token = run_step(&b, token, i);
    print_report(&b, steps);
    return 0;
}

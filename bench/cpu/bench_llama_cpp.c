/* SPDX-License-Identifier: Apache-2.0
 *
 * How much time do llama.cpp's own sampler chain and gumbel's sampler take?
 *
 * usage: bench_llama_cpp MODEL.gguf STEPS      (bench_llama_cpp.py builds it and its model)
 *
 * The parameters are top_k 40, top_p 0.95, min_p 0.05, T = 0.8. Three contexts decode one text in
 * turns, two of them with gumbel's sampler in the graph; all samplers draw from each row of logits
 * in turns. Prints the CPU time of the one thread as JSON, in microseconds: median, p10 and p90.
 * Every step checks that all of gumbel's samplers draw the same token, and that this token and
 * llama.cpp's are among the top 40.
 */
#include <gumbel_llama.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS_MAX = 1000, WARM_STEPS = 8 };

enum way {
    LLAMA_SAMPLE, /* llama_sampler_sample(): lists all tokens, then applies the chain */
    GUMBEL_SAMPLE,
    LLAMA_APPLY, /* the chain alone, on an array of all tokens */
    GUMBEL_APPLY,
    GUMBEL_ROW, /* gumbel_llama_sample(), from the row of logits */
    DECODE,
    DECODE_IN_GRAPH, /* with the draw from logits */
    DECODE_FUSED,    /* with the draw from hidden states */
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

static double get_cpu_us(void)
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

static void print_errors_only(enum ggml_log_level level, const char *text, void *context)
{
    (void)context;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static struct llama_sampler *make_chain(struct llama_sampler *sampler)
{
    struct llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    if (sampler)
        llama_sampler_chain_add(chain, sampler);
    return chain;
}

static struct llama_sampler *make_llama_chain(void)
{
    struct llama_sampler *chain = make_chain(NULL);
    llama_sampler_chain_add(chain, llama_sampler_init_top_k(40));
    llama_sampler_chain_add(chain, llama_sampler_init_top_p(.95f, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_min_p(.05f, 1));
    llama_sampler_chain_add(chain, llama_sampler_init_temp(.8f));
    llama_sampler_chain_add(chain, llama_sampler_init_dist(1));
    return chain;
}

static struct llama_sampler *make_gumbel_chain(int32_t vocab_size, bool fused)
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
    return make_chain(sampler);
}

static struct llama_context *make_context(struct llama_model *model, struct llama_sampler *chain)
{
    struct llama_sampler_seq_config config = {0, chain};
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = STEPS_MAX + WARM_STEPS;
    params.n_threads = params.n_threads_batch = 1;
    params.samplers = chain ? &config : NULL;
    params.n_samplers = chain != NULL;
    struct llama_context *context = llama_init_from_model(model, params);
    if (!context)
        fail("llama_init_from_model");
    return context;
}

static double time_decode(struct llama_context *context, llama_token token)
{
    const double start = get_cpu_us();
    if (llama_decode(context, llama_batch_get_one(&token, 1)) != 0)
        fail("llama_decode");
    return get_cpu_us() - start;
}

/* Times a chain's apply() on a fresh array. */
static double time_apply(struct llama_sampler *chain, const float *logits,
                         llama_token_data_array *array, llama_token *token)
{
    for (size_t i = 0; i < array->size; i++)
        array->data[i] = (llama_token_data){(llama_token)i, logits[i], 0};
    llama_token_data_array candidates = *array;
    const double start = get_cpu_us();
    llama_sampler_apply(chain, &candidates);
    const double taken = get_cpu_us() - start;
    *token = candidates.data[candidates.selected].id;
    return taken;
}

static int count_larger_logits(const float *logits, int32_t vocab_size, llama_token token)
{
    int larger = 0;
    for (int32_t i = 0; i < vocab_size; i++)
        larger += logits[i] > logits[token];
    return larger;
}

struct bench {
    struct llama_context *stock, *graph, *fused_graph;
    struct llama_sampler *llama, *sample, *apply, *row, *in_graph, *fused;
    llama_token_data_array array;
    int32_t vocab_size;
};

/* Runs one step, whose times have index `step`; returns the next token. */
static llama_token run_step(struct bench *b, llama_token token, int step)
{
    times[DECODE][step] = time_decode(b->stock, token);
    times[DECODE_IN_GRAPH][step] = time_decode(b->graph, token);
    times[DECODE_FUSED][step] = time_decode(b->fused_graph, token);
    const float *logits = llama_get_logits_ith(b->stock, -1);
    llama_token drawn[WAYS];

    times[LLAMA_APPLY][step] = time_apply(b->llama, logits, &b->array, &drawn[LLAMA_APPLY]);
    times[GUMBEL_APPLY][step] = time_apply(b->apply, logits, &b->array, &drawn[GUMBEL_APPLY]);
    double start = get_cpu_us();
    drawn[LLAMA_SAMPLE] = llama_sampler_sample(b->llama, b->stock, -1);
    times[LLAMA_SAMPLE][step] = get_cpu_us() - start;
    start = get_cpu_us();
    drawn[GUMBEL_SAMPLE] = llama_sampler_sample(b->sample, b->stock, -1);
    times[GUMBEL_SAMPLE][step] = get_cpu_us() - start;
    start = get_cpu_us();
    drawn[GUMBEL_ROW] = gumbel_llama_sample(b->row, b->stock, -1);
    times[GUMBEL_ROW][step] = get_cpu_us() - start;
    llama_sampler_accept(b->apply, drawn[GUMBEL_ROW]);
    llama_sampler_accept(b->in_graph, drawn[GUMBEL_ROW]);
    llama_sampler_accept(b->fused, drawn[GUMBEL_ROW]);

    if (drawn[GUMBEL_APPLY] != drawn[GUMBEL_ROW] ||
        llama_get_sampled_token_ith(b->graph, -1) != drawn[GUMBEL_ROW] ||
        drawn[GUMBEL_SAMPLE] != drawn[GUMBEL_ROW])
        fail("gumbel's samplers draw different tokens");
    if (count_larger_logits(logits, b->vocab_size, drawn[GUMBEL_ROW]) >= 40 ||
        count_larger_logits(logits, b->vocab_size, drawn[LLAMA_SAMPLE]) >= 40)
        fail("the token is not among the top 40");
    return drawn[GUMBEL_ROW];
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_report(const struct bench *b, int steps)
{
    struct gumbel_llama_report fused = {0};
    if (!gumbel_llama_describe(b->fused, &fused) || fused.fused != steps + WARM_STEPS ||
        fused.failed)
        fail("the draws in the graph were not fused");
    printf("{\"vocab_size\": %d, \"steps\": %d, \"us\": {", b->vocab_size, steps);
    for (int way = 0; way < WAYS; way++) {
        double *t = times[way];
        qsort(t, (size_t)steps, sizeof *t, compare_doubles);
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
    llama_log_set(print_errors_only, NULL);
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model)
        fail("llama_model_load_from_file");
    struct bench b = {.vocab_size = llama_vocab_n_tokens(llama_model_get_vocab(model))};
    b.llama = make_llama_chain();
    b.sample = make_gumbel_chain(b.vocab_size, false);
    b.apply = make_gumbel_chain(b.vocab_size, false);
    b.row = make_gumbel_chain(b.vocab_size, false);
    b.in_graph = make_gumbel_chain(b.vocab_size, false);
    b.fused = make_gumbel_chain(b.vocab_size, true);
    b.stock = make_context(model, NULL);
    b.graph = make_context(model, b.in_graph);
    b.fused_graph = make_context(model, b.fused);
    b.array.size = (size_t)b.vocab_size;
    b.array.data = malloc(b.array.size * sizeof *b.array.data);
    if (!b.array.data)
        fail("out of memory");
    b.array.selected = -1;
    llama_token token = 0;
    for (int i = 0; i < WARM_STEPS; i++)
        token = run_step(&b, token, 0);
    for (int i = 0; i < steps; i++)
        token = run_step(&b, token, i);
    print_report(&b, steps);
    return 0;
}

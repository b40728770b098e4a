/* SPDX-License-Identifier: Apache-2.0
 *
 * A model's contexts, and texts that the sampler draws from it.
 */
#ifndef TEST_ENGINE_H
#define TEST_ENGINE_H

#include "gumbel_llama.h"
#include "test_chain.h"
#include "test_check.h"

#include <stdio.h>
#include <stdlib.h>

enum { TEXT = 64, PROMPT = 4, CONTEXT = 512 };
enum way { SAMPLE, ROW, GRAPH, FUSED };
enum rules { ORDER, PROGRAM, MIROSTAT, ADAPTIVE };

static const llama_token prompt[PROMPT] = {0, 1204, 269, 700};
static struct llama_model *model;
static int32_t vocab_size;
static int32_t threads = 1;
static enum rules rules = ORDER; /* of text_params() */

/* ---------------------------------------------------------------------------- engines ---- */

struct engine {
    struct llama_context *context;
    struct llama_batch batch;
};

static inline struct llama_context_params context_params(void)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = CONTEXT;
    params.n_batch = params.n_ubatch = 64;
    params.n_seq_max = 2;
    params.n_threads = params.n_threads_batch = threads;
    return params;
}

/* chains: [sequences]; the chains that are not NULL draw in the graph. */
static inline struct engine engine_open(struct llama_context_params params,
                                        struct llama_sampler **chains, int32_t sequences)
{
    struct llama_sampler_seq_config configs[2];
    for (int32_t s = 0; s < sequences; s++)
        if (chains[s])
            configs[params.n_samplers++] = (struct llama_sampler_seq_config){s, chains[s]};
    if (params.n_samplers > 0)
        params.samplers = configs;
    struct engine engine = {llama_init_from_model(model, params), llama_batch_init(64, 0, 1)};
    if (!engine.context) {
        printf("no context\n");
        exit(2);
    }
    return engine;
}

static inline void engine_close(struct engine *engine)
{
    llama_free(engine->context);
    llama_batch_free(engine->batch);
}

static inline void feed_token(struct engine *engine, llama_token token, int32_t position,
                              int32_t sequence, bool output)
{
    struct llama_batch *batch = &engine->batch;
    const int32_t i = batch->n_tokens++;
    batch->token[i] = token;
    batch->pos[i] = position;
    batch->n_seq_id[i] = 1;
    batch->seq_id[i][0] = sequence;
    batch->logits[i] = output;
}

static inline void decode_batch(struct engine *engine)
{
    if (llama_decode(engine->context, engine->batch) != 0) {
        printf("llama_decode failed\n");
        exit(2);
    }
    engine->batch.n_tokens = 0;
}

static inline struct gumbel_llama_params text_params(uint64_t seed, int32_t length, bool fused)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();
    params.seed = seed;
    params.position = length - 1;
    params.temperature = .8f;
    params.top_k = 50;
    params.fused = fused;
    params.top_p = .95f;
    params.order = GUMBEL_ORDER_MIN_P_TOP_K_TOP_P;
    if (rules == PROGRAM) {
        params.samplers = "dry;top_k;typ_p;top_p;xtc;temperature";
        params.typical_p = .9f;
        params.xtc_probability = .5f;
        params.dry_multiplier = .8f;
        params.dry_allowed_length = 1;
    } else if (rules == MIROSTAT) {
        params.top_k = 0;
        params.top_p = 1;
        params.mirostat = 2;
        params.mirostat_tau = 3;
    } else if (rules == ADAPTIVE) {
        params.order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE;
        params.adaptive_target = .2f;
    }
    return params;
}

static inline struct llama_sampler *make_sampler(uint64_t seed, int32_t length, bool fused)
{
    const struct gumbel_llama_params params = text_params(seed, length, fused);
    gumbel_error error = {"", ""};
    struct llama_sampler *sampler = gumbel_llama_init(vocab_size, &params, &error);
    if (!sampler) {
        printf("%s: %s\n", error.field, error.message);
        exit(2);
    }
    return sampler;
}

/* Generates a text of `count` tokens after a prompt, by a chain. */
static inline void write_text(enum way way, struct llama_sampler *chain, const llama_token *tokens,
                              int32_t length, llama_token *text, int32_t count)
{
    struct engine engine = engine_open(context_params(), &chain, way >= GRAPH);
    for (int32_t i = 0; i < length; i++)
        feed_token(&engine, tokens[i], i, 0, i == length - 1);
    for (int32_t i = 0; i < count; i++) {
        decode_batch(&engine);
        text[i] = way == ROW ? gumbel_llama_sample(chain, engine.context, -1)
                             : llama_sampler_sample(chain, engine.context, -1);
        feed_token(&engine, text[i], length + i, 0, true);
    }
    engine_close(&engine);
}

static inline struct gumbel_llama_report report_of(const struct llama_sampler *sampler)
{
    struct gumbel_llama_report report = {0};
    CHECK(gumbel_llama_describe(sampler, &report), "a sampler of ours");
    CHECK(report.failed == 0, "%s: %s", report.error.field, report.error.message);
    return report;
}

static inline int equal_tokens(const llama_token *a, const llama_token *b, int count)
{
    int equal = 0;
    for (int i = 0; i < count; i++)
        equal += a[i] == b[i];
    return equal;
}

#endif

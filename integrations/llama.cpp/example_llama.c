/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: example_llama MODEL.gguf SEED COUNT TOKEN...
 *
 * Write COUNT tokens after these, each drawn while the model's graph is computed. Equal seeds and
 * tokens give equal texts on other machines, and in other engines with libgumbel.
 */
#include "gumbel_llama.h"

#include <stdio.h>
#include <stdlib.h>

enum { TOKENS_MAX = 512 };

static void quiet(enum ggml_log_level level, const char *text, void *context)
{
    (void)context;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

/* A chain with only our sampler; NULL, with a message on stderr, if its parameters are invalid. */
static struct llama_sampler *make_chain(const struct llama_model *model, uint64_t seed,
                                        int32_t prompt_length)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();
    params.seed = seed;
    params.position = prompt_length - 1; /* the token whose logits are drawn from first */
    params.temperature = 0.8f;
    params.top_k = 40;
    params.top_p = 0.95f;
    params.min_p = 0.05f;

    gumbel_error error;
    struct llama_sampler *sampler =
        gumbel_llama_init(llama_vocab_n_tokens(llama_model_get_vocab(model)), &params, &error);
    if (!sampler) {
        fprintf(stderr, "example_llama: %s: %s\n", error.field, error.message);
        return NULL;
    }
    struct llama_sampler *chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    llama_sampler_chain_add(chain, sampler); /* the chain frees it */
    return chain;
}

static int write_text(struct llama_model *model, struct llama_sampler *chain, llama_token *tokens,
                      int32_t length, int32_t count)
{
    struct llama_sampler_seq_config config = {.seq_id = 0, .sampler = chain};
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 2 * TOKENS_MAX;
    params.samplers = &config; /* without these two lines the draw is outside the graph */
    params.n_samplers = 1;
    struct llama_context *context = llama_init_from_model(model, params);
    int failed = !context;

    struct llama_batch batch = llama_batch_get_one(tokens, length);
    llama_token token;
    for (int32_t i = 0; i < count && !failed; i++) {
        failed = llama_decode(context, batch) != 0;
        if (failed)
            break;
        token = gumbel_llama_sample(chain, context, -1);
        printf("%d%c", token, i + 1 < count ? ' ' : '\n');
        batch = llama_batch_get_one(&token, 1);
    }
    llama_free(context);
    return failed;
}

int main(int argc, char **argv)
{
    llama_token tokens[TOKENS_MAX];
    const int32_t length = argc - 4, count = argc > 3 ? atoi(argv[3]) : 0;
    if (length < 1 || length > TOKENS_MAX || count < 1 || count > TOKENS_MAX) {
        fprintf(stderr, "usage: example_llama MODEL.gguf SEED COUNT TOKEN...\n");
        return 2;
    }
    for (int32_t i = 0; i < length; i++)
        tokens[i] = atoi(argv[4 + i]);

    llama_log_set(quiet, NULL);
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    struct llama_sampler *chain =
        model ? make_chain(model, strtoull(argv[2], NULL, 10), length) : NULL;
    int failed = !chain || write_text(model, chain, tokens, length, count);

    struct gumbel_llama_report report;
    if (gumbel_llama_describe(chain, &report))
        printf("%d in the graph, %d fused, %d failed\n", (int)report.in_graph, (int)report.fused,
               (int)report.failed);
    if (chain)
        llama_sampler_free(chain);
    llama_model_free(model);
    return failed;
}

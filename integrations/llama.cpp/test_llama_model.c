/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: test_llama_model MODEL.gguf          check the ways to draw with a model, one by one
 *        test_llama_model MODEL.gguf WAY SEED COUNT TOKEN...
 *                                             print COUNT tokens behind these, drawn by T = 0.8,
 *                                             top_k 50, top_p 0.95 in vLLM's order; WAY is
 *                                             sample, row, graph or fused
 *
 * Prints a line for each check that fails; exits 1 if one did.
 */
#include "gumbel_llama.h"
#include "test_engine.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------- ways ---- */

static void test_ways_write_one_text(void)
{
    llama_token wanted[TEXT], text[TEXT];

    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct llama_sampler *chain = make_chain(make_sampler(seed, PROMPT, true), NULL);
        write_text(SAMPLE, chain, prompt, PROMPT, wanted, TEXT);
        CHECK(report_of(chain).candidates == TEXT, "drawn from candidates");

        llama_sampler_reset(chain);
        write_text(ROW, chain, prompt, PROMPT, text, TEXT);
        CHECK(equal_tokens(text, wanted, TEXT) == TEXT, "from rows, seed %d", (int)seed);
        CHECK(report_of(chain).rows == TEXT, "drawn from rows");
        llama_sampler_free(chain);

        for (enum way way = GRAPH; way <= FUSED; way++) {
            /* A chain can be added to one context's graph only, once. */
            chain = make_chain(make_sampler(seed, PROMPT, way == FUSED), NULL);
            write_text(way, chain, prompt, PROMPT, text, TEXT);
            const int equal = equal_tokens(text, wanted, TEXT);
            /* A fused draw does not round hidden states, and sums over the vocabulary, as of an
             * entropy, show it sooner. */
            CHECK(equal >= (way == FUSED && rules != ORDER ? TEXT / 4 : TEXT),
                  "way %d, seed %d, rules %d: %d of %d equal", way, (int)seed, rules, equal, TEXT);
            const struct gumbel_llama_report report = report_of(chain);
            CHECK((way == FUSED ? report.fused : report.in_graph) == TEXT, "%d fused, %d not",
                  (int)report.fused, (int)report.in_graph);
            CHECK(report.position == PROMPT - 1 + TEXT, "position %d", (int)report.position);
            llama_sampler_free(chain);
        }
    }
}

static void test_rules_in_all_ways(void)
{
    llama_token plain[TEXT], text[TEXT];
    struct llama_sampler *chain = make_chain(make_sampler(1, PROMPT, false), NULL);
    write_text(SAMPLE, chain, prompt, PROMPT, plain, TEXT);
    llama_sampler_free(chain);
    for (rules = PROGRAM; rules <= ADAPTIVE; rules++) {
        test_ways_write_one_text();
        chain = make_chain(make_sampler(1, PROMPT, false), NULL);
        write_text(SAMPLE, chain, prompt, PROMPT, text, TEXT);
        CHECK(equal_tokens(text, plain, TEXT) < TEXT, "rules %d change the text", rules);
        llama_sampler_free(chain);
    }
    rules = ORDER;
}

/* The number of ggml's threads does not change a draw. */
static void test_threads(void)
{
    llama_token wanted[8], text[8];
    struct llama_sampler *chain = make_chain(make_sampler(6, PROMPT, true), NULL);
    write_text(FUSED, chain, prompt, PROMPT, wanted, 8);
    llama_sampler_free(chain);
    for (threads = 2; threads <= 3; threads++) {
        chain = make_chain(make_sampler(6, PROMPT, true), NULL);
        write_text(FUSED, chain, prompt, PROMPT, text, 8);
        CHECK(equal_tokens(text, wanted, 8) == 8 && report_of(chain).fused == 8, "%d", threads);
        llama_sampler_free(chain);
    }
    threads = 1;
}

/* After llama.cpp's own top_k in the graph, the sampler receives a list of candidates. */
static void test_behind_a_sampler_in_the_graph(void)
{
    llama_token wanted[TEXT], text[TEXT];
    struct llama_sampler *chain =
        make_chain(llama_sampler_init_top_k(40), make_sampler(5, PROMPT, true));
    write_text(SAMPLE, chain, prompt, PROMPT, wanted, TEXT);
    llama_sampler_free(chain);
    chain = make_chain(llama_sampler_init_top_k(40), make_sampler(5, PROMPT, true));
    write_text(GRAPH, chain, prompt, PROMPT, text, TEXT);
    CHECK(equal_tokens(text, wanted, TEXT) == TEXT, "%d equal", equal_tokens(text, wanted, TEXT));
    const struct gumbel_llama_report report = report_of(chain);
    CHECK(report.fused == 0 && report.in_graph + report.candidates == TEXT,
          "drawn from candidates, %d of them in the graph", (int)report.in_graph);
    llama_sampler_free(chain);
}

/* --------------------------------------------------------------------------- product ---- */

static const float poison = 12345;

struct watch {
    int poisoned, untouched;
};

/* A ggml_backend_sched_eval_callback. When the scheduler reaches the product, all preceding nodes
 * have been computed, so its memory holds no data in use, and can be poisoned. */
static bool watch_product(struct ggml_tensor *tensor, bool is_query, void *context)
{
    struct watch *watch = context;
    const bool product = strcmp(tensor->name, "result_output") == 0;
    if (is_query && product) {
        ((float *)tensor->data)[7] = poison;
        watch->poisoned++;
    } else if (product) {
        watch->untouched += ((float *)tensor->data)[7] == poison;
    }
    return product || strcmp(tensor->name, "result_norm") == 0;
}

static struct watch watch_decode(bool graph)
{
    struct watch watch = {0, 0};
    struct llama_context_params params = context_params();
    struct llama_sampler *chain = make_chain(make_sampler(2, PROMPT, true), NULL);
    params.cb_eval = watch_product;
    params.cb_eval_user_data = &watch;
    struct engine engine = engine_open(params, &chain, graph);
    for (int32_t i = 0; i < PROMPT; i++)
        feed_token(&engine, prompt[i], i, 0, i == PROMPT - 1);
    for (int32_t i = 0; i < 8; i++) {
        decode_batch(&engine);
        feed_token(&engine, llama_sampler_sample(chain, engine.context, -1), PROMPT + i, 0, true);
    }
    engine_close(&engine);
    llama_sampler_free(chain);
    return watch;
}

static void test_a_fused_draw_computes_no_product(void)
{
    const struct watch with = watch_decode(true), without = watch_decode(false);
    CHECK(with.poisoned == 8 && with.untouched == 8, "%d of %d products left out", with.untouched,
          with.poisoned);
    CHECK(without.poisoned == 8 && without.untouched == 0, "without us %d of %d are left out",
          without.untouched, without.poisoned);
}

/* -------------------------------------------------------------------------- sequences ---- */

/* Another sequence without a sampler has its logits, although the graph contains gumbel's
 * sampler. */
static void test_a_sequence_without_a_sampler_has_logits(void)
{
    struct llama_sampler *chains[2] = {make_chain(make_sampler(1, PROMPT, true), NULL), NULL};
    llama_token text[8];

    write_text(SAMPLE, chains[0], prompt, PROMPT, text, 8);
    llama_sampler_reset(chains[0]);
    struct engine with = engine_open(context_params(), chains, 2);
    struct engine without = engine_open(context_params(), NULL, 0);
    for (int32_t i = 0; i < PROMPT; i++) {
        feed_token(&with, prompt[i], i, 0, i == PROMPT - 1);
        feed_token(&without, prompt[i], i, 1, i == PROMPT - 1);
    }
    decode_batch(&without);
    for (int32_t step = 0; step < 8; step++) {
        decode_batch(&with);
        const llama_token token = llama_sampler_sample(chains[0], with.context, -1);
        CHECK(token == text[step], "step %d", step);
        /* Decodes the other sequence in between, in a graph of the same shape. */
        if (step == 0)
            for (int32_t i = 0; i < PROMPT; i++)
                feed_token(&with, prompt[i], i, 1, i == PROMPT - 1);
        else {
            feed_token(&with, prompt[step % PROMPT], PROMPT + step - 1, 1, true);
            feed_token(&without, prompt[step % PROMPT], PROMPT + step - 1, 1, true);
            decode_batch(&without);
        }
        decode_batch(&with);
        const float *found = llama_get_logits_ith(with.context, -1);
        const float *wanted = llama_get_logits_ith(without.context, -1);
        float worst = 0;
        for (int32_t i = 0; found && i < vocab_size; i++)
            worst = fmaxf(worst, fabsf(found[i] - wanted[i]));
        CHECK(found && worst < 1e-3f, "step %d: off by %g", step, (double)worst);
        feed_token(&with, token, PROMPT + step, 0, true);
    }
    CHECK(report_of(chains[0]).fused == 8, "fused %d", (int)report_of(chains[0]).fused);
    engine_close(&with);
    engine_close(&without);
    llama_sampler_free(chains[0]);
}

/* Two sequences in one batch share one product of ggml, have two draws in the graph, and the same
 * texts. */
static void test_two_sequences(void)
{
    llama_token wanted[2][16], text[2][16];
    struct llama_sampler *chains[2];
    for (int s = 0; s < 2; s++) {
        chains[s] = make_chain(make_sampler(20 + (uint64_t)s, PROMPT, true), NULL);
        write_text(SAMPLE, chains[s], prompt, PROMPT, wanted[s], 16);
        llama_sampler_reset(chains[s]);
    }
    struct engine engine = engine_open(context_params(), chains, 2);
    for (int32_t s = 0; s < 2; s++)
        for (int32_t i = 0; i < PROMPT; i++)
            feed_token(&engine, prompt[i], i, s, i == PROMPT - 1);
    int32_t rows[2] = {PROMPT - 1, 2 * PROMPT - 1};
    for (int32_t step = 0; step < 16; step++) {
        decode_batch(&engine);
        for (int32_t s = 0; s < 2; s++) {
            text[s][step] = gumbel_llama_sample(chains[s], engine.context, rows[s]);
            rows[s] = s;
        }
        for (int32_t s = 0; s < 2; s++)
            feed_token(&engine, text[s][step], PROMPT + step, s, true);
    }
    for (int s = 0; s < 2; s++) {
        CHECK(equal_tokens(text[s], wanted[s], 16) == 16, "sequence %d", s);
        CHECK(report_of(chains[s]).in_graph == 16, "in the graph, from logits");
    }
    engine_close(&engine);
    for (int s = 0; s < 2; s++)
        llama_sampler_free(chains[s]);
}

/* ------------------------------------------------------------------------------ drafts ---- */

/* Generates the text with drafts, every third of which is wrong. */
static int drafted_text(const llama_token *known, llama_token *text, bool hidden,
                        const gumbel_head *head)
{
    enum { DRAFT = 3 };
    struct llama_context_params params = context_params();
    struct llama_sampler *chain = make_chain(make_sampler(2, PROMPT, true), NULL);
    params.embeddings = hidden;
    params.pooling_type = LLAMA_POOLING_TYPE_NONE;
    struct engine engine = engine_open(params, NULL, 0);
    int32_t count = 0, steps = 0, first = PROMPT - 1;

    for (int32_t i = 0; i < PROMPT; i++)
        feed_token(&engine, prompt[i], i, 0, hidden || i == PROMPT - 1);
    while (count < TEXT) {
        llama_token draft[DRAFT], got[DRAFT + 1];
        int32_t drafts = 0, emitted;
        for (; steps > 0 && drafts < DRAFT && count + drafts < TEXT; drafts++) {
            const int32_t i = count + drafts;
            draft[drafts] = i % 7 == 6 ? (known[i] + 1) % vocab_size : known[i];
            feed_token(&engine, draft[drafts], PROMPT + i, 0, true);
        }
        decode_batch(&engine);
        const struct gumbel_llama_draft drafted = {draft, drafts, first, hidden ? head : NULL};
        gumbel_error error = {"", ""};
        const gumbel_status status =
            gumbel_llama_verify(chain, engine.context, &drafted, got, &emitted, &error);
        CHECK(status == GUMBEL_OK, "%s: %s", error.field, error.message);
        if (status != GUMBEL_OK || emitted < 1)
            break;
        for (int32_t i = 0; i < emitted && count < TEXT; i++)
            text[count++] = got[i];
        llama_memory_seq_rm(llama_get_memory(engine.context), 0, PROMPT - 1 + count, -1);
        feed_token(&engine, text[count - 1], PROMPT - 1 + count, 0, true);
        first = 0;
        steps++;
    }
    CHECK(report_of(chain).position >= PROMPT - 1 + TEXT, "position");
    engine_close(&engine);
    llama_sampler_free(chain);
    return steps;
}

/* Reads the LM head from the graph. */
static bool take_head(struct ggml_tensor *tensor, bool is_query, void *context)
{
    gumbel_head *head = context;
    if (is_query && strcmp(tensor->name, "result_output") == 0 && tensor->op == GGML_OP_MUL_MAT)
        head->weight = (gumbel_tensor){
            .data = tensor->src[0]->data,
            .dtype = tensor->src[0]->type == GGML_TYPE_F32 ? GUMBEL_FLOAT32 : GUMBEL_BFLOAT16,
            .rows = tensor->src[0]->ne[1],
            .cols = tensor->src[0]->ne[0]};
    return false;
}

static void test_drafts(void)
{
    llama_token wanted[TEXT], text[TEXT];
    struct llama_sampler *chain = make_chain(make_sampler(2, PROMPT, true), NULL);
    write_text(SAMPLE, chain, prompt, PROMPT, wanted, TEXT);
    llama_sampler_free(chain);
    int steps = drafted_text(wanted, text, false, NULL);
    CHECK(equal_tokens(text, wanted, TEXT) == TEXT, "%d equal", equal_tokens(text, wanted, TEXT));
    CHECK(steps < TEXT / 2, "%d steps", steps);

    gumbel_head head = {.struct_size = sizeof head};
    struct llama_context_params params = context_params();
    params.cb_eval = take_head;
    params.cb_eval_user_data = &head;
    struct engine engine = engine_open(params, NULL, 0);
    feed_token(&engine, 0, 0, 0, true);
    decode_batch(&engine);
    engine_close(&engine);
    CHECK(head.weight.rows == vocab_size, "the head was seen");
    steps = drafted_text(wanted, text, true, &head);
    CHECK(equal_tokens(text, wanted, TEXT) == TEXT, "from hidden states: %d equal",
          equal_tokens(text, wanted, TEXT));
    CHECK(steps < TEXT / 2, "%d steps", steps);
}

/* ------------------------------------------------------------------------------- main ---- */

static void errors_alone(enum ggml_log_level level, const char *text, void *context)
{
    (void)context;
    if (level >= GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_CONT)
        fputs(text, stderr);
}

static int print_text(int count, char **words)
{
    static const char *const ways[] = {"sample", "row", "graph", "fused"};
    int way = 0;
    while (way < 4 && strcmp(words[0], ways[way]) != 0)
        way++;
    const int32_t length = count - 3, drawn = atoi(words[2]);
    if (way == 4 || length < 1 || length > 64 || drawn < 1 || length + drawn > CONTEXT)
        return 2;
    llama_token tokens[64], text[CONTEXT];
    for (int32_t i = 0; i < length; i++)
        tokens[i] = atoi(words[3 + i]);
    struct llama_sampler *chain =
        make_chain(make_sampler(strtoull(words[1], NULL, 10), length, way == FUSED), NULL);
    write_text((enum way)way, chain, tokens, length, text, drawn);
    for (int32_t i = 0; i < drawn; i++)
        printf("%d%c", text[i], i + 1 < drawn ? ' ' : '\n');
    llama_sampler_free(chain);
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 2;
    llama_log_set(errors_alone, NULL);
    llama_backend_init();
    model = argc > 1 ? llama_model_load_from_file(argv[1], llama_model_default_params()) : NULL;
    if (!model)
        return 2;
    vocab_size = llama_vocab_n_tokens(llama_model_get_vocab(model));
    if (argc > 4) {
        failed = print_text(argc - 2, argv + 2);
    } else {
        test_ways_write_one_text();
        test_rules_in_all_ways();
        test_threads();
        test_behind_a_sampler_in_the_graph();
        test_a_fused_draw_computes_no_product();
        test_a_sequence_without_a_sampler_has_logits();
        test_two_sequences();
        test_drafts();
        failed = end_checks();
    }
    llama_model_free(model);
    llama_backend_free();
    return failed;
}

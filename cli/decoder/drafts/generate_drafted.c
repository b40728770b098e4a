/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/drafts/generate_drafted.h"

#include "decoder/decoder_clock.h"
#include "decoder/drafts/drafter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PLAIN_STEPS 9 /* the median is the time of a step */

/* The nodes of a cycle and their results, [most] each: the root, the chain, then the siblings of
 * its tokens. */
typedef struct cycle {
    int32_t nodes, chain;
    int32_t *drafted, *parents, *siblings;
    int32_t *tokens, *path;
    int32_t emitted, finished, status;
    float *logprobs;
    int32_t *row_tokens, *ranks, *kept;
    int32_t *top_ids;    /* [most, num_top] */
    float *top_logprobs; /* [most, num_top] */
    int32_t *kept_ids;   /* [most, options->kept_ids] */
    float *kept_logprobs;
} cycle;

/* A text being written. */
typedef struct text {
    decoder *d;
    gumbel_device *device;
    const generate_options *options;
    const draft_options *draft;
    int32_t sample;
    draft_stats *stats;
    generate_times *times;
    decoder_error *error;
    decoder_sequence *sequence; /* holds all tokens except the last, which is the root */
    drafter *drafter;
    text_draws draws;
    int32_t *tokens; /* [prompt_count + max_tokens] */
    int32_t count;
    int32_t drawn;
    int32_t most;  /* nodes of a cycle */
    float *hidden; /* [most, D] */
    float *logits; /* [2, most, V] of target and draft, for the block rule */
    cycle cycle;
    void *memory; /* of the cycle */
} text;

static int check_options(const decoder *d, const generate_options *o, const draft_options *draft,
                         decoder_error *error)
{
    const decoder_info *info = decoder_describe(d);
    if (o->prompt_count < 1 || !o->prompt) {
        return decoder_fail(error, NULL, "prompt", "is empty");
    }
    if (o->max_tokens < 1 || (int64_t)o->prompt_count + o->max_tokens > info->max_positions) {
        return decoder_fail(error, NULL, "max_tokens",
                            "is %d, and with a prompt of %d the model's limit is %d", o->max_tokens,
                            o->prompt_count, info->max_positions);
    }
    if (draft->tokens < 1 || draft->tokens > DRAFT_TOKENS_MAX) {
        return decoder_fail(error, NULL, "draft tokens", "are %d, not in [1, %d]", draft->tokens,
                            DRAFT_TOKENS_MAX);
    }
    if (draft->siblings < 0 || draft->siblings > (draft->model ? DRAFT_SIBLINGS_MAX : 0)) {
        return decoder_fail(error, NULL, "draft siblings", "are %d, not in [0, %d]%s",
                            draft->siblings, draft->model ? DRAFT_SIBLINGS_MAX : 0,
                            draft->model ? "" : ", as n-grams have none");
    }
    if (draft->temperature < 0 || !isfinite(draft->temperature)) {
        return decoder_fail(error, NULL, "draft temperature", "is %g, not finite and > 0",
                            (double)draft->temperature);
    }
    if (draft->rule != GUMBEL_RULE_COUPLED &&
        (draft->siblings > 0 || o->ranks || o->logprobs_of == GUMBEL_RAW || o->screen.data)) {
        return decoder_fail(error, NULL, "draft rule",
                            "takes no siblings, ranks, raw log-probabilities and screens");
    }
    if (!o->draw != !draft->verify) {
        return decoder_fail(error, NULL, "draft", "is for an engine that draws and verifies");
    }
    if (draft->model) {
        int64_t own = tokenizer_size(decoder_tokenizer(draft->model));
        int64_t wanted = tokenizer_size(decoder_tokenizer(d));
        if (own != wanted) {
            return decoder_fail(error, NULL, "draft", "has %lld tokens, the model %lld",
                                (long long)own, (long long)wanted);
        }
        if ((int64_t)o->prompt_count + o->max_tokens >
            decoder_describe(draft->model)->max_positions) {
            return decoder_fail(error, NULL, "draft", "holds %d tokens, which are too few",
                                decoder_describe(draft->model)->max_positions);
        }
    }
    return 0;
}

/* ------------------------------------------------------------------------------ a cycle ---- */

/* Proposes drafts behind the root, within the limit of tokens. */
static int propose_drafts(text *t, cycle *c)
{
    double start = seconds_now();
    int32_t remaining = t->options->max_tokens - t->drawn - 1, width = t->draft->siblings;
    int32_t most = t->draft->tokens < remaining ? t->draft->tokens : remaining;
    int32_t found = drafter_propose(t->drafter, t->tokens, t->count, &t->draws, most,
                                    c->drafted + 1, c->siblings, width, t->error);
    if (found < 0) {
        return -1;
    }
    c->drafted[0] = t->tokens[t->count - 1];
    c->chain = found;
    c->nodes = 1 + found;
    for (int32_t i = 1; i <= found; i++) {
        c->parents[i] = i - 1;
    }
    for (int32_t i = 0; i < found * width; i++) {
        if (c->siblings[i] >= 0) {
            c->parents[c->nodes] = i / width;
            c->drafted[c->nodes++] = c->siblings[i];
        }
    }
    t->stats->drafting += seconds_now() - start;
    return 0;
}

/* The drafter's rows of a cycle, for rules that compare probabilities. */
typedef struct drafter_rows {
    gumbel_sampling sampling;
    gumbel_head head;
    gumbel_logits target, draft;
    const gumbel_logits *logits; /* the target's; NULL: hidden states are used */
} drafter_rows;

/* Fills the drafter's rows of `draft`, if the rule reads them. */
static int describe_drafter(const text *t, const cycle *c, drafter_rows *by, gumbel_draft *draft)
{
    decoder *model = t->draft->model;
    int32_t n = c->nodes;
    by->logits = NULL;
    if (draft->rule == GUMBEL_RULE_COUPLED || !model) {
        return 0;
    }
    by->sampling = text_draws_draft_sampling(&t->draws, drafter_draws(t->drafter));
    draft->sampling = &by->sampling;
    draft->lse = drafter_lse(t->drafter);
    draft->logprobs = drafter_logprobs(t->drafter);
    if (draft->rule == GUMBEL_RULE_REJECTION) {
        by->head = text_draws_head(model, drafter_hidden(t->drafter), n);
        draft->head = &by->head;
        return 0;
    }
    float *own = t->logits + (int64_t)t->most * decoder_head(t->d).rows;
    if (decoder_compute_logits(t->d, t->hidden, n, t->logits, t->error) != 0 ||
        decoder_compute_logits(model, drafter_hidden(t->drafter), n, own, t->error) != 0) {
        return -1;
    }
    by->target = text_draws_logits(t->d, t->logits, n);
    by->draft = text_draws_logits(model, own, n);
    by->logits = &by->target;
    draft->logits = &by->draft;
    return 0;
}

/* Feeds root and drafts, and verifies them. */
static int verify_drafts(text *t, cycle *c)
{
    const generate_options *o = t->options;
    const decoder_info *info = decoder_describe(t->d);
    const int64_t stops[2] = {0, o->ignore_eos ? 0 : info->eos_count};
    int32_t limit = o->max_tokens - t->drawn;
    double start = seconds_now();
    if (decoder_feed_tree(t->d, t->sequence, c->drafted, c->parents, c->nodes, t->hidden,
                          t->error) != 0) {
        return -1;
    }
    double fed = seconds_now();
    gumbel_head head = text_draws_screened_head(t->d, t->hidden, c->nodes, o->screen);
    gumbel_draft draft = {.struct_size = sizeof draft,
                          .requests = 1,
                          .max_nodes = c->nodes,
                          .tokens = c->drafted,
                          .parents = t->draft->siblings > 0 ? c->parents : NULL,
                          .rule = t->draft->rule,
                          .limit = &limit,
                          .stop = {.offsets = stops, .ids = info->eos_ids}};
    gumbel_output rows = {.struct_size = sizeof rows,
                          .tokens = c->row_tokens,
                          .ranks = o->ranks ? c->ranks : NULL,
                          .kept = o->kept || o->kept_ids ? c->kept : NULL,
                          .top_ids = o->num_top ? c->top_ids : NULL,
                          .top_logprobs = o->num_top ? c->top_logprobs : NULL,
                          .num_top = o->num_top,
                          .kept_capacity = o->kept_ids,
                          .kept_ids = o->kept_ids ? c->kept_ids : NULL,
                          .kept_logprobs = o->kept_ids ? c->kept_logprobs : NULL,
                          .logprobs_of = o->logprobs_of};
    gumbel_verified verified = {.struct_size = sizeof verified,
                                .tokens = c->tokens,
                                .emitted = &c->emitted,
                                .path = c->path,
                                .finished = &c->finished,
                                .status = &c->status,
                                .logprobs = o->screen.data ? NULL : c->logprobs,
                                .rows = &rows};
    drafter_rows by;
    if (describe_drafter(t, c, &by, &draft) != 0 ||
        text_draws_verify(&t->draws, by.logits ? NULL : &head, by.logits, (uint64_t)t->count - 1,
                          &draft, &verified, t->error) != 0) {
        return -1;
    }
    decoder_sequence_keep(t->sequence, t->count - 1, c->path, c->emitted);
    t->times->trunk += fed - start;
    t->times->head += seconds_now() - fed;
    t->times->steps++;
    t->stats->verifying += seconds_now() - start;
    t->stats->rows += c->nodes;
    return 0;
}

/* Counts proposed and accepted drafts at each place. */
static void count_cycle(text *t, const cycle *c)
{
    t->stats->cycles++;
    t->stats->emitted += c->emitted;
    for (int32_t i = 0; i < c->chain; i++) {
        t->stats->proposed[i]++;
        t->stats->accepted[i] += i + 1 < c->emitted;
    }
}

/* Reports the emitted tokens until the callback ends the text or the call. */
static generate_next report_tokens(text *t, const cycle *c)
{
    const generate_options *o = t->options;
    for (int32_t i = 0; i < c->emitted; i++) {
        int32_t row = c->path[i];
        const bool listed = o->kept_ids && c->kept[row] <= o->kept_ids;
        const size_t places = (size_t)row * (size_t)o->kept_ids;
        generate_token token = {.sample = t->sample,
                                .position = t->count,
                                .id = c->tokens[i],
                                .logprob = o->screen.data ? NAN : c->logprobs[i],
                                .last = i + 1 == c->emitted && c->finished,
                                .rank = o->ranks ? c->ranks[row] : 0,
                                .kept = o->kept || o->kept_ids ? c->kept[row] : 0,
                                .top_ids = c->top_ids + row * o->num_top,
                                .top_logprobs = c->top_logprobs + row * o->num_top,
                                .kept_ids = listed ? c->kept_ids + places : NULL,
                                .kept_logprobs = listed ? c->kept_logprobs + places : NULL};
        t->tokens[t->count++] = token.id;
        t->drawn++;
        t->times->drawn++;
        generate_next next = o->on_token ? o->on_token(o->context, &token) : GENERATE_CONTINUE;
        if (next != GENERATE_CONTINUE) {
            return next;
        }
    }
    return c->finished ? GENERATE_END_TEXT : GENERATE_CONTINUE;
}

/* ------------------------------------------------------------------------------- a text ---- */

/* Allocates the arrays of a cycle. */
static int allocate_cycle(text *t)
{
    cycle *c = &t->cycle;
    size_t top = (size_t)t->options->num_top, places = (size_t)t->options->kept_ids;
    int32_t **const arrays[] = {&c->drafted, &c->parents,    &c->siblings, &c->tokens,
                                &c->path,    &c->row_tokens, &c->ranks,    &c->kept};
    const size_t count = sizeof arrays / sizeof *arrays, most = (size_t)t->most;
    t->memory = calloc((count + 1 + 2 * top + 2 * places) * most, sizeof(int32_t));
    if (!t->memory) {
        return decoder_fail(t->error, NULL, "drafts", "out of memory for %d nodes", t->most);
    }
    for (size_t i = 0; i < count; i++) {
        *arrays[i] = (int32_t *)t->memory + i * most;
    }
    c->logprobs = (float *)t->memory + count * most;
    c->top_ids = (int32_t *)t->memory + (count + 1) * most;
    c->top_logprobs = (float *)t->memory + (count + 1 + top) * most;
    c->kept_ids = (int32_t *)t->memory + (count + 1 + 2 * top) * most;
    c->kept_logprobs = (float *)t->memory + (count + 1 + 2 * top + places) * most;
    return 0;
}

static int allocate_text(text *t)
{
    const generate_options *o = t->options;
    int32_t length = o->prompt_count + o->max_tokens, limit = decoder_describe(t->d)->max_positions;
    int64_t vocab = decoder_head(t->d).rows, capacity = (int64_t)length + t->most;
    t->tokens = calloc((size_t)length, sizeof *t->tokens);
    t->hidden =
        calloc((size_t)decoder_describe(t->d)->hidden_size * (size_t)t->most, sizeof(float));
    if (!t->tokens || !t->hidden) {
        return decoder_fail(t->error, NULL, "max_tokens", "out of memory for %d", o->max_tokens);
    }
    if (t->draft->rule == GUMBEL_RULE_BLOCK && t->draft->model) {
        int64_t rows = vocab + decoder_head(t->draft->model).rows;
        t->logits = calloc((size_t)rows * (size_t)t->most, sizeof(float));
        if (!t->logits) {
            return decoder_fail(t->error, NULL, "drafts", "out of memory for their logits");
        }
    }
    if (t->draft->siblings > 0 && capacity > limit) {
        return decoder_fail(t->error, NULL, "max_tokens",
                            "is %d, and with prompt and siblings the model's limit is %d",
                            o->max_tokens, limit);
    }
    if (allocate_cycle(t) != 0 ||
        decoder_sequence_new(t->d, (int32_t)(t->draft->siblings > 0 ? capacity : length),
                             &t->sequence, t->error) != 0 ||
        text_draws_new(&t->draws, t->device, o, t->sample, vocab, 1, t->error) != 0) {
        return -1;
    }
    t->draws.verify = t->draft->verify;
    return drafter_new(t->draft, t->device, o, t->sample, vocab, length, &t->drafter, t->error);
}

static void free_text(text *t)
{
    drafter_free(t->drafter);
    text_draws_free(&t->draws);
    decoder_sequence_free(t->sequence);
    free(t->memory);
    free(t->tokens);
    free(t->hidden);
    free(t->logits);
}

/* Feeds the prompt except its last token, which is the first root. */
static int feed_prompt(text *t)
{
    const generate_options *o = t->options;
    double start = seconds_now();
    memcpy(t->tokens, o->prompt, (size_t)o->prompt_count * sizeof *t->tokens);
    t->count = o->prompt_count;
    if (t->count > 1 && decoder_feed(t->d, t->sequence, t->tokens, t->count - 1, t->count - 1, NULL,
                                     t->error) != 0) {
        return -1;
    }
    t->times->prefill += seconds_now() - start;
    return 0;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Times steps without drafts on the last token of a finished text. */
static int time_plain_steps(text *t)
{
    double taken[PLAIN_STEPS];
    int32_t last = decoder_sequence_length(t->sequence) - 1, token;
    for (int i = 0; i < PLAIN_STEPS; i++) {
        double start = seconds_now();
        decoder_sequence_truncate(t->sequence, last);
        gumbel_head head = text_draws_screened_head(t->d, t->hidden, 1, t->options->screen);
        if (decoder_feed(t->d, t->sequence, t->tokens + last, 1, 0, t->hidden, t->error) != 0 ||
            text_draws_sample(&t->draws, &head, (uint64_t)last, &token, NULL, 0, t->error) != 0) {
            return -1;
        }
        taken[i] = seconds_now() - start;
    }
    qsort(taken, PLAIN_STEPS, sizeof *taken, compare_doubles);
    t->stats->plain = taken[PLAIN_STEPS / 2];
    return 0;
}

/* Writes a text; `more` becomes false if the callback stops the call. */
static int write_text(text *t, bool *more)
{
    cycle *c = &t->cycle;
    generate_next next;
    if (allocate_text(t) != 0 || feed_prompt(t) != 0) {
        return -1;
    }
    do {
        if (propose_drafts(t, c) != 0 || verify_drafts(t, c) != 0) {
            return -1;
        }
        count_cycle(t, c);
        next = report_tokens(t, c);
    } while (next == GENERATE_CONTINUE);
    *more = next != GENERATE_STOP;
    return time_plain_steps(t);
}

int generate_drafted(decoder *d, gumbel_device *device, const generate_options *options,
                     const draft_options *draft, draft_stats *stats, generate_times *times,
                     decoder_error *error)
{
    int32_t samples = options->num_samples > 0 ? options->num_samples : 1;
    bool more = true;
    int result = check_options(d, options, draft, error);
    generate_times spent = {0};
    *stats = (draft_stats){0};
    for (int32_t i = 0; i < samples && more && result == 0; i++) {
        text t = {.d = d,
                  .device = device,
                  .options = options,
                  .draft = draft,
                  .sample = i,
                  .most = 1 + draft->tokens * (1 + draft->siblings),
                  .stats = stats,
                  .times = &spent,
                  .error = error};
        result = write_text(&t, &more);
        free_text(&t);
    }
    if (times) {
        *times = spent;
    }
    return result;
}

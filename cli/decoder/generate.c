/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/generate.h"

#include "decoder/decoder_clock.h"
#include "decoder/group_request.h"
#include "decoder/text_watermark.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX 1024
#define TOP_MAX     128

/* A sequence being written. Unfinished sequences are at the front of the list. */
typedef struct writer {
    decoder_sequence *sequence;
    int32_t sample;
    int32_t drawn;
} writer;

typedef struct loop {
    decoder *d;
    gumbel_device *device;
    const generate_options *options;
    generate_times times;
    decoder_error *error;
    int32_t samples;
    int32_t active;             /* writers[0 .. active - 1] are unfinished, in order of samples */
    writer *writers;            /* [samples] */
    decoder_sequence **stepped; /* [samples] */
    int32_t *tokens;            /* [samples] */
    float *logprobs;            /* [samples] */
    int32_t *status;            /* [samples] */
    int32_t *ranks;             /* [samples] */
    int32_t *kept;              /* [samples] */
    int32_t *top_ids;           /* [samples, num_top] */
    float *top_logprobs;        /* [samples, num_top] */
    int32_t *kept_ids;          /* [samples, options->kept_ids] */
    float *kept_logprobs;       /* [samples, options->kept_ids] */
    float *hidden;              /* [samples, D] */
    group_request request;
    text_watermark watermark;
    gumbel_truncation truncation;
    void *workspace; /* 64-byte aligned */
    size_t workspace_bytes;
} loop;

static int check_options(const decoder *d, const generate_options *o, decoder_error *error)
{
    int32_t limit = decoder_describe(d)->max_positions;
    if (o->prompt_count < 1 || !o->prompt) {
        return decoder_fail(error, NULL, "prompt", "is empty");
    }
    if (o->max_tokens < 1 || (int64_t)o->prompt_count + o->max_tokens > limit) {
        return decoder_fail(error, NULL, "max_tokens",
                            "is %d, and with a prompt of %d the model's limit is %d", o->max_tokens,
                            o->prompt_count, limit);
    }
    if (o->num_samples < 0 || o->num_samples > SAMPLES_MAX) {
        return decoder_fail(error, NULL, "num_samples", "is %d, not in [1, %d]", o->num_samples,
                            SAMPLES_MAX);
    }
    if (o->num_top < 0 || o->num_top > TOP_MAX) {
        return decoder_fail(error, NULL, "num_top", "is %d, not in [0, %d]", o->num_top, TOP_MAX);
    }
    if (o->kept_ids < 0) {
        return decoder_fail(error, NULL, "kept_ids", "is %d, not at least 0", o->kept_ids);
    }
    if (!(o->temperature >= 0) || isinf(o->temperature)) {
        return decoder_fail(error, NULL, "temperature", "is %g, not finite and >= 0",
                            (double)o->temperature);
    }
    return 0;
}

static int allocate_loop(loop *l)
{
    const generate_options *o = l->options;
    size_t n = (size_t)l->samples;
    size_t d = (size_t)decoder_describe(l->d)->hidden_size;
    size_t top = (size_t)o->num_top;
    size_t places = (size_t)o->kept_ids;
    l->writers = calloc(n, sizeof *l->writers);
    l->stepped = calloc(n, sizeof *l->stepped);
    l->tokens = calloc(n, sizeof *l->tokens);
    l->logprobs = calloc(n, sizeof *l->logprobs);
    l->status = calloc(n, sizeof *l->status);
    l->ranks = calloc(n, sizeof *l->ranks);
    l->kept = calloc(n, sizeof *l->kept);
    l->top_ids = calloc(n * top + 1, sizeof *l->top_ids);
    l->top_logprobs = calloc(n * top + 1, sizeof *l->top_logprobs);
    l->kept_ids = calloc(n * places + 1, sizeof *l->kept_ids);
    l->kept_logprobs = calloc(n * places + 1, sizeof *l->kept_logprobs);
    l->hidden = calloc(n * d, sizeof *l->hidden);
    if (!l->writers || !l->stepped || !l->tokens || !l->logprobs || !l->status || !l->ranks ||
        !l->kept || !l->top_ids || !l->top_logprobs || !l->kept_ids || !l->kept_logprobs ||
        !l->hidden) {
        return decoder_fail(l->error, NULL, "num_samples", "out of memory for %d", l->samples);
    }
    if (o->truncation) {
        l->truncation = *o->truncation;
        l->truncation.min_p.stride = l->truncation.top_k.stride = GUMBEL_SAME;
        l->truncation.top_p.stride = GUMBEL_SAME;
    }
    if (text_watermark_new(&l->watermark, l->device, o, l->samples, l->error) != 0) {
        return -1;
    }
    return group_request_new(&l->request, l->device, o, decoder_head(l->d).rows, l->samples,
                             l->error);
}

static void free_loop(loop *l)
{
    for (int32_t i = 0; l->writers && i < l->samples; i++) {
        decoder_sequence_free(l->writers[i].sequence);
    }
    group_request_free(&l->request);
    text_watermark_free(&l->watermark);
    free(l->workspace);
    free(l->writers);
    free(l->stepped);
    free(l->tokens);
    free(l->logprobs);
    free(l->status);
    free(l->ranks);
    free(l->kept);
    free(l->top_ids);
    free(l->top_logprobs);
    free(l->kept_ids);
    free(l->kept_logprobs);
    free(l->hidden);
}

/* Feeds the prompt once and copies the result to the other samples. */
static int feed_prompt(loop *l)
{
    const generate_options *o = l->options;
    /* The last token of a text is drawn but never fed. */
    int32_t capacity = o->prompt_count + o->max_tokens - 1;
    size_t d = (size_t)decoder_describe(l->d)->hidden_size;
    for (int32_t i = 0; i < l->samples; i++) {
        l->writers[i].sample = i;
        if (decoder_sequence_new(l->d, capacity, &l->writers[i].sequence, l->error) != 0) {
            return -1;
        }
    }
    double start = seconds_now();
    decoder_sequence *first = l->writers[0].sequence;
    if (decoder_feed(l->d, first, o->prompt, o->prompt_count, o->prompt_count - 1, l->hidden,
                     l->error) != 0) {
        return -1;
    }
    for (int32_t i = 1; i < l->samples; i++) {
        if (decoder_sequence_copy(l->writers[i].sequence, first, l->error) != 0) {
            return -1;
        }
        memcpy(l->hidden + (size_t)i * d, l->hidden, d * sizeof *l->hidden);
    }
    l->active = l->samples;
    l->times.prefill = seconds_now() - start;
    return 0;
}

/* Calls gumbel_sample(), with a workspace that grows to the largest. */
static gumbel_status sample_rows(loop *l, const gumbel_head *head, const gumbel_sampling *sampling,
                                 const gumbel_output *output, gumbel_error *problem)
{
    size_t bytes = 0;
    gumbel_status status =
        gumbel_workspace_size(l->device, head, NULL, sampling, output, &bytes, problem);
    if (status != GUMBEL_OK) {
        return status;
    }
    if (!l->workspace || bytes > l->workspace_bytes) {
        l->workspace_bytes = (bytes + 64) / 64 * 64;
        free(l->workspace);
        l->workspace = aligned_alloc(64, l->workspace_bytes);
    }
    return gumbel_sample(l->device, NULL, head, sampling, output, l->workspace, bytes, problem);
}

/* The output of a call that draws for the writers from `first` on. */
static gumbel_output make_output(loop *l, int32_t first)
{
    const generate_options *o = l->options;
    const size_t places = (size_t)first * (size_t)o->kept_ids;
    return (gumbel_output){.struct_size = sizeof(gumbel_output),
                           .tokens = l->tokens + first,
                           .logprobs = o->screen.data ? NULL : l->logprobs + first,
                           .status = l->status + first,
                           .ranks = o->ranks ? l->ranks + first : NULL,
                           .kept = o->kept || o->kept_ids ? l->kept + first : NULL,
                           .top_ids = o->num_top ? l->top_ids + first * o->num_top : NULL,
                           .top_logprobs = o->num_top ? l->top_logprobs + first * o->num_top : NULL,
                           .num_top = o->num_top,
                           .kept_capacity = o->kept_ids,
                           .kept_ids = o->kept_ids ? l->kept_ids + places : NULL,
                           .kept_logprobs = o->kept_ids ? l->kept_logprobs + places : NULL,
                           .logprobs_of = o->logprobs_of};
}

/* Draws for `count` adjacent writers in one call, which reads the head once. */
static int draw_group(loop *l, int32_t first, int32_t count)
{
    const generate_options *o = l->options;
    const writer *writers = l->writers + first;
    int64_t d = decoder_describe(l->d)->hidden_size;
    gumbel_tensor weight = decoder_head(l->d);
    int64_t known = tokenizer_size(decoder_tokenizer(l->d));
    uint64_t seeds[GENERATE_GROUP], positions[GENERATE_GROUP];
    uint32_t counters[GENERATE_GROUP];
    int32_t samples[GENERATE_GROUP];
    gumbel_history history;
    gumbel_transforms transforms = group_request_get_transforms(&l->request, first, &history);
    for (int32_t i = 0; i < count; i++) {
        seeds[i] = o->seed;
        positions[i] = (uint64_t)decoder_sequence_length(writers[i].sequence) - 1;
        counters[i] = o->first_sample + (uint32_t)writers[i].sample;
        samples[i] = writers[i].sample;
    }
    if (text_watermark_set(&l->watermark, samples, count, seeds, positions, l->error) != 0) {
        return -1;
    }
    gumbel_head head = {.struct_size = sizeof head,
                        .hidden = {.data = l->hidden + first * d,
                                   .dtype = GUMBEL_FLOAT32,
                                   .rows = count,
                                   .cols = d},
                        .weight = weight,
                        .vocab_size = known < weight.rows ? known : weight.rows,
                        .screen = o->screen};
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .temperature = {&o->temperature, GUMBEL_SAME},
                                .seed = {seeds, 0},
                                .position = {positions, 0},
                                .first_sample = {counters, 0},
                                .num_samples = 1,
                                .transforms = o->transforms ? &transforms : NULL,
                                .truncation = o->truncation ? &l->truncation : NULL};
    gumbel_output output = make_output(l, first);
    gumbel_error problem;
    gumbel_status status = o->draw ? o->draw(o->draw_context, &head, &sampling, &output, &problem)
                                   : sample_rows(l, &head, &sampling, &output, &problem);
    if (status != GUMBEL_OK) {
        return decoder_fail_call(l->error, &problem);
    }
    for (int32_t i = 0; i < count && o->screen.data; i++) {
        l->logprobs[first + i] = NAN;
    }
    return text_watermark_add(&l->watermark, samples, l->tokens + first, count, l->error);
}

/* Draws the next token of every active writer. */
static int draw_tokens(loop *l)
{
    double start = seconds_now();
    for (int32_t first = 0, count; first < l->active; first += count) {
        count = l->active - first < GENERATE_GROUP ? l->active - first : GENERATE_GROUP;
        if (draw_group(l, first, count) != 0) {
            return -1;
        }
    }
    l->times.head += seconds_now() - start;
    l->times.steps++;
    for (int32_t i = 0; i < l->active; i++) {
        if (l->status[i] != GUMBEL_ROW_OK) {
            return decoder_fail(l->error, NULL, "logits", "sample %d: %s", l->writers[i].sample,
                                gumbel_row_status_string((gumbel_row_status)l->status[i]));
        }
    }
    return group_request_add_tokens(&l->request, l->tokens, l->active, l->error);
}

static bool ends_text(const loop *l, int32_t id)
{
    const decoder_info *info = decoder_describe(l->d);
    for (int32_t i = 0; i < info->eos_count && !l->options->ignore_eos; i++) {
        if (info->eos_ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* Reports the drawn tokens and keeps the unfinished writers. False if the callback stops the
 * call. */
static bool report_tokens(loop *l)
{
    const generate_options *o = l->options;
    int32_t kept = 0;
    bool more = true;
    for (int32_t i = 0; i < l->active; i++) {
        writer w = l->writers[i];
        const bool listed = o->kept_ids && l->kept[i] <= o->kept_ids;
        const size_t places = (size_t)i * (size_t)o->kept_ids;
        generate_token token = {.sample = w.sample,
                                .position = decoder_sequence_length(w.sequence),
                                .id = l->tokens[i],
                                .logprob = l->logprobs[i],
                                .last = ++w.drawn == o->max_tokens || ends_text(l, l->tokens[i]),
                                .rank = l->ranks[i],
                                .kept = l->kept[i],
                                .top_ids = l->top_ids + i * o->num_top,
                                .top_logprobs = l->top_logprobs + i * o->num_top,
                                .kept_ids = listed ? l->kept_ids + places : NULL,
                                .kept_logprobs = listed ? l->kept_logprobs + places : NULL};
        l->times.drawn++;
        generate_next next =
            more && o->on_token ? o->on_token(o->context, &token) : GENERATE_CONTINUE;
        more = more && next != GENERATE_STOP;
        l->writers[i].sequence = NULL;
        if (token.last || next == GENERATE_END_TEXT) {
            decoder_sequence_free(w.sequence);
            continue;
        }
        group_request_copy_history(&l->request, kept, i);
        l->tokens[kept] = token.id;
        l->writers[kept++] = w;
    }
    l->active = kept;
    return more;
}

/* Feeds the drawn tokens. */
static int feed_tokens(loop *l)
{
    double start = seconds_now();
    for (int32_t i = 0; i < l->active; i++) {
        l->stepped[i] = l->writers[i].sequence;
    }
    int result = decoder_step(l->d, l->stepped, l->tokens, l->active, l->hidden, l->error);
    l->times.trunk += seconds_now() - start;
    return result;
}

static int run_loop(loop *l)
{
    if (allocate_loop(l) != 0 || feed_prompt(l) != 0) {
        return -1;
    }
    while (l->active > 0) {
        if (draw_tokens(l) != 0) {
            return -1;
        }
        if (!report_tokens(l)) {
            return 0;
        }
        if (l->active > 0 && feed_tokens(l) != 0) {
            return -1;
        }
    }
    return 0;
}

int generate(decoder *d, gumbel_device *device, const generate_options *options,
             generate_times *times, decoder_error *error)
{
    loop l = {.d = d, .device = device, .options = options, .error = error};
    l.samples = options->num_samples > 0 ? options->num_samples : 1;
    int result = check_options(d, options, error) == 0 ? run_loop(&l) : -1;
    free_loop(&l);
    if (times) {
        *times = l.times;
    }
    return result;
}

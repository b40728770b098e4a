/* SPDX-License-Identifier: Apache-2.0 */
#include "decoder/drafts/text_draws.h"

#include <stdlib.h>
#include <string.h>

int text_draws_new(text_draws *draws, gumbel_device *device, const generate_options *options,
                   int32_t sample, int64_t vocab, float factor, decoder_error *error)
{
    *draws = (text_draws){.device = device,
                          .options = options,
                          .temperature = options->temperature * factor,
                          .sample = options->first_sample + (uint32_t)sample};
    if (options->truncation) {
        draws->truncation = *options->truncation;
        draws->truncation.min_p.stride = draws->truncation.top_k.stride = GUMBEL_SAME;
        draws->truncation.top_p.stride = GUMBEL_SAME;
    }
    if (group_request_new(&draws->request, device, options, vocab, 1, error) != 0) {
        return -1;
    }
    draws->transforms = group_request_get_transforms(&draws->request, 0, &draws->history);
    return 0;
}

void text_draws_free(text_draws *draws)
{
    group_request_free(&draws->request);
    free(draws->workspace);
}

void text_draws_copy_history(text_draws *to, const text_draws *from)
{
    const gumbel_history *own = &to->history, *other = &from->history;
    if (own->counts) {
        size_t words = (size_t)to->request.words, tokens = (size_t)own->vocab_size;
        memcpy(own->prompt, other->prompt, words * sizeof *own->prompt);
        memcpy(own->output, other->output, words * sizeof *own->output);
        memcpy(own->counts, other->counts, tokens * sizeof(uint16_t));
    }
}

/* Number of tokens of both the head and the tokenizer. */
static int64_t count_vocab(const decoder *d)
{
    int64_t known = tokenizer_size(decoder_tokenizer(d)), rows = decoder_head(d).rows;
    return known < rows ? known : rows;
}

gumbel_head text_draws_head(const decoder *d, const float *hidden, int32_t rows)
{
    gumbel_tensor weight = decoder_head(d);
    weight.rows = count_vocab(d);
    return (gumbel_head){.struct_size = sizeof(gumbel_head),
                         .hidden = {.data = hidden,
                                    .dtype = GUMBEL_FLOAT32,
                                    .rows = rows,
                                    .cols = decoder_describe(d)->hidden_size},
                         .weight = weight};
}

gumbel_head text_draws_screened_head(const decoder *d, const float *hidden, int32_t rows,
                                     gumbel_screen screen)
{
    gumbel_head head = text_draws_head(d, hidden, rows);
    if (screen.data) { /* a screen covers all rows of the weights */
        head.vocab_size = head.weight.rows;
        head.weight = decoder_head(d);
        head.screen = screen;
    }
    return head;
}

gumbel_logits text_draws_logits(const decoder *d, const float *logits, int32_t rows)
{
    return (gumbel_logits){.struct_size = sizeof(gumbel_logits),
                           .logits = {.data = logits,
                                      .dtype = GUMBEL_FLOAT32,
                                      .rows = rows,
                                      .cols = count_vocab(d),
                                      .stride = decoder_head(d).rows}};
}

static gumbel_sampling make_sampling(const text_draws *draws, const uint64_t *position)
{
    const generate_options *o = draws->options;
    gumbel_sampling sampling = {.struct_size = sizeof sampling,
                                .temperature = {&draws->temperature, GUMBEL_SAME},
                                .seed = {&o->seed, 0},
                                .position = {position, GUMBEL_SAME},
                                .num_samples = 1,
                                .first_sample = {&draws->sample, GUMBEL_SAME},
                                .domain = draws->domain,
                                .transforms = o->transforms ? &draws->transforms : NULL,
                                .truncation = o->truncation ? &draws->truncation : NULL};
    return sampling;
}

gumbel_sampling text_draws_draft_sampling(const text_draws *text, const text_draws *by)
{
    gumbel_sampling sampling = make_sampling(text, NULL);
    sampling.temperature.data = &by->temperature;
    sampling.domain = GUMBEL_DOMAIN_DRAFT;
    return sampling;
}

static gumbel_status grow_workspace(text_draws *draws, size_t bytes, gumbel_error *error)
{
    if (!draws->workspace || bytes > draws->workspace_bytes) {
        draws->workspace_bytes = (bytes + 64) / 64 * 64;
        free(draws->workspace);
        draws->workspace = aligned_alloc(64, draws->workspace_bytes);
    }
    if (!draws->workspace) {
        *error = (gumbel_error){"drafts", "out of memory"};
        return GUMBEL_ERROR_MEMORY;
    }
    return GUMBEL_OK;
}

/* Counts the tokens of the single row; `counts` is their number, NULL: one. */
static int count_tokens(text_draws *draws, const int32_t *tokens, int64_t stride,
                        const int32_t *counts, decoder_error *error)
{
    gumbel_error problem;
    if (draws->history.counts &&
        gumbel_history_update(draws->device, NULL, &draws->history, 1, NULL, tokens, stride, counts,
                              &problem) != GUMBEL_OK) {
        return decoder_fail_call(error, &problem);
    }
    return 0;
}

static int fail_row(int32_t status, decoder_error *error)
{
    return decoder_fail(error, NULL, "logits", "%s",
                        gumbel_row_status_string((gumbel_row_status)status));
}

/* Calls the library on the draws' device. */
static gumbel_status sample_here(text_draws *draws, const gumbel_head *head,
                                 const gumbel_sampling *sampling, const gumbel_output *output,
                                 gumbel_error *error)
{
    size_t bytes = 0;
    gumbel_status status =
        gumbel_workspace_size(draws->device, head, NULL, sampling, output, &bytes, error);
    if (status == GUMBEL_OK) {
        status = grow_workspace(draws, bytes, error);
    }
    return status != GUMBEL_OK ? status
                               : gumbel_sample(draws->device, NULL, head, sampling, output,
                                               draws->workspace, bytes, error);
}

static gumbel_status verify_on_device(text_draws *draws, const gumbel_head *head,
                                      const gumbel_logits *logits, const gumbel_sampling *sampling,
                                      const gumbel_draft *draft, const gumbel_verified *verified,
                                      gumbel_error *error)
{
    size_t bytes = 0;
    gumbel_status status = gumbel_verify_workspace_size(draws->device, head, logits, sampling,
                                                        draft, verified, &bytes, error);
    if (status == GUMBEL_OK) {
        status = grow_workspace(draws, bytes, error);
    }
    if (status != GUMBEL_OK) {
        return status;
    }
    return head ? gumbel_verify(draws->device, NULL, head, sampling, draft, verified,
                                draws->workspace, bytes, error)
                : gumbel_verify_logits(draws->device, NULL, logits, sampling, draft, verified,
                                       draws->workspace, bytes, error);
}

int text_draws_sample(text_draws *draws, const gumbel_head *head, uint64_t position, int32_t *token,
                      int32_t *best, int32_t num_best, decoder_error *error)
{
    const generate_options *o = draws->options;
    gumbel_sampling sampling = make_sampling(draws, &position);
    gumbel_error problem;
    int32_t status = GUMBEL_ROW_OK;
    gumbel_output output = {.struct_size = sizeof output,
                            .tokens = token,
                            /* Required by a generate_draw. */
                            .logprobs = draws->verify || draws->keep_lse ? &draws->logprob : NULL,
                            .lse = draws->keep_lse ? &draws->lse : NULL,
                            .status = &status,
                            .best_ids = num_best > 0 ? best : NULL,
                            .num_best = num_best};
    if ((draws->verify ? o->draw(o->draw_context, head, &sampling, &output, &problem)
                       : sample_here(draws, head, &sampling, &output, &problem)) != GUMBEL_OK) {
        return decoder_fail_call(error, &problem);
    }
    return status == GUMBEL_ROW_OK ? count_tokens(draws, token, 0, NULL, error)
                                   : fail_row(status, error);
}

int text_draws_verify(text_draws *draws, const gumbel_head *head, const gumbel_logits *logits,
                      uint64_t position, const gumbel_draft *draft, const gumbel_verified *verified,
                      decoder_error *error)
{
    gumbel_sampling sampling = make_sampling(draws, &position);
    gumbel_error problem;
    if ((draws->verify ? draws->verify(draws->options->draw_context, head, logits, &sampling, draft,
                                       verified, &problem)
                       : verify_on_device(draws, head, logits, &sampling, draft, verified,
                                          &problem)) != GUMBEL_OK) {
        return decoder_fail_call(error, &problem);
    }
    if (*verified->emitted == 0) {
        return fail_row(*verified->status, error);
    }
    return count_tokens(draws, verified->tokens, draft->max_nodes, verified->emitted, error);
}

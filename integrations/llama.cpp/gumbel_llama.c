/* SPDX-License-Identifier: Apache-2.0
 *
 * The sampler: its state, and the callbacks of llama.cpp outside the graph.
 */
#include "gumbel_llama_state.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* The layout that this file fills: twelve callbacks, copy_state() the last. The size detects a
 * header with fewer callbacks, which the offset and the compiler would not. */
#define OTHER_LAYOUT                                                                               \
    "this llama.h has another struct llama_sampler_i than llama.cpp 0c1e57098, which "             \
    "gumbel_llama.c fits"
_Static_assert(sizeof(struct llama_sampler_i) == 12 * sizeof(void (*)(void)), OTHER_LAYOUT);
_Static_assert(offsetof(struct llama_sampler_i, copy_state) == 11 * sizeof(void (*)(void)),
               OTHER_LAYOUT);
_Static_assert(sizeof(llama_token) == sizeof(int32_t), "llama_token is not 32 bits");

struct gumbel_llama_params gumbel_llama_default_params(void)
{
    return (struct gumbel_llama_params){.temperature = 1,
                                        .top_p = 1,
                                        .order = GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE,
                                        .repetition = 1,
                                        .penalty_last_n = -1,
                                        .typical_p = 1,
                                        .xtc_threshold = .1f,
                                        .dynatemp_exponent = 1,
                                        .mirostat_tau = 5,
                                        .mirostat_eta = .1f,
                                        .adaptive_target = -1,
                                        .adaptive_decay = .9f,
                                        .dry_base = 1.75f,
                                        .dry_allowed_length = 2,
                                        .dry_penalty_last_n = -1,
                                        .threads = 1};
}

/* -------------------------------------------------------------------------- callbacks ---- */

static const char *sampler_name(const struct llama_sampler *sampler)
{
    (void)sampler;
    return "gumbel";
}

static void sampler_accept(struct llama_sampler *sampler, llama_token token)
{
    struct gumbel_llama_state *state = sampler->ctx;
    gumbel_llama_update_rules(state, token);
    if (!gumbel_llama_ring_push(&state->penalised, token) ||
        !gumbel_llama_ring_push(&state->repeated, token))
        gumbel_llama_fail(state, "penalty_last_n", "out of memory for accepted tokens");
    state->report.position++;
}

/* Index of a token among candidates, usually its id; -1 if it is not among them. */
static int64_t find_candidate(const llama_token_data_array *candidates, llama_token token)
{
    if (token >= 0 && (size_t)token < candidates->size && candidates->data[token].id == token)
        return token;
    for (size_t i = 0; i < candidates->size; i++)
        if (candidates->data[i].id == token)
            return (int64_t)i;
    return -1;
}

static void sampler_apply(struct llama_sampler *sampler, llama_token_data_array *candidates)
{
    struct gumbel_llama_state *state = sampler->ctx;
    const llama_token_data *data = candidates->data;
    llama_token token = -1;

    if (candidates->size == 0)
        return;
    if (gumbel_llama_scatter(state, &data->id, &data->logit, sizeof *data, candidates->size)) {
        const gumbel_logits logits = gumbel_llama_logits(state, state->row, 1);
        token = gumbel_llama_draw(state, state->device, NULL, &logits);
    }
    state->report.candidates++;
    if (token < 0)
        state->report.failed++;
    const llama_token selected = token < 0 ? state->params.failed_token : token;
    candidates->selected = find_candidate(candidates, selected);
    if (candidates->selected < 0)
        candidates->selected = 0;
}

static void sampler_reset(struct llama_sampler *sampler)
{
    struct gumbel_llama_state *state = sampler->ctx;
    state->penalised.count = state->repeated.count = 0;
    gumbel_llama_reset_rules(state);
    state->report = (struct gumbel_llama_report){.position = state->params.position};
}

static void state_free(struct gumbel_llama_state *state)
{
    gumbel_close(state->device);
    gumbel_close(state->graph_device);
    free(state->workspace);
    free(state->row);
    free(state->words);
    free(state->bias_ids);
    free(state->bias_values);
    free(state->samplers);
    gumbel_llama_free_recent(state);
    free(state);
}

static void sampler_free(struct llama_sampler *sampler) { state_free(sampler->ctx); }

/* Copies the state that draws change; the graph's tensors remain those of `to`. */
static void sampler_copy_state(const struct llama_sampler *from, struct llama_sampler *to)
{
    const struct gumbel_llama_state *source = from->ctx;
    struct gumbel_llama_state *state = to->ctx;

    state->report = source->report;
    state->surprise = source->surprise;
    state->adaptive = source->adaptive;
    state->drawn = source->drawn;
    state->drawn_logprob = source->drawn_logprob;
    if (!gumbel_llama_ring_copy(&source->penalised, &state->penalised) ||
        !gumbel_llama_ring_copy(&source->repeated, &state->repeated))
        gumbel_llama_fail(state, "penalty_last_n", "out of memory for accepted tokens");
}

static struct llama_sampler *sampler_clone(const struct llama_sampler *sampler);

static struct llama_sampler_i interface = {
    .name = sampler_name,
    .accept = sampler_accept,
    .apply = sampler_apply,
    .reset = sampler_reset,
    .clone = sampler_clone,
    .free = sampler_free,
    .backend_init = gumbel_llama_backend_init,
    .backend_apply = gumbel_llama_backend_apply,
    .backend_set_input = gumbel_llama_backend_set_input,
    .backend_reset = gumbel_llama_backend_reset,
    .copy_state = sampler_copy_state,
};

/* ------------------------------------------------------------------------- init, clone ---- */

/* Copies the caller's arrays, and allocates a row of logits. */
static bool state_allocate(struct gumbel_llama_state *state,
                           const struct gumbel_llama_params *params)
{
    const size_t n = (size_t)state->n_vocab, listed = (size_t)params->bias_count;
    state->row = malloc(n * sizeof *state->row);
    state->bias_ids = malloc((listed + 1) * sizeof *state->bias_ids);
    state->bias_values = malloc((listed + 1) * sizeof *state->bias_values);
    if (params->mask)
        state->words = malloc((n + 31) / 32 * sizeof *state->words);
    if (!state->row || !state->bias_ids || !state->bias_values || (params->mask && !state->words))
        return false;
    for (size_t i = 0; i < listed; i++) {
        state->bias_ids[i] = params->bias[i].token;
        state->bias_values[i] = params->bias[i].bias;
    }
    if (params->samplers) {
        state->params.samplers = state->samplers = strdup(params->samplers);
        if (!state->samplers)
            return false;
    }
    return gumbel_llama_start_recent(state);
}

/* Open the device, and have the library check the parameters by one draw without a result. The mask
 * is not called; a bias that bans all tokens makes the row empty, which is no error. */
static gumbel_status state_open(struct gumbel_llama_state *state, gumbel_error *error)
{
    struct gumbel_llama_request r;
    const gumbel_device_options options = {.struct_size = sizeof options,
                                           .threads = state->params.threads};
    const gumbel_logits logits = gumbel_llama_logits(state, state->row, 1);
    int32_t token;
    const gumbel_output output = {.struct_size = sizeof output, .tokens = &token};
    size_t bytes = 0;
    gumbel_status status = gumbel_open(&options, &state->device, error);

    if (status != GUMBEL_OK)
        return status;
    memset(state->row, 0, (size_t)state->n_vocab * sizeof *state->row);
    status = gumbel_llama_fill_request(state, state->device, false, &r, error);
    if (status == GUMBEL_OK)
        status = gumbel_workspace_size(state->device, NULL, &logits, &r.sampling, &output, &bytes,
                                       error);
    if (status != GUMBEL_OK)
        return status;
    if (!gumbel_llama_reserve_workspace(state, bytes)) {
        gumbel_llama_set_error(error, "n_vocab", "out of memory for a workspace");
        return GUMBEL_ERROR_MEMORY;
    }
    return gumbel_sample_logits(state->device, NULL, &logits, &r.sampling, &output,
                                state->workspace, bytes, error);
}

/* Check parameters that are not passed to the library; returns the invalid field, or NULL. */
static const char *find_invalid_field(int32_t n_vocab, const struct gumbel_llama_params *p,
                                      const char **message)
{
    *message = "is not in [1, 2^31)";
    if (n_vocab < 1)
        return "n_vocab";
    *message = "is below -1";
    if (p->position < -1)
        return "position";
    if (p->penalty_last_n < -1)
        return "penalty_last_n";
    if (p->dry_penalty_last_n < -1)
        return "dry_penalty_last_n";
    *message = "is negative, or bias is NULL";
    if (p->bias_count < 0 || (p->bias_count > 0 && !p->bias))
        return "bias_count";
    *message = "is negative, or dry_breakers is NULL";
    if (p->dry_breaker_count < 0 || (p->dry_breaker_count > 0 && !p->dry_breakers))
        return "dry_breaker_count";
    *message = "has a breaker without tokens";
    for (int32_t i = 0; i < p->dry_breaker_count; i++)
        if (p->dry_breakers[i].count < 1 || !p->dry_breakers[i].tokens)
            return "dry_breakers";
    *message = "is not in [0, n_vocab)";
    if (p->failed_token < 0 || p->failed_token >= n_vocab)
        return "failed_token";
    for (int32_t i = 0; i < p->bias_count; i++)
        if (p->bias[i].token < 0 || p->bias[i].token >= n_vocab)
            return "bias";
    return NULL;
}

struct llama_sampler *gumbel_llama_init(int32_t n_vocab, const struct gumbel_llama_params *params,
                                        gumbel_error *error)
{
    const struct gumbel_llama_params defaults = gumbel_llama_default_params();
    const struct gumbel_llama_params *p = params ? params : &defaults;
    const char *message, *field = find_invalid_field(n_vocab, p, &message);

    if (field) {
        gumbel_llama_set_error(error, field, message);
        return NULL;
    }
    struct gumbel_llama_state *state = calloc(1, sizeof *state);
    if (!state) {
        gumbel_llama_set_error(error, "n_vocab", "out of memory for a sampler");
        return NULL;
    }
    state->n_vocab = n_vocab;
    state->params = *p;
    state->params.bias = NULL;
    state->report.position = p->position;
    atomic_store(&state->job.closed, 1);
    bool ready = state_allocate(state, p);
    if (!ready)
        gumbel_llama_set_error(error, "n_vocab", "out of memory for a row of logits");
    ready = ready && gumbel_llama_read_rules(state, error) && state_open(state, error) == GUMBEL_OK;
    struct llama_sampler *sampler = ready ? llama_sampler_init(&interface, state) : NULL;
    if (!sampler)
        state_free(state);
    return sampler;
}

static struct llama_sampler *sampler_clone(const struct llama_sampler *sampler)
{
    const struct gumbel_llama_state *state = sampler->ctx;
    const int32_t listed = state->params.bias_count;
    struct gumbel_llama_params params = state->params;
    llama_logit_bias *bias = malloc(((size_t)listed + 1) * sizeof *bias);

    for (int32_t i = 0; bias && i < listed; i++)
        bias[i] = (llama_logit_bias){state->bias_ids[i], state->bias_values[i]};
    params.bias = bias;
    struct llama_sampler *clone = bias ? gumbel_llama_init(state->n_vocab, &params, NULL) : NULL;
    free(bias);
    if (clone)
        sampler_copy_state(sampler, clone);
    return clone;
}

/* ----------------------------------------------------------------------------- callers ---- */

static struct gumbel_llama_state *get_own_state(const struct llama_sampler *sampler)
{
    return sampler && sampler->iface == &interface ? sampler->ctx : NULL;
}

struct gumbel_llama_state *gumbel_llama_find_state(const struct llama_sampler *sampler)
{
    struct gumbel_llama_state *state = get_own_state(sampler);
    /* llama.h takes a sampler that is not const, but the calls below only read it. */
    struct llama_sampler *chain = (struct llama_sampler *)sampler;

    if (state || !chain || !llama_sampler_chain_get(chain, -1))
        return state;
    for (int32_t i = 0; i < llama_sampler_chain_n(chain) && !state; i++)
        state = get_own_state(llama_sampler_chain_get(chain, i));
    return state;
}

bool gumbel_llama_describe(const struct llama_sampler *sampler, struct gumbel_llama_report *report)
{
    const struct gumbel_llama_state *state = gumbel_llama_find_state(sampler);
    if (state)
        *report = state->report;
    return state != NULL;
}

bool gumbel_llama_set_position(struct llama_sampler *sampler, int64_t position)
{
    struct gumbel_llama_state *state = gumbel_llama_find_state(sampler);
    if (state)
        state->report.position = position;
    return state != NULL;
}

llama_token gumbel_llama_sample(struct llama_sampler *sampler, struct llama_context *context,
                                int32_t i)
{
    struct gumbel_llama_state *state = gumbel_llama_find_state(sampler);
    llama_token token = llama_get_sampled_token_ith(context, i);

    if (!state)
        return -1;
    if (token < 0) {
        if (!get_own_state(sampler) && llama_sampler_chain_n(sampler) != 1)
            return llama_sampler_sample(sampler, context, i);
        const float *row = llama_get_logits_ith(context, i);
        if (!row)
            return -1;
        const gumbel_logits logits = gumbel_llama_logits(state, row, 1);
        token = gumbel_llama_draw(state, state->device, NULL, &logits);
        state->report.rows++;
        if (token < 0) {
            state->report.failed++;
            token = state->params.failed_token;
        }
    }
    llama_sampler_accept(sampler, token);
    return token;
}

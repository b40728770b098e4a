/* SPDX-License-Identifier: Apache-2.0
 *
 * usage: test_llama_errors
 *
 * Tests that invalid parameters of rules, and drafts that rules do not support, return an error
 * that names the field. Prints a line for each failed check; exits 1 if there is any.
 */
#include "test_rows.h"

#include <math.h>

static void test_refused_parameters(void)
{
    const struct gumbel_llama_params good = gumbel_llama_default_params();
    const struct gumbel_llama_breaker empty = {&(llama_token){0}, 0};
    struct gumbel_llama_params p;

#define REFUSES(name, ...) (p = good, __VA_ARGS__, check_error(V, &p, name))
    static const char *const lists[] = {"",
                                        "top_k",
                                        "top_k;",
                                        "top_k temperature",
                                        "temperature;top_k;top_k",
                                        "infill;temperature",
                                        "adaptive_p",
                                        "adaptive_p;temperature;adaptive-p",
                                        "mirostat;temperature"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        REFUSES("samplers", p.samplers = lists[i]);
    REFUSES("samplers", p.samplers = "top_k;dry;temperature", p.top_k = 4, p.dry_multiplier = 1);
    REFUSES("samplers", p.samplers = "dry;penalties;temperature", p.presence = 1,
            p.dry_multiplier = 1);
    REFUSES("samplers", p.samplers = "temperature;xtc;top_k", p.top_k = 4, p.xtc_probability = 1);
    REFUSES("dynatemp_range", p.samplers = "xtc;temperature", p.dynatemp_range = 1,
            p.xtc_probability = 1);
    REFUSES("top_k", p.samplers = "temperature", p.top_k = 4);
    REFUSES("top_p", p.samplers = "temperature", p.top_p = .5f);
    REFUSES("xtc_probability", p.samplers = "temperature", p.xtc_probability = .5f);
    REFUSES("penalty_last_n", p.samplers = "temperature", p.presence = 1);
    REFUSES("dry_multiplier", p.samplers = "temperature", p.dry_multiplier = 1);
    REFUSES("order", p.order = GUMBEL_ORDER_JOINT, p.typical_p = .5f);
    REFUSES("typical_p", p.typical_p = 0);
    REFUSES("typical_p", p.typical_p = NAN);
    REFUSES("top_n_sigma", p.top_n_sigma = NAN);
    REFUSES("top_n_sigma", p.top_n_sigma = -INFINITY);
    REFUSES("xtc_probability", p.xtc_probability = 2);
    REFUSES("xtc_threshold", p.xtc_probability = 1, p.xtc_threshold = 0);
    REFUSES("dynatemp_range", p.dynatemp_range = -1);
    REFUSES("dynatemp_exponent", p.dynatemp_exponent = NAN);
    REFUSES("min_keep", p.min_keep = -1);
    REFUSES("mirostat", p.mirostat = 1);
    REFUSES("mirostat_tau", p.mirostat_tau = -1);
    REFUSES("mirostat_eta", p.mirostat_eta = NAN);
    REFUSES("adaptive_target", p.adaptive_target = NAN);
    REFUSES("adaptive_target", p.adaptive_target = 1.5f);
    REFUSES("adaptive_target", p.adaptive_target = .5f, p.samplers = "temperature");
    REFUSES("adaptive_target", p.adaptive_target = .5f, p.xtc_probability = .5f);
    REFUSES("adaptive_target", p.adaptive_target = .5f, p.mirostat = 2);
    REFUSES("adaptive_decay", p.adaptive_target = .5f, p.adaptive_decay = 1);
    REFUSES("adaptive_decay", p.adaptive_decay = -.5f);
    REFUSES("adaptive_decay", p.adaptive_decay = NAN);
    REFUSES("top_k", p.mirostat = 2, p.top_k = 4);
    REFUSES("typical_p", p.mirostat = 2, p.typical_p = .4f);
    REFUSES("samplers", p.mirostat = 2, p.samplers = "temperature");
    REFUSES("dry_multiplier", p.dry_multiplier = -1);
    REFUSES("dry_base", p.dry_multiplier = 1, p.dry_base = NAN);
    REFUSES("dry_allowed_length", p.dry_multiplier = 1, p.dry_allowed_length = -1);
    REFUSES("dry_penalty_last_n", p.dry_penalty_last_n = -2);
    REFUSES("dry_breaker_count", p.dry_breaker_count = 1);
    REFUSES("dry_breakers", p.dry_breaker_count = 1, p.dry_breakers = &empty);
}

static void test_refused_drafts(void)
{
    struct gumbel_llama_params params = gumbel_llama_default_params();

    params.mirostat = 2;
    check_draft_error(&params, 1, 0, GUMBEL_ERROR_UNSUPPORTED, "mirostat");
    params = gumbel_llama_default_params();
    params.adaptive_target = .5f;
    check_draft_error(&params, 1, 0, GUMBEL_ERROR_UNSUPPORTED, "adaptive_target");
    params = gumbel_llama_default_params();
    params.dry_multiplier = 1;
    check_draft_error(&params, 1, 0, GUMBEL_ERROR_UNSUPPORTED, "dry_multiplier");
}

int main(void)
{
    test_refused_parameters();
    test_refused_drafts();
    return end_checks();
}

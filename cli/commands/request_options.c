/* SPDX-License-Identifier: Apache-2.0 */
#include "request_options.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "tensor_file.h"
#include "token_rows.h"

static void read_ties(const char *field, const char *text, void *into)
{
    if (strcmp(text, "all") != 0 && strcmp(text, "exact") != 0) {
        fail(field, "'%s' is not all or exact", text);
    }
    *(gumbel_ties *)into = strcmp(text, "all") == 0 ? GUMBEL_TIES_ALL : GUMBEL_TIES_EXACT;
}

#define AT(member) .offset = offsetof(struct request_options, member)
const struct argument request_arguments[] = {
    {.help = "Truncation. X is a number, or a .npy file with one value for each row:"},
    {"top-k", 0, "X", "Keep the X likeliest tokens; 0 is off (default 0)", ARGUMENT_TEXT,
     AT(top_k)},
    {"top-p", 0, "X",
     "Keep the likeliest tokens up to this sum of probabilities, in (0, 1] (default 1)",
     ARGUMENT_TEXT, AT(top_p)},
    {"min-p", 0, "X",
     "Keep tokens of at least X times the largest probability; 0 is off (default 0)", ARGUMENT_TEXT,
     AT(min_p)},
    {"order", 0, "NAME",
     "Order of all rules, as in vllm (the default), hf, llama.cpp, exllamav3, "
     "text-generation-webui, sglang or mlx; or min_p,top_k,top_p, before_temperature, "
     "top_k,top_p,min_p, top_k,top_p,min_p,temperature, joint or joint,temperature",
     ARGUMENT_OTHER, AT(order), .read = read_order,
     .choices = "vllm hf llama.cpp exllamav3 text-generation-webui sglang mlx"},
    {"samplers", 0, "RULE;..",
     "Order of rules in llama.cpp's words, of temperature, min_p, top_k, top_p, typ_p, "
     "top_n_sigma, epsilon, eta, top_a, p_less, surprise, xtc, smoothing and adaptive_p",
     ARGUMENT_OTHER, AT(samplers), .read = read_samplers},
    {"ties", 0, "NAME",
     "At the limit keep all tokens of equal probability, or exact: lower ids first", ARGUMENT_OTHER,
     AT(ties), .read = read_ties, .choices = "all exact"},
    {.help = "More rules, which --order or --samplers must list. X as above:"},
    {"typical", 0, "X",
     "typ_p: keep tokens whose -ln p is closest to the entropy, up to this sum of probabilities, "
     "in (0, 1]",
     ARGUMENT_TEXT, AT(typical_p)},
    {"top-nsigma", 0, "X",
     "top_n_sigma: keep tokens up to X standard deviations of the logits below the largest; 0 is "
     "off",
     ARGUMENT_TEXT, AT(top_n_sigma)},
    {"epsilon", 0, "X", "Keep tokens of at least the probability X; 0 is off", ARGUMENT_TEXT,
     AT(epsilon)},
    {"eta", 0, "X",
     "Keep tokens of at least the probability min(X, sqrt(X) exp(-entropy)); 0 is off",
     ARGUMENT_TEXT, AT(eta)},
    {"top-a", 0, "X",
     "Keep tokens of at least X times the square of the largest probability; 0 is off",
     ARGUMENT_TEXT, AT(top_a)},
    {"p-less", 0, NULL, "Keep tokens of at least the sum of the squares of all probabilities",
     ARGUMENT_FLAG, AT(p_less)},
    {"surprise", 0, "X", "Keep tokens with -log2 p up to X bits", ARGUMENT_TEXT, AT(surprise)},
    {"xtc-probability", 0, "X",
     "xtc: with this probability remove all tokens of at least --xtc-threshold but the least "
     "likely one; 0 is off",
     ARGUMENT_TEXT, AT(xtc_probability)},
    {"xtc-threshold", 0, "X", "Threshold of xtc, in (0, 1]; off above 0.5 (default 0.1)",
     ARGUMENT_TEXT, AT(xtc_threshold)},
    {"dynatemp-range", 0, "X",
     "The temperature depends on the entropy, and is up to X lower or higher; 0 is off",
     ARGUMENT_TEXT, AT(temperature_range)},
    {"dynatemp-exp", 0, "X", "Exponent of the entropy in this temperature (default 1)",
     ARGUMENT_TEXT, AT(temperature_exponent)},
    {"smoothing-factor", 0, "X",
     "smoothing: lower logits by the square and the cube of their distance to the largest; 0 is "
     "off",
     ARGUMENT_TEXT, AT(smoothing_factor)},
    {"smoothing-curve", 0, "X", "Share of the cube in smoothing, in [1, 3] (default 1)",
     ARGUMENT_TEXT, AT(smoothing_curve)},
    {"adaptive-target", 0, "X",
     "adaptive_p: prefer tokens whose probability is near X, in [0, 1], the same at every step; "
     "below 0 is off",
     ARGUMENT_TEXT, AT(adaptive_target)},
    {"min-keep", 0, "X", "No rule but top_k keeps fewer tokens (default 1)", ARGUMENT_TEXT,
     AT(min_keep)},
    {.help = "Tokens that may be drawn:"},
    {"mask", 0, "FILE.npy",
     "int32 words, one row or a row each: bit t & 31 of word t >> 5 allows token t", ARGUMENT_TEXT,
     AT(mask)},
    {"allow", 0, "ID,..",
     "The only tokens that may be drawn, if any are listed; or a .npy file as for --ban",
     ARGUMENT_TEXT, AT(allowed)},
    {"ban", 0, "ID,..", "Tokens never drawn; or a .npy file, int32 [B, N], rows ended by -1",
     ARGUMENT_TEXT, AT(banned)},
    {.help = "Changes of logits. X as above:"},
    {"logit-bias", 0, "ID=X,..", "Added to the logits of tokens; -inf bans", ARGUMENT_TEXT,
     AT(logit_bias)},
    {"repetition-penalty", 0, "X",
     "For tokens of prompt and output: divides positive logits, multiplies others (default 1)",
     ARGUMENT_TEXT, AT(repetition)},
    {"frequency-penalty", 0, "X", "Subtracted for each occurrence in the output (default 0)",
     ARGUMENT_TEXT, AT(frequency)},
    {"presence-penalty", 0, "X", "Subtracted once for tokens in the output (default 0)",
     ARGUMENT_TEXT, AT(presence)},
    {.help = "More results:"},
    {"top-logprobs", 0, "N", "Number of likeliest tokens to report, 0 to 128 (default 0)",
     ARGUMENT_INT32, AT(num_top), 0, 128},
    {"raw-logprobs", 0, NULL, "Log-probabilities of the unmodified logits, not of the draw",
     ARGUMENT_FLAG, AT(raw)},
    {"ranks", 0, NULL, "Rank of the drawn token: 1 + the number of likelier tokens", ARGUMENT_FLAG,
     AT(ranks)},
    {"kept", 0, NULL, "Number of tokens that truncation keeps", ARGUMENT_FLAG, AT(kept)},
    {0},
};

/* ---------------------------------------------------------------------------- reading ---- */

/* Options that are row parameters of rules: floats in [low, high]. */
static const struct rule_option {
    const char *name;
    size_t text; /* offset in struct request_options */
    size_t rows; /* offset in gumbel_programs */
    float low, high;
    gumbel_program_rule rule;
    bool turns_on; /* the rule is on if the option is given */
} rule_options[] = {
#define RULE(member) offsetof(struct request_options, member), offsetof(gumbel_programs, member)
    {"--typical", RULE(typical_p), FLT_TRUE_MIN, 1, GUMBEL_PROGRAM_TYPICAL_P, true},
    {"--top-nsigma", RULE(top_n_sigma), 0, FLT_MAX, GUMBEL_PROGRAM_TOP_N_SIGMA, true},
    {"--epsilon", RULE(epsilon), 0, 0x1.fffffep-1f, GUMBEL_PROGRAM_EPSILON, true},
    {"--eta", RULE(eta), 0, 0x1.fffffep-1f, GUMBEL_PROGRAM_ETA, true},
    {"--top-a", RULE(top_a), 0, 1, GUMBEL_PROGRAM_TOP_A, true},
    {"--surprise", RULE(surprise), 0, FLT_MAX, GUMBEL_PROGRAM_SURPRISE, true},
    {"--xtc-probability", RULE(xtc_probability), 0, 1, GUMBEL_PROGRAM_XTC, true},
    {"--xtc-threshold", RULE(xtc_threshold), FLT_TRUE_MIN, 1, GUMBEL_PROGRAM_XTC, false},
    {"--smoothing-factor", RULE(smoothing_factor), 0, FLT_MAX, GUMBEL_PROGRAM_SMOOTHING, true},
    {"--smoothing-curve", RULE(smoothing_curve), 1, 3, GUMBEL_PROGRAM_SMOOTHING, false},
    {"--adaptive-target", RULE(adaptive_target), -1, 1, GUMBEL_PROGRAM_ADAPTIVE_P, true},
    {"--dynatemp-range", RULE(temperature_range), 0, FLT_MAX, GUMBEL_PROGRAM_TEMPERATURE, false},
    {"--dynatemp-exp", RULE(temperature_exponent), 0, FLT_MAX, GUMBEL_PROGRAM_TEMPERATURE, false},
#undef RULE
};
enum { RULE_OPTIONS = sizeof rule_options / sizeof *rule_options };

bool request_truncates(const struct request_options *options)
{
    bool found =
        options->top_k || options->top_p || options->min_p || options->min_keep || options->p_less;

    for (int i = 0; i < RULE_OPTIONS; i++) {
        found = found || *(const char *const *)((const char *)options + rule_options[i].text);
    }
    return found;
}

/* fail() unless the order lists the rule that an option belongs to. */
static void require_listed(const char *option, const struct rule_order *order,
                           gumbel_program_rule rule)
{
    if (!order->rules[0]) {
        fail(option, "is not supported with the order '%s', whose rules are joint", order->name);
    }
    if (!rule_order_has(order, rule)) {
        fail(option, "the order '%s' has no %s; list it in --samplers", order->name,
             get_rule_name(rule));
    }
}

static gumbel_row_i32 read_min_keep(const char *text, int64_t rows)
{
    gumbel_row_i32 found = read_row_int32s("--min-keep", text, rows);
    const int64_t count = found.stride == GUMBEL_SAME ? 1 : rows;

    for (int64_t row = 0; row < count; row++) {
        if (found.data[row] < 1) {
            fail("--min-keep", "%d is not at least 1", (int)found.data[row]);
        }
    }
    found.stride = rows == 1 ? GUMBEL_SAME : found.stride;
    return found;
}

/* Reads the rules that gumbel_truncation lacks. Returns their bits, and sets *given if any option
 * of programs is given. */
static uint32_t read_rules(struct request *request, const struct request_options *options,
                           const struct rule_order *order, int64_t rows, bool *given)
{
    uint32_t on = 0;

    for (int i = 0; i < RULE_OPTIONS; i++) {
        const struct rule_option *rule = &rule_options[i];
        const char *text = *(const char *const *)((const char *)options + rule->text);
        gumbel_row_f32 *into = (gumbel_row_f32 *)((char *)&request->programs + rule->rows);

        *into = read_row_floats(rule->name, text, rule->low, rule->high, rows);
        if (into->data) {
            into->stride = rows == 1 ? GUMBEL_SAME : into->stride; /* `generate` has more rows */
            require_listed(rule->name, order, rule->rule);
            on |= (uint32_t)rule->turns_on << rule->rule;
            *given = true;
        }
    }
    if (options->p_less) {
        require_listed("--p-less", order, GUMBEL_PROGRAM_P_LESS);
        on |= 1u << GUMBEL_PROGRAM_P_LESS;
        *given = true;
    }
    if (options->min_keep) {
        request->programs.min_keep = read_min_keep(options->min_keep, rows);
        require_listed("--min-keep", order, GUMBEL_PROGRAM_TEMPERATURE);
        *given = true;
    }
    return on;
}

static void read_truncation(struct request *request, const struct request_options *options,
                            int64_t rows)
{
    gumbel_truncation *into = &request->truncation;
    const struct rule_order *order = options->samplers.name ? &options->samplers
                                     : options->order.name  ? &options->order
                                                            : &default_rule_order;
    bool given = false;
    uint32_t on = 0;

    if (options->samplers.name && options->order.name) {
        fail("--samplers", "both --samplers and --order are given");
    }
    into->struct_size = sizeof *into;
    into->top_k = read_row_int32s("--top-k", options->top_k, rows);
    into->min_p = read_row_floats("--min-p", options->min_p, 0, 1, rows);
    into->top_p = read_row_floats("--top-p", options->top_p, FLT_TRUE_MIN, 1, rows);
    into->order = order->order;
    into->ties = options->ties;
    on = read_rules(request, options, order, rows, &given);
    request->truncated = into->min_p.data || into->top_k.data || into->top_p.data || given;
    if (!request->truncated || (!given && !order->listed)) {
        return;
    }
    const struct {
        const char *name;
        const void *data;
        gumbel_program_rule rule;
    } limits[] = {
        {"--top-k", into->top_k.data, GUMBEL_PROGRAM_TOP_K},
        {"--min-p", into->min_p.data, GUMBEL_PROGRAM_MIN_P},
        {"--top-p", into->top_p.data, GUMBEL_PROGRAM_TOP_P},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        if (limits[i].data) {
            require_listed(limits[i].name, order, limits[i].rule);
            on |= 1u << limits[i].rule;
        }
    }
    rule_order_copy(order, on, request->rules);
    if (request->programs.temperature_range.data && on >> GUMBEL_PROGRAM_XTC & 1 &&
        rule_order_ends_in_temperature(order)) {
        fail("--dynatemp-range", "the order '%s' applies the temperature after xtc, not before",
             order->name);
    }
    request->programs.struct_size = sizeof request->programs;
    request->programs.rules = request->rules;
    request->programs.count = 1;
    into->programs = &request->programs;
}

static void read_mask(struct request *request, const char *path, int64_t rows, int64_t width)
{
    const int64_t words = (width + 31) / 32;
    npy *array = NULL;
    const tensor_view *view = NULL;

    if (!path) {
        return;
    }
    array = open_int32_rows("--mask", path, rows, words);
    view = npy_tensor(array);
    request->mask = require_memory("--mask", 1, view->bytes);
    memcpy(request->mask, view->data, view->bytes);
    request->transforms.mask =
        (gumbel_row_i32){request->mask, view->rank == 2 ? words : GUMBEL_SAME};
    npy_close(array);
}

static void read_transforms(struct request *request, const struct request_options *options,
                            int64_t rows, int64_t width, int64_t vocab)
{
    gumbel_transforms *into = &request->transforms;

    into->struct_size = sizeof *into;
    read_mask(request, options->mask, rows, width);
    into->allowed = read_token_rows("--allow", options->allowed, rows, vocab);
    into->banned = read_token_rows("--ban", options->banned, rows, vocab);
    into->bias = read_value_rows("--logit-bias", options->logit_bias, rows, vocab);
    into->prompt_tokens = read_token_rows("--prompt-tokens", options->prompt_tokens, rows, vocab);
    into->output_tokens = read_token_rows("--output-tokens", options->output_tokens, rows, vocab);
    into->repetition =
        read_row_floats("--repetition-penalty", options->repetition, FLT_TRUE_MIN, FLT_MAX, rows);
    into->frequency =
        read_row_floats("--frequency-penalty", options->frequency, -FLT_MAX, FLT_MAX, rows);
    into->presence =
        read_row_floats("--presence-penalty", options->presence, -FLT_MAX, FLT_MAX, rows);
    request->transformed = into->mask.data || into->allowed.offsets || into->banned.offsets ||
                           into->bias.offsets || into->prompt_tokens.offsets ||
                           into->output_tokens.offsets || into->repetition.data ||
                           into->frequency.data || into->presence.data;
}

void request_read(struct request *request, const struct request_options *options, int64_t rows,
                  int64_t width, int64_t vocab)
{
    *request = (struct request){.mask = NULL};
    read_truncation(request, options, rows);
    read_transforms(request, options, rows, width, vocab);
}

void request_free(struct request *request)
{
    gumbel_transforms *transforms = &request->transforms;
    gumbel_truncation *truncation = &request->truncation;

    free(request->mask);
    token_rows_free(&transforms->allowed);
    token_rows_free(&transforms->banned);
    token_rows_free(&transforms->bias);
    token_rows_free(&transforms->prompt_tokens);
    token_rows_free(&transforms->output_tokens);
    free((void *)transforms->repetition.data);
    free((void *)transforms->frequency.data);
    free((void *)transforms->presence.data);
    free((void *)truncation->min_p.data);
    free((void *)truncation->top_k.data);
    free((void *)truncation->top_p.data);
    for (int i = 0; i < RULE_OPTIONS; i++) {
        free((void *)((gumbel_row_f32 *)((char *)&request->programs + rule_options[i].rows))->data);
    }
    free((void *)request->programs.min_keep.data);
}

void request_attach(const struct request *request, gumbel_sampling *sampling)
{
    sampling->transforms = request->transformed ? &request->transforms : NULL;
    sampling->truncation = request->truncated ? &request->truncation : NULL;
}

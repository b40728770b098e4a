/* SPDX-License-Identifier: Apache-2.0
 *
 * Programs: the rules of `samplers` in their order, their parameters, and the states of mirostat
 * and adaptive_p.
 */
#include "gumbel_llama_state.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* llama.cpp's words. Words that are no rule of programs have numbers above the rules'. */
enum { PENALTIES = 64, DRY, UNSUPPORTED };

static const struct {
    const char *text;
    uint8_t word;
} words[] = {
    /* The first spelling of a rule is the one that messages use. */
    {"penalties", PENALTIES},
    {"dry", DRY},
    {"top_n_sigma", GUMBEL_PROGRAM_TOP_N_SIGMA},
    {"top_k", GUMBEL_PROGRAM_TOP_K},
    {"typ_p", GUMBEL_PROGRAM_TYPICAL_P},
    {"top_p", GUMBEL_PROGRAM_TOP_P},
    {"min_p", GUMBEL_PROGRAM_MIN_P},
    {"xtc", GUMBEL_PROGRAM_XTC},
    {"temperature", GUMBEL_PROGRAM_TEMPERATURE},
    {"adaptive_p", GUMBEL_PROGRAM_ADAPTIVE_P},
    {"top-n-sigma", GUMBEL_PROGRAM_TOP_N_SIGMA},
    {"top-k", GUMBEL_PROGRAM_TOP_K},
    {"typical_p", GUMBEL_PROGRAM_TYPICAL_P},
    {"typical-p", GUMBEL_PROGRAM_TYPICAL_P},
    {"typical", GUMBEL_PROGRAM_TYPICAL_P},
    {"typ-p", GUMBEL_PROGRAM_TYPICAL_P},
    {"typ", GUMBEL_PROGRAM_TYPICAL_P},
    {"top-p", GUMBEL_PROGRAM_TOP_P},
    {"nucleus", GUMBEL_PROGRAM_TOP_P},
    {"min-p", GUMBEL_PROGRAM_MIN_P},
    {"temp", GUMBEL_PROGRAM_TEMPERATURE},
    {"adaptive-p", GUMBEL_PROGRAM_ADAPTIVE_P},
    {"infill", UNSUPPORTED},
};
enum { WORDS = sizeof words / sizeof *words };

/* The order of llama.cpp's own default, and adaptive_p, which has one place only. */
static const char llama_samplers[] =
    "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature;adaptive_p";

/* Stores an error; returns false. */
static bool refuse(gumbel_error *error, const char *field, const char *format, ...)
{
    char message[sizeof error->message];
    va_list values;

    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    gumbel_llama_set_error(error, field, message);
    return false;
}

/* ------------------------------------------------------------------------------ samplers ---- */

static const char *get_word_text(int word)
{
    for (int i = 0; i < WORDS; i++)
        if (words[i].word == word)
            return words[i].text;
    return "";
}

/* The first field of a word's parameters. */
static const char *get_word_field(int word)
{
    switch (word) {
    case PENALTIES:
        return "penalty_last_n";
    case DRY:
        return "dry_multiplier";
    case GUMBEL_PROGRAM_TYPICAL_P:
        return "typical_p";
    case GUMBEL_PROGRAM_XTC:
        return "xtc_probability";
    case GUMBEL_PROGRAM_ADAPTIVE_P:
        return "adaptive_target";
    default:
        return get_word_text(word);
    }
}

bool gumbel_llama_is_adaptive(const struct gumbel_llama_params *params)
{
    return !(params->adaptive_target < 0);
}

/* Whether the parameters of a word have an effect. NaN counts as one, for the library to refuse. */
static bool is_on(const struct gumbel_llama_params *p, int word)
{
    switch (word) {
    case PENALTIES:
        return gumbel_llama_is_penalised(p);
    case DRY:
        return gumbel_llama_has_dry(p);
    case GUMBEL_PROGRAM_TOP_N_SIGMA:
        return !(p->top_n_sigma <= 0);
    case GUMBEL_PROGRAM_TOP_K:
        return p->top_k != 0;
    case GUMBEL_PROGRAM_TYPICAL_P:
        return p->typical_p != 1;
    case GUMBEL_PROGRAM_TOP_P:
        return p->top_p != 1;
    case GUMBEL_PROGRAM_MIN_P:
        return p->min_p != 0;
    case GUMBEL_PROGRAM_XTC:
        return p->xtc_probability != 0;
    case GUMBEL_PROGRAM_ADAPTIVE_P:
        return gumbel_llama_is_adaptive(p);
    default:
        return true;
    }
}

/* The index of a word in words[], or -1. */
static int find_word(const char *text, size_t length)
{
    for (int i = 0; i < WORDS; i++)
        if (strncmp(text, words[i].text, length) == 0 && !words[i].text[length])
            return i;
    return -1;
}

/* Checks the place of a word behind those of `listed`. The library applies penalties, then DRY,
 * then the program, whose XTC is the last rule but for the temperature. */
static bool check_place(const struct gumbel_llama_params *p, int word, const uint8_t *listed,
                        int count, gumbel_error *error)
{
    const bool early = word == PENALTIES || word == DRY;

    if (memchr(listed, word, (size_t)count))
        return refuse(error, "samplers", "lists %s twice", get_word_text(word));
    for (int i = 0; i < count && is_on(p, word); i++) {
        const char *before = get_word_text(listed[i]);
        if (early && is_on(p, listed[i]) && listed[i] != PENALTIES)
            return refuse(error, "samplers",
                          "lists %s after %s; penalties, then dry, are applied first",
                          get_word_text(word), before);
        if (listed[i] != GUMBEL_PROGRAM_XTC || !is_on(p, GUMBEL_PROGRAM_XTC))
            continue;
        if (word != GUMBEL_PROGRAM_TEMPERATURE)
            return refuse(error, "samplers", "lists %s after xtc; only temperature may follow",
                          get_word_text(word));
        if (p->dynatemp_range > 0)
            return refuse(error, "dynatemp_range",
                          "is on; samplers must then list temperature before xtc");
    }
    return true;
}

/* Reads the words of `samplers` into `listed`, which has room for all; *count receives how many. */
static bool read_words(const struct gumbel_llama_params *p, const char *text, uint8_t *listed,
                       int *count, gumbel_error *error)
{
    for (*count = 0;; text++) {
        const size_t length = strcspn(text, ";");
        const int found = find_word(text, length);
        const int shown = length < 64 ? (int)length : 64;

        if (found < 0)
            return refuse(error, "samplers", "lists '%.*s', which is no sampler of llama.cpp",
                          shown, text);
        if (words[found].word == UNSUPPORTED)
            return refuse(error, "samplers", "lists %.*s, which is not supported", shown, text);
        if (!check_place(p, words[found].word, listed, *count, error))
            return false;
        listed[(*count)++] = words[found].word;
        text += length;
        if (!*text)
            return true;
    }
}

/* Whether a draw needs a program: rules that `order` does not have. */
static bool needs_program(const struct gumbel_llama_params *p)
{
    return p->samplers || p->mirostat || p->min_keep > 1 || p->dynatemp_range > 0 ||
           is_on(p, GUMBEL_PROGRAM_TYPICAL_P) || is_on(p, GUMBEL_PROGRAM_TOP_N_SIGMA) ||
           is_on(p, GUMBEL_PROGRAM_XTC) || is_on(p, GUMBEL_PROGRAM_ADAPTIVE_P);
}

/* Writes the listed rules that are on; false if one that is on is not listed. */
static bool write_program(struct gumbel_llama_state *state, const uint8_t *listed, int count,
                          gumbel_error *error)
{
    const struct gumbel_llama_params *p = &state->params;
    int rules = 0;

    for (int i = 0; i < WORDS; i++)
        if (words[i].word != UNSUPPORTED && is_on(p, words[i].word) &&
            !memchr(listed, words[i].word, (size_t)count))
            return refuse(error,
                          words[i].word == GUMBEL_PROGRAM_TEMPERATURE
                              ? "samplers"
                              : get_word_field(words[i].word),
                          "requires %s in samplers", words[i].text);
    for (int i = 0; i < count; i++)
        if (listed[i] < PENALTIES && listed[i] != GUMBEL_PROGRAM_ADAPTIVE_P && is_on(p, listed[i]))
            state->rules[rules++] = listed[i];
    if (is_on(p, GUMBEL_PROGRAM_ADAPTIVE_P)) /* llama.cpp applies it last, wherever it is listed */
        state->rules[rules++] = GUMBEL_PROGRAM_ADAPTIVE_P;
    return true;
}

/* The program of mirostat, with which llama.cpp uses no other truncation, either. */
static bool write_mirostat(struct gumbel_llama_state *state, gumbel_error *error)
{
    const struct gumbel_llama_params *p = &state->params;

    if (p->samplers)
        return refuse(error, "samplers", "is not supported with mirostat");
    for (int rule = GUMBEL_PROGRAM_MIN_P; rule <= GUMBEL_PROGRAM_ADAPTIVE_P; rule++)
        if (find_word(get_word_text(rule), strlen(get_word_text(rule))) >= 0 && is_on(p, rule))
            return refuse(error, get_word_field(rule), "is not supported with mirostat");
    state->rules[0] = GUMBEL_PROGRAM_TEMPERATURE;
    state->rules[1] = GUMBEL_PROGRAM_SURPRISE;
    return true;
}

/* Checks parameters that the library has under other names, or not at all. */
static bool check_parameters(const struct gumbel_llama_params *p, gumbel_error *error)
{
    if (p->mirostat != 0 && p->mirostat != 2)
        return refuse(error, "mirostat", "is %d; only 0 and 2 are supported", (int)p->mirostat);
    if (!isfinite(p->mirostat_tau) || p->mirostat_tau < 0)
        return refuse(error, "mirostat_tau", "is not finite and >= 0");
    if (!isfinite(p->mirostat_eta) || p->mirostat_eta < 0)
        return refuse(error, "mirostat_eta", "is not finite and >= 0");
    if (!isfinite(p->dynatemp_range) || p->dynatemp_range < 0)
        return refuse(error, "dynatemp_range", "is not finite and >= 0");
    if (!isfinite(p->dynatemp_exponent) || p->dynatemp_exponent < 0)
        return refuse(error, "dynatemp_exponent", "is not finite and >= 0");
    if (isnan(p->adaptive_target) || p->adaptive_target > 1)
        return refuse(error, "adaptive_target", "is not in [0, 1], nor below 0, which is off");
    if (!(p->adaptive_decay >= 0 && p->adaptive_decay <= .99f))
        return refuse(error, "adaptive_decay", "is not in [0, 0.99]");
    if (is_on(p, GUMBEL_PROGRAM_ADAPTIVE_P) && is_on(p, GUMBEL_PROGRAM_XTC))
        return refuse(error, "adaptive_target", "is not supported with xtc_probability");
    if (p->min_keep < 0)
        return refuse(error, "min_keep", "is negative");
    if (p->top_n_sigma == -INFINITY)
        return refuse(error, "top_n_sigma", "is not finite");
    return true;
}

bool gumbel_llama_read_rules(struct gumbel_llama_state *state, gumbel_error *error)
{
    struct gumbel_llama_params *p = &state->params;
    uint8_t listed[WORDS];
    int count = 0;

    gumbel_llama_reset_rules(state);
    if (!check_parameters(p, error))
        return false;
    if (!needs_program(p))
        return true;
    if (p->mirostat)
        return write_mirostat(state, error);
    if (!p->samplers && p->order != GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE)
        return refuse(error, "order", "lacks rules that are on; name the order in samplers");
    return read_words(p, p->samplers ? p->samplers : llama_samplers, listed, &count, error) &&
           write_program(state, listed, count, error);
}

/* --------------------------------------------------------------------------------- draws ---- */

void gumbel_llama_fill_programs(const struct gumbel_llama_state *state, gumbel_programs *programs,
                                gumbel_truncation *truncation)
{
    const struct gumbel_llama_params *p = &state->params;

    if (state->rules[0] == GUMBEL_PROGRAM_END)
        return;
    *programs =
        (gumbel_programs){.struct_size = sizeof *programs, .rules = state->rules, .count = 1};
    truncation->programs = programs;
    truncation->order = (gumbel_order)0;
    /* The library draws a program by an order if no other parameter is set. */
    if (!is_on(p, GUMBEL_PROGRAM_MIN_P))
        truncation->min_p.data = NULL;
    if (!is_on(p, GUMBEL_PROGRAM_TOP_K))
        truncation->top_k.data = NULL;
    if (!is_on(p, GUMBEL_PROGRAM_TOP_P))
        truncation->top_p.data = NULL;
    if (p->min_keep > 1)
        programs->min_keep.data = &p->min_keep;
    if (p->dynatemp_range > 0) {
        programs->temperature_range.data = &p->dynatemp_range;
        programs->temperature_exponent.data = &p->dynatemp_exponent;
    }
    if (is_on(p, GUMBEL_PROGRAM_TYPICAL_P))
        programs->typical_p.data = &p->typical_p;
    if (is_on(p, GUMBEL_PROGRAM_TOP_N_SIGMA))
        programs->top_n_sigma.data = &p->top_n_sigma;
    if (is_on(p, GUMBEL_PROGRAM_XTC)) {
        programs->xtc_probability.data = &p->xtc_probability;
        programs->xtc_threshold.data = &p->xtc_threshold;
    }
    if (p->mirostat)
        programs->surprise.data = &state->surprise;
    if (is_on(p, GUMBEL_PROGRAM_ADAPTIVE_P))
        programs->adaptive_target.data = &state->adaptive.target;
}

void gumbel_llama_reset_rules(struct gumbel_llama_state *state)
{
    const struct gumbel_llama_params *p = &state->params;
    const float weight = 1 / (1 - p->adaptive_decay);

    state->surprise = 2 * p->mirostat_tau;
    state->adaptive =
        (struct gumbel_llama_adaptive){p->adaptive_target, p->adaptive_target * weight, weight};
    state->drawn = -1;
}

void gumbel_llama_update_rules(struct gumbel_llama_state *state, llama_token token)
{
    const struct gumbel_llama_params *p = &state->params;
    const int32_t drawn = token == state->drawn ? token : -1;
    gumbel_rule_updates updates = {.struct_size = sizeof updates,
                                   .batch = 1,
                                   .tokens = &drawn,
                                   .logprobs = &state->drawn_logprob};
    gumbel_error error = {"", ""};

    state->drawn = -1;
    if (drawn < 0)
        return;
    if (p->mirostat) {
        updates.surprise = &state->surprise;
        updates.surprise_target.data = &p->mirostat_tau;
        updates.surprise_rate.data = &p->mirostat_eta;
    } else if (gumbel_llama_is_adaptive(p)) {
        updates.adaptive_target = &state->adaptive.target;
        updates.adaptive_sum = &state->adaptive.sum;
        updates.adaptive_weight = &state->adaptive.weight;
        updates.adaptive_goal.data = &p->adaptive_target;
        updates.adaptive_decay.data = &p->adaptive_decay;
    } else {
        return;
    }
    if (gumbel_update_rules(state->device, NULL, &updates, &error) != GUMBEL_OK)
        gumbel_llama_fail(state, error.field, error.message);
}

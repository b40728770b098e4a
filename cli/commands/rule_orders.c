/* SPDX-License-Identifier: Apache-2.0 */
#include "rule_orders.h"

#include <string.h>

#include "failure.h"

#define TEMPERATURE GUMBEL_PROGRAM_TEMPERATURE
#define MIN_P       GUMBEL_PROGRAM_MIN_P
#define TOP_K       GUMBEL_PROGRAM_TOP_K
#define TOP_P       GUMBEL_PROGRAM_TOP_P
#define TYPICAL_P   GUMBEL_PROGRAM_TYPICAL_P
#define TOP_N_SIGMA GUMBEL_PROGRAM_TOP_N_SIGMA
#define EPSILON     GUMBEL_PROGRAM_EPSILON
#define ETA         GUMBEL_PROGRAM_ETA
#define TOP_A       GUMBEL_PROGRAM_TOP_A
#define P_LESS      GUMBEL_PROGRAM_P_LESS
#define SURPRISE    GUMBEL_PROGRAM_SURPRISE
#define XTC         GUMBEL_PROGRAM_XTC
#define SMOOTHING   GUMBEL_PROGRAM_SMOOTHING
#define ADAPTIVE_P  GUMBEL_PROGRAM_ADAPTIVE_P

#define VLLM                                                                                       \
    {                                                                                              \
        TEMPERATURE, MIN_P, TOP_K, TOP_P                                                           \
    }
#define HF                                                                                         \
    {                                                                                              \
        TEMPERATURE, TOP_K, TOP_P, MIN_P, TYPICAL_P, EPSILON, ETA                                  \
    }
#define LLAMA                                                                                      \
    {                                                                                              \
        TOP_N_SIGMA, TOP_K, TYPICAL_P, TOP_P, MIN_P, XTC, TEMPERATURE                              \
    }
#define WEBUI                                                                                      \
    {                                                                                              \
        TOP_N_SIGMA, TEMPERATURE, SMOOTHING, TOP_K, TOP_P, TYPICAL_P, EPSILON, ETA, TOP_A, MIN_P,  \
            SURPRISE, XTC                                                                          \
    }

const struct rule_order default_rule_order = {
    .name = "vllm", .order = GUMBEL_ORDER_MIN_P_TOP_K_TOP_P, .rules = VLLM};

void read_order(const char *field, const char *text, void *into)
{
    static const struct rule_order orders[] = {
        {"min_p,top_k,top_p", GUMBEL_ORDER_MIN_P_TOP_K_TOP_P, false, VLLM},
        {"joint", GUMBEL_ORDER_JOINT, false, {0}},
        {"before_temperature",
         GUMBEL_ORDER_BEFORE_TEMPERATURE,
         false,
         {MIN_P, TOP_K, TOP_P, TEMPERATURE}},
        {"top_k,top_p,min_p",
         GUMBEL_ORDER_TOP_K_TOP_P_MIN_P,
         false,
         {TEMPERATURE, TOP_K, TOP_P, MIN_P}},
        {"top_k,top_p,min_p,temperature",
         GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE,
         false,
         {TOP_K, TOP_P, MIN_P, TEMPERATURE}},
        {"joint,temperature", GUMBEL_ORDER_JOINT_TEMPERATURE, false, {0}},
        {"vllm", GUMBEL_ORDER_MIN_P_TOP_K_TOP_P, false, VLLM},
        {"hf", GUMBEL_ORDER_TOP_K_TOP_P_MIN_P, false, HF},
        {"transformers", GUMBEL_ORDER_TOP_K_TOP_P_MIN_P, false, HF},
        {"llama.cpp", GUMBEL_ORDER_TOP_K_TOP_P_MIN_P_TEMPERATURE, false, LLAMA},
        {"sglang", GUMBEL_ORDER_JOINT, false, {0}},
        {"mlx", GUMBEL_ORDER_JOINT_TEMPERATURE, false, {0}},
        {"exllamav3", GUMBEL_ORDER_MIN_P_TOP_K_TOP_P, false, VLLM},
        {"text-generation-webui", GUMBEL_ORDER_TOP_K_TOP_P_MIN_P, false, WEBUI},
    };

    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        if (strcmp(text, orders[i].name) == 0) {
            *(struct rule_order *)into = orders[i];
            return;
        }
    }
    fail(field,
         "'%s' is none of vllm, hf, llama.cpp, sglang, mlx, exllamav3, text-generation-webui, or "
         "an order that --help lists; --samplers lists rules",
         text);
}

/* ------------------------------------------------------------------------- lists of rules ---- */

/* Names of rules: first the one that messages use, then other spellings of llama.cpp. */
static const struct {
    const char *name;
    gumbel_program_rule rule;
} names[] = {
    {"temperature", TEMPERATURE},
    {"temp", TEMPERATURE},
    {"min_p", MIN_P},
    {"min-p", MIN_P},
    {"top_k", TOP_K},
    {"top-k", TOP_K},
    {"top_p", TOP_P},
    {"top-p", TOP_P},
    {"nucleus", TOP_P},
    {"typ_p", TYPICAL_P},
    {"typical_p", TYPICAL_P},
    {"typical-p", TYPICAL_P},
    {"typical", TYPICAL_P},
    {"typ-p", TYPICAL_P},
    {"typ", TYPICAL_P},
    {"top_n_sigma", TOP_N_SIGMA},
    {"top-n-sigma", TOP_N_SIGMA},
    {"epsilon", EPSILON},
    {"eta", ETA},
    {"top_a", TOP_A},
    {"p_less", P_LESS},
    {"surprise", SURPRISE},
    {"xtc", XTC},
    {"smoothing", SMOOTHING},
    {"adaptive_p", ADAPTIVE_P},
    {"adaptive-p", ADAPTIVE_P},
};

const char *get_rule_name(gumbel_program_rule rule)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (names[i].rule == rule) {
            return names[i].name;
        }
    }
    return "";
}

static gumbel_program_rule find_rule(const char *field, const char *text, size_t length)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strncmp(text, names[i].name, length) == 0 && !names[i].name[length]) {
            return names[i].rule;
        }
    }
    fail(field,
         "'%.*s' is none of temperature, min_p, top_k, top_p, typ_p, top_n_sigma, epsilon, eta, "
         "top_a, p_less, surprise, xtc, smoothing, adaptive_p",
         (int)length, text);
}

/* Appends a rule to a list of `count` rules. */
static void append_rule(const char *field, struct rule_order *order, int count,
                        gumbel_program_rule rule)
{
    if (rule_order_has(order, rule)) {
        fail(field, "lists %s twice", get_rule_name(rule));
    }
    if (rule_order_has(order, ADAPTIVE_P)) {
        fail(field, "lists %s after adaptive_p, which must be last", get_rule_name(rule));
    }
    if (rule_order_has(order, XTC) && rule == ADAPTIVE_P) {
        fail(field, "lists both xtc and adaptive_p; use one of them");
    }
    if (rule_order_has(order, XTC) && rule != TEMPERATURE) {
        fail(field, "lists %s after xtc; only temperature may follow", get_rule_name(rule));
    }
    order->rules[count] = (uint8_t)rule;
}

void read_samplers(const char *field, const char *text, void *into)
{
    struct rule_order order = {.name = text, .listed = true};
    const char *at = text;
    int count = 0;

    /* llama.cpp lists its penalties first, where the library always applies them. */
    if (strncmp(at, "penalties;", strlen("penalties;")) == 0) {
        at += strlen("penalties;");
    }
    for (;;) {
        const size_t length = strcspn(at, ";");

        append_rule(field, &order, count, find_rule(field, at, length));
        count++;
        if (!at[length]) {
            break;
        }
        at += length + 1;
    }
    if (!rule_order_has(&order, TEMPERATURE)) {
        fail(field, "lists no temperature; name the place where it is applied");
    }
    *(struct rule_order *)into = order;
}

bool rule_order_has(const struct rule_order *order, gumbel_program_rule rule)
{
    return memchr(order->rules, rule, sizeof order->rules) != NULL;
}

bool rule_order_ends_in_temperature(const struct rule_order *order)
{
    const uint8_t *xtc = memchr(order->rules, XTC, sizeof order->rules);

    return xtc && xtc < order->rules + GUMBEL_PROGRAM_LENGTH - 1 && xtc[1] == TEMPERATURE;
}

void rule_order_copy(const struct rule_order *order, uint32_t on,
                     uint8_t rules[GUMBEL_PROGRAM_LENGTH])
{
    int count = 0;

    memset(rules, GUMBEL_PROGRAM_END, GUMBEL_PROGRAM_LENGTH);
    for (int i = 0; i < GUMBEL_PROGRAM_LENGTH && order->rules[i]; i++) {
        if (order->rules[i] == TEMPERATURE || on >> order->rules[i] & 1) {
            rules[count++] = order->rules[i];
        }
    }
}

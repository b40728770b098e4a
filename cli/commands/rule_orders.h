/* SPDX-License-Identifier: Apache-2.0
 *
 * Orders of sampling rules: those of engines, and lists in llama.cpp's words.
 */
#ifndef GUMBEL_CLI_RULE_ORDERS_H
#define GUMBEL_CLI_RULE_ORDERS_H

#include <stdbool.h>
#include <stdint.h>

#include "gumbel/programs.h"

/* An order of rules. */
struct rule_order {
    const char *name;   /* NULL: none was given */
    gumbel_order order; /* of temperature, top_k, top_p and min_p; not read of a list of rules */
    bool listed;        /* a list of rules, which no gumbel_order draws */
    uint8_t rules[GUMBEL_PROGRAM_LENGTH]; /* of its program; none of a joint order */
};

/* vLLM's order, the default. */
extern const struct rule_order default_rule_order;

/* Parse the values of --order and --samplers into a struct rule_order; fail() on unknown names. */
void read_order(const char *field, const char *text, void *into);
void read_samplers(const char *field, const char *text, void *into);

/* Whether the order lists a rule. */
bool rule_order_has(const struct rule_order *order, gumbel_program_rule rule);

/* Whether the temperature comes after xtc. */
bool rule_order_ends_in_temperature(const struct rule_order *order);

/* The name of a rule in --samplers. */
const char *get_rule_name(gumbel_program_rule rule);

/* Copies the rules whose bits are set in `on`, and the temperature, in their order; the rest is
 * GUMBEL_PROGRAM_END. */
void rule_order_copy(const struct rule_order *order, uint32_t on,
                     uint8_t rules[GUMBEL_PROGRAM_LENGTH]);

#endif

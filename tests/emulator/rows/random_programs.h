/* SPDX-License-Identifier: Apache-2.0
 *
 * Random programs of rules for the rows of a request.
 */
#ifndef TESTS_EMULATOR_RANDOM_PROGRAMS_H
#define TESTS_EMULATOR_RANDOM_PROGRAMS_H

#include "gumbel/programs.h"
#include "truncated_rows.h"

#include <string>

namespace
{

/* Programs of a request, with parameters of its rows. */
struct random_programs {
    static constexpr int rows = 4, programs = 3;
    uint8_t rules[programs][GUMBEL_PROGRAM_LENGTH];
    int32_t of_row[rows], min_keep[rows], top_k[rows];
    float values[16][rows];
    std::vector<int64_t> offsets;
    std::vector<int32_t> keep;
    gumbel_programs all;
};

/* A random order of 1 to 7 rules, TEMPERATURE among them; after XTC only TEMPERATURE. */
inline void make_rules(uint8_t *rules, bool dynamic, uint64_t *random)
{
    uint8_t order[GUMBEL_PROGRAM_SMOOTHING];
    int count = 0, most = 1 + (int)random_below(random, 7);
    bool has_temperature = false, has_xtc = false;
    for (int i = 0; i < GUMBEL_PROGRAM_SMOOTHING; i++) {
        const uint32_t at = random_below(random, (uint32_t)i + 1);
        order[i] = order[at];
        order[at] = (uint8_t)(i + 1);
    }
    memset(rules, 0, GUMBEL_PROGRAM_LENGTH);
    for (int i = 0; i < GUMBEL_PROGRAM_SMOOTHING && count < most && !has_xtc; i++) {
        if (order[i] == GUMBEL_PROGRAM_XTC && dynamic && !has_temperature)
            continue;
        has_temperature |= order[i] == GUMBEL_PROGRAM_TEMPERATURE;
        has_xtc = order[i] == GUMBEL_PROGRAM_XTC;
        rules[count++] = order[i];
    }
    if (!has_temperature)
        rules[count++] = GUMBEL_PROGRAM_TEMPERATURE;
}

/* Sets parameters that keep from one to nearly all tokens; a quarter of them is off. */
inline void set_programs(random_programs *p, request *req, uint64_t *random)
{
    const int64_t batch = req->plan.batch;
    const bool dynamic = one_in(random, 3);
    int used = 0;
    auto set = [&](gumbel_row_f32 *into, std::vector<float> choices) {
        float *values = p->values[used++];
        for (int b = 0; b < random_programs::rows; b++)
            values[b] = choices[random_below(random, (uint32_t)choices.size())];
        *into = {values, 1};
    };
    p->all = {};
    p->all.struct_size = sizeof p->all;
    p->all.rules = p->rules[0];
    p->all.count = random_programs::programs;
    for (auto &rules : p->rules)
        make_rules(rules, dynamic, random);
    for (int b = 0; b < random_programs::rows; b++) {
        p->of_row[b] = (int32_t)random_below(random, random_programs::programs);
        p->min_keep[b] = one_in(random, 2) ? 1 : 1 + (int32_t)random_below(random, 40);
        p->top_k[b] = one_in(random, 4) ? 0 : 1 + (int32_t)random_below(random, 900);
    }
    p->all.program = {p->of_row, 1};
    p->all.min_keep = {p->min_keep, 1};
    if (dynamic)
        set(&p->all.temperature_range, {0.0f, 0.2f, 0.5f, 2.0f});
    set(&p->all.temperature_exponent, {1.0f, 0.5f, 3.0f, 0.0f});
    set(&p->all.typical_p, {0.2f, 0.9f, 0.99f, 1.0f});
    set(&p->all.top_n_sigma, {0.0f, 0.5f, 1.0f, 2.5f});
    set(&p->all.epsilon, {0.0f, 3e-4f, 0.01f, 0.3f});
    set(&p->all.eta, {0.0f, 2e-3f, 0.05f, 1e-6f});
    set(&p->all.top_a, {0.0f, 0.2f, 1.0f, 0.01f});
    set(&p->all.surprise, {INFINITY, 2.0f, 10.0f, 0.0f});
    set(&p->all.xtc_probability, {0.5f, 0.3f, 1.0f, 0.0f});
    set(&p->all.xtc_threshold, {0.1f, 0.01f, 1e-4f, 0.3f});
    set(&p->all.smoothing_factor, {0.0f, 0.3f, 1.0f, 0.05f});
    set(&p->all.smoothing_curve, {1.0f, 1.5f, 3.0f, 2.0f});
    clear_truncation(&req->truncation);
    req->truncation.programs = &p->all;
    req->truncation.top_k = {p->top_k, 1};
    set(&req->truncation.top_p, {0.3f, 0.9f, 0.999f, 1.0f});
    set(&req->truncation.min_p, {0.0f, 0.05f, 1e-3f, 0.5f});
    if (!one_in(random, 4))
        return;
    for (int64_t b = 0; b <= batch; b++)
        p->offsets.push_back(2 * b);
    for (int64_t i = 0; i < 2 * batch; i++)
        p->keep.push_back((int32_t)random_below(random, (uint32_t)req->plan.vocab + 3000));
    p->all.xtc_keep = {p->offsets.data(), p->keep.data(), NULL, 0};
}

/* The rules of each row's program, as text. */
inline std::string describe_programs(const random_programs &p, int64_t batch)
{
    std::string text = "rules";
    for (int64_t b = 0; b < batch; b++)
        for (const uint8_t *rule = p.rules[p.of_row[b]]; *rule; rule++)
            text += (rule == p.rules[p.of_row[b]] ? " | " : " ") + std::to_string(*rule);
    return text;
}

} // namespace

#endif

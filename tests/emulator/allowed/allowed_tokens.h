/* SPDX-License-Identifier: Apache-2.0
 *
 * Random masks that allow few tokens, and their lists.
 */
#ifndef TESTS_EMULATOR_ALLOWED_TOKENS_H
#define TESTS_EMULATOR_ALLOWED_TOKENS_H

#include "cuda/common/cuda_params.h"
#include "problems.h"

#include <algorithm>
#include <vector>

namespace
{

/* Masks of all rows: few tokens, a run of neighbours, no token or, rarely, all of them; often as
 * many as fill blocks or tiles. */
inline std::vector<int32_t> make_masks(const problem_plan &plan, int64_t words, uint64_t *random)
{
    std::vector<int32_t> masks((size_t)(plan.batch * words));
    for (int64_t b = 0; b < plan.batch; b++) {
        int32_t *row = &masks[(size_t)(b * words)];
        static const uint32_t counts[] = {1, 2, 63, 64, 65, 1024};
        const uint32_t kind = random_below(random, 8);
        const uint32_t count = kind == 0   ? 0
                               : kind >= 6 ? counts[random_below(random, 6)]
                                           : random_below(random, kind == 1 ? 300 : 40);
        const uint32_t from = random_below(random, (uint32_t)plan.vocab);
        if (one_in(random, 12))
            std::fill(row, row + words, -1);
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t place =
                kind % 5 == 2 ? from + i : random_below(random, (uint32_t)plan.vocab);
            const int64_t token = plan.first_token + place % plan.vocab;
            row[token / 32] |= (int32_t)(1u << token % 32);
        }
    }
    return masks;
}

inline bool allows(const std::vector<int32_t> &masks, int64_t words, int64_t b, int64_t token)
{
    return (uint32_t)masks[(size_t)(b * words + token / 32)] >> token % 32 & 1;
}

/* Lists of the tokens of masks, in a random order, with duplicates and ids that do not count. A row
 * whose list is empty allows every token, and its mask is set accordingly. */
struct token_lists {
    std::vector<int64_t> offsets;
    std::vector<int32_t> ids;
};

inline token_lists make_lists(const problem_plan &plan, std::vector<int32_t> &masks, int64_t words,
                              uint64_t *random)
{
    token_lists lists = {{0}, {}};
    for (int64_t b = 0; b < plan.batch; b++) {
        std::vector<int32_t> row;
        for (int64_t token = 0; token < 32 * words; token++)
            if (allows(masks, words, b, token))
                row.push_back((int32_t)token);
        for (size_t i = 0; i < row.size(); i++)
            std::swap(row[i], row[random_below(random, (uint32_t)row.size())]);
        if (!row.empty() && one_in(random, 2)) {
            row.push_back(row[0]);
            row.push_back(one_in(random, 2) ? INT32_MAX : (int32_t)(32 * words + 5));
        }
        if (row.empty())
            std::fill_n(masks.begin() + b * words, words, -1);
        lists.ids.insert(lists.ids.end(), row.begin(), row.end());
        lists.offsets.push_back((int64_t)lists.ids.size());
    }
    return lists;
}

} // namespace

#endif

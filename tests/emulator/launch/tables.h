/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of numbers that kernels write, and what of them is the same.
 */
#ifndef TESTS_EMULATOR_TABLES_H
#define TESTS_EMULATOR_TABLES_H

#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace
{

constexpr uint32_t kPoison = 0xa5a5a5a5; /* no logit: -3e-16 */

/* What one launch or more write: rows at a stride, and a row that none may touch. */
struct table {
    int64_t rows, stride;
    std::vector<float> all;

    table(int64_t r, int64_t s) : rows(r), stride(s), all((size_t)((r + 1) * s))
    {
        for (float &x : all)
            memcpy(&x, &kPoison, sizeof x);
    }
    float *row(int64_t r) { return all.data() + r * stride; }
    bool poisoned(int64_t r, int64_t c) { return memcmp(row(r) + c, &kPoison, 4) == 0; }
};

inline bool same(double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); }

/* But for those of NaNs: which one a sum of two is, is the compiler's choice. */
bool same_bits(const table &x, const table &y)
{
    return std::equal(x.all.begin(), x.all.end(), y.all.begin(), [](float a, float b) {
        return memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
    });
}

} // namespace

#endif

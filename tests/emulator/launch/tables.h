/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of numbers that kernels write, and comparisons.
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

constexpr uint32_t kPoison = 0xa5a5a5a5;

/* Output of one or more launches: rows at a stride, and a further row that no launch may write. */
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

/* Compares bits except those of NaNs: the compiler chooses which NaN a sum of two is. */
inline bool same_bits(const table &x, const table &y)
{
    return std::equal(x.all.begin(), x.all.end(), y.all.begin(), [](float a, float b) {
        return memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
    });
}

} // namespace

#endif

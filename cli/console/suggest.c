/* SPDX-License-Identifier: Apache-2.0 */
#include "suggest.h"

#include <string.h>

static int min_int(int a, int b) { return a < b ? a : b; }

int edit_distance(const char *a, size_t a_size, const char *b)
{
    const size_t b_size = strlen(b);
    /* cost[i][j]: number of edits from the first i letters of `a` to the first j of `b`. */
    int cost[SUGGEST_BYTES + 1][SUGGEST_BYTES + 1];

    if (a_size > SUGGEST_BYTES || b_size > SUGGEST_BYTES) {
        return SUGGEST_BYTES + 1;
    }
    for (size_t i = 0; i <= a_size; i++) {
        for (size_t j = 0; j <= b_size; j++) {
            if (i == 0 || j == 0) {
                cost[i][j] = (int)(i + j);
                continue;
            }
            cost[i][j] = min_int(min_int(cost[i - 1][j] + 1, cost[i][j - 1] + 1),
                                 cost[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                cost[i][j] = min_int(cost[i][j], cost[i - 2][j - 2] + 1);
            }
        }
    }
    return cost[a_size][b_size];
}

void suggestion_consider(struct suggestion *suggestion, const char *name)
{
    const int distance = edit_distance(suggestion->given, suggestion->size, name);
    const int allowed = ((int)strlen(name) + 2) / 3;

    if (distance <= allowed && (!suggestion->closest || distance < suggestion->distance)) {
        suggestion->closest = name;
        suggestion->distance = distance;
    }
}

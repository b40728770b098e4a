/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu/call/cpu_needed.h"

#include "core/fail.h"
#include "cpu/call/cpu_stage.h"

/* Adds the tokens that row tile->b reads to the words; returns how many are new. */
static int add_row(const cpu_edits *edits, const cpu_row_tile *tile, uint32_t *words)
{
    int count = 0;
    for (int at = tile->low & ~31; at < tile->high; at += 32) {
        const uint32_t bits = cpu_find_allowed_bits(edits, tile, at) & ~words[at / 32];
        words[at / 32] |= bits;
        count += __builtin_popcount(bits);
    }
    return count;
}

void cpu_find_needed_tokens(const cpu_job *job, int64_t token, int low, int high,
                            cpu_needed_tokens *needed)
{
    cpu_row_tile tile = {.token = token, .low = low, .high = high};
    int count = 0;
    GUMBEL_ASSERT(low >= 0 && low < high && high <= CPU_TILE_MAX);
    needed->any = 1;
    needed->is_sparse = 0;
    needed->high = high;
    if (!cpu_excludes_tokens(&job->edits) || (job->stage && job->stage->raw))
        return;
    memset(needed->words, 0, (size_t)cpu_round_up(high, 32) / 8);
    for (; tile.b < job->problem->batch; tile.b++) {
        count += add_row(&job->edits, &tile, needed->words);
        if (count > (high - low) / CPU_SPARSE_FRACTION)
            return;
    }
    needed->any = count > 0;
    needed->is_sparse = 1;
}

int cpu_find_needed_run(const cpu_needed_tokens *needed, cpu_token_range *run)
{
    const uint32_t *words = needed->words;
    int at = run->high;
    while (at < needed->high && !(words[at / 32] >> at % 32))
        at = (at / 32 + 1) * 32;
    if (at >= needed->high)
        return 0;
    at += __builtin_ctz(words[at / 32] >> at % 32);
    run->low = at;
    while (at < needed->high && words[at / 32] >> at % 32 & 1)
        at++;
    run->high = at;
    GUMBEL_ASSERT(run->low < run->high && run->high <= needed->high);
    return 1;
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * A row from the messages of all ranks: merged, truncated, drawn, and written.
 */
#include "core/output.h"
#include "ranks/rows/candidates.h"

size_t ranks_carve_message(const ranks_candidates *c, const unsigned char *at, ranks_message *m)
{
    const gumbel_problem *p = c->draw->p;
    size_t batch = (size_t)p->batch, samples = (size_t)p->sampling.num_samples, used = 0;
#define PART(field, there, count)                                                                  \
    m->field = (const void *)(at + used);                                                          \
    used += (there) ? (count) * sizeof *m->field : 0
    PART(raw, p->features & GUMBEL_FEATURE_RAW, batch);
    PART(summaries, 1, (size_t)c->untruncated * samples);
    PART(reports, 1, batch);
    PART(tokens, 1, batch * (size_t)c->tokens_max);
    PART(logits, c->rows.raw, batch * (size_t)c->tokens_max);
#undef PART
    return used;
}

size_t ranks_count_masses_bytes(const ranks_candidates *c)
{
    size_t each = sizeof(int32_t) + sizeof(float);
    size_t numbers = (size_t)c->draw->p->sampling.num_samples * each;
    return sizeof(ranks_row_masses) + (numbers + 7) / 8 * 8;
}

int ranks_row_is_truncated(const ranks_candidates *c, int64_t b, gumbel_rules *rules)
{
    gumbel_row row = gumbel_problem_row(&c->whole, b);
    *rules = gumbel_problem_rules(&c->whole, b, row.greedy);
    return gumbel_rules_truncate(rules);
}

ranks_merged_row ranks_merge_row(const ranks_candidates *c, int64_t b, int64_t untruncated)
{
    const gumbel_group *group = c->draw->group;
    const gumbel_output *out = c->draw->output;
    int32_t ranks = group->transport.ranks, samples = c->whole.sampling.num_samples;
    ranks_merged_row row = {.b = b, .leading.at = c->listed, .best = c->row};
    row.truncated = ranks_row_is_truncated(c, b, &row.rules);
    row.flags = gumbel_problem_row_flags(&c->whole, b);
    gumbel_summaries_clear(row.best, samples);
    int32_t count = 0;
    ranks_scale scale = ranks_row_scale(&c->whole, b);
    ranks_leading_begin(&row.leading);
    for (int32_t r = 0; r < ranks; r++) {
        ranks_message m;
        ranks_carve_message(c, c->received + (size_t)r * c->bytes, &m);
        const ranks_row_report *report = &m.reports[b];
        row.flags |= report->flags;
        row.finite += report->finite;
        ranks_leading_add(&row.leading, &count, m.tokens + b * c->tokens_max, report->listed,
                          report->more, r * c->tokens_max, scale);
        if (!row.truncated)
            gumbel_summaries_merge(row.best, m.summaries + untruncated * samples, samples);
    }
    ranks_leading_end(&row.leading, count);
    for (int32_t s = 0; s < samples; s++)
        row.best[s].flags |= row.flags;
    int empty = row.leading.count == 0 && row.leading.complete;
    row.status = gumbel_summary_status(row.best);
    if (row.truncated && row.status == GUMBEL_ROW_EMPTY && !empty)
        row.status = GUMBEL_ROW_OK; /* drawn after truncation */
    row.requires_masses = row.status == GUMBEL_ROW_OK && row.truncated && row.leading.count > 0 &&
                          gumbel_rules_need_mass(&row.rules, row.leading.at[0].value, &row.bound);
    if (row.status == GUMBEL_ROW_OK && !row.truncated)
        row.requires_masses =
            out->ranks || (c->rows.raw && out->logprobs && out->logprobs_of == GUMBEL_RAW);
    return row;
}

const ranks_row_masses *ranks_get_row_masses(const ranks_merged_masses *k, int32_t rank)
{
    size_t each = ranks_count_masses_bytes(k->c);
    return (const void *)(k->c->received_masses +
                          ((size_t)rank * (size_t)k->rows + (size_t)k->place) * each);
}

static int32_t find_token_rank(const ranks_merged_masses *k, int32_t s)
{
    int32_t above = 0;
    for (int32_t r = 0; r < k->c->draw->group->transport.ranks; r++)
        above += ((const int32_t *)(ranks_get_row_masses(k, r) + 1))[s];
    return above + 1;
}

static float find_token_logit(const ranks_merged_masses *k, int32_t s, int32_t id)
{
    const gumbel_group *group = k->c->draw->group;
    int32_t samples = k->c->whole.sampling.num_samples, r = 0;
    while (id < group->shards[r].first_token ||
           id >= group->shards[r].first_token + group->shards[r].rows)
        r++;
    return ((const float *)((const int32_t *)(ranks_get_row_masses(k, r) + 1) + samples))[s];
}

/* ------------------------------------------------------------------------- the outputs ---- */

/* The unmodified logit of a leading token. */
static float read_logit(const ranks_candidates *c, const ranks_merged_row *row,
                        const ranks_entry *e)
{
    ranks_message m;
    ranks_carve_message(c, c->received + (size_t)(e->from / c->tokens_max) * c->bytes, &m);
    return m.logits[row->b * c->tokens_max + e->from % c->tokens_max];
}

/* A token's place among the leading ones; -1: it is none of them. */
static int32_t find_leading(const ranks_leading *leading, int32_t id)
{
    for (int32_t i = 0; i < leading->count; i++)
        if (leading->at[i].id == id)
            return i;
    return -1;
}

static float merge_raw_lse(const ranks_candidates *c, const ranks_merged_row *row)
{
    gumbel_summary raw;
    gumbel_summary_empty(&raw);
    for (int32_t r = 0; r < c->draw->group->transport.ranks; r++) {
        ranks_message m;
        ranks_carve_message(c, c->received + (size_t)r * c->bytes, &m);
        gumbel_summary_merge_any(&raw, &m.raw[row->b]);
    }
    return raw.flags ? NAN : gumbel_summary_lse(&raw);
}

/* Sorts leading tokens by z, lower ids first among equals, as rules before the temperature have
 * another order. Returns 0 if a token that is not among them may belong to the first `n`. */
static int sort_by_z(ranks_leading *leading, int32_t n, ranks_entry *into)
{
    memcpy(into, leading->at, (size_t)leading->count * sizeof *into);
    for (int32_t i = 1; i < leading->count; i++) {
        ranks_entry e = into[i];
        int32_t at = i;
        for (; at > 0 && into[at - 1].z == e.z && into[at - 1].id > e.id; at--)
            into[at] = into[at - 1];
        into[at] = e;
    }
    if (leading->complete)
        return 1;
    if (n > leading->count)
        return 0;
    /* If values and z differ, another token may have the z of the last leading one. */
    float last = into[leading->count - 1].z;
    int same = into[leading->count - 1].value == last;
    return n == 0 || same || into[n - 1].z > last;
}

static void write_top(const ranks_candidates *c, const ranks_merged_row *row,
                      const ranks_entry *sorted, float lse)
{
    const gumbel_output *out = c->draw->output;
    int ok = row->status == GUMBEL_ROW_OK, raw = out->logprobs_of == GUMBEL_RAW;
    for (int32_t i = 0; i < out->num_top; i++) {
        int64_t at = row->b * out->num_top + i;
        const ranks_entry *e = &sorted[i];
        int there = ok && i < row->leading.count && e->z > -INFINITY;
        float logprob = ok ? -INFINITY : NAN, logit = logprob;
        int stays = there && (!row->truncated || find_leading(&row->leading, e->id) < row->kept);
        if (there && (raw || stays) && out->top_logprobs)
            logprob = gumbel_logprob(raw ? read_logit(c, row, e) : e->z, lse);
        if (there && out->top_logits)
            logit = read_logit(c, row, e);
        if (out->top_ids)
            out->top_ids[at] = there ? e->id : -1;
        if (out->top_logprobs)
            out->top_logprobs[at] = logprob;
        if (out->top_logits)
            out->top_logits[at] = logit;
    }
}

/* Writes the best scores of a truncated row: its kept set is among the leading tokens. */
static void write_best(const ranks_candidates *c, const ranks_merged_row *row)
{
    const gumbel_output *out = c->draw->output;
    int32_t n = out->num_best, count = 0;
    gumbel_row drawn = gumbel_problem_row(&c->whole, row->b);
    ranks_entry best[GUMBEL_BEST_MAX];
    for (int32_t i = 0; i < row->kept && row->status == GUMBEL_ROW_OK; i++) {
        ranks_entry e = row->leading.at[i];
        if (!(e.z > -INFINITY))
            continue;
        e.value = e.z + gumbel_noise_of_token(drawn.stream, (uint32_t)e.id);
        int32_t at = count < n ? count++ : n;
        for (; at > 0 && (best[at - 1].value < e.value ||
                          (best[at - 1].value == e.value && best[at - 1].id > e.id));
             at--)
            if (at < n)
                best[at] = best[at - 1];
        if (at < n)
            best[at] = e;
    }
    for (int32_t i = 0; i < n; i++) {
        float none = row->status == GUMBEL_ROW_OK ? -INFINITY : NAN;
        if (out->best_ids)
            out->best_ids[row->b * n + i] = i < count ? best[i].id : -1;
        if (out->best_scores)
            out->best_scores[row->b * n + i] = i < count ? best[i].value : none;
    }
}

static void write_samples(const ranks_candidates *c, const ranks_merged_row *row,
                          const ranks_merged_masses *masses, float lse)
{
    const gumbel_output *out = c->draw->output;
    int32_t samples = c->whole.sampling.num_samples;
    for (int32_t s = 0; s < samples; s++) {
        const gumbel_summary *best = &row->best[s];
        int64_t at = row->b * samples + s;
        int ok = row->status == GUMBEL_ROW_OK && best->best_id >= 0;
        int32_t place = ok && row->truncated ? find_leading(&row->leading, best->best_id) : -1,
                above = 0;
        float z = best->best_z;
        while (place >= 0 && row->leading.at[above].z > z)
            above++;
        if (ok && out->logprobs_of == GUMBEL_RAW && out->logprobs)
            z = row->truncated ? read_logit(c, row, &row->leading.at[place])
                               : find_token_logit(masses, s, best->best_id);
        out->tokens[at] = ok ? best->best_id : -1;
        if (out->logprobs)
            out->logprobs[at] = ok ? gumbel_logprob(z, lse) : NAN;
        if (out->scores)
            out->scores[at] = ok ? best->best_score : NAN;
        if (out->ranks)
            out->ranks[at] = !ok ? -1 : row->truncated ? above + 1 : find_token_rank(masses, s);
    }
}

int ranks_write_row(const ranks_candidates *c, ranks_merged_row *row,
                    const ranks_merged_masses *masses)
{
    const gumbel_output *out = c->draw->output;
    const gumbel_group *group = c->draw->group;
    int raw = out->logprobs_of == GUMBEL_RAW, with_mass = !raw && (out->lse || out->logprobs);
    int listed = out->num_top > 0 && (out->top_ids || out->top_logprobs || out->top_logits);
    int64_t kept = row->finite;
    with_mass |= !raw && listed && out->top_logprobs;
    if (row->status == GUMBEL_ROW_OK) {
        if (!row->truncated && ((with_mass && !group->aligned) || gumbel_output_has_best(out)))
            return 0;
        if (listed && !sort_by_z(&row->leading, out->num_top, c->sorted))
            return 0;
        if (row->truncated && row->leading.count == 0)
            return 0;
        if (row->truncated) {
            row->kept = ranks_truncate_leading(&row->rules, &row->leading, masses->mass);
            if (row->kept < 0)
                return 0;
            gumbel_summaries_clear(row->best, c->whole.sampling.num_samples);
            ranks_draw_leading(&c->whole, row->b, &row->leading, row->kept, c->room, row->best);
            row->status = gumbel_summary_status(row->best);
            kept = 0;
            for (int32_t i = 0; i < row->kept; i++)
                kept += row->leading.at[i].z > -INFINITY;
        }
    }
    int ok = row->status == GUMBEL_ROW_OK;
    float lse = NAN;
    if (ok && raw && (out->lse || out->logprobs || (listed && out->top_logprobs)))
        lse = merge_raw_lse(c, row);
    if (ok && !raw)
        lse = gumbel_summary_lse(row->best);
    write_samples(c, row, masses, lse);
    if (listed)
        write_top(c, row, c->sorted, lse);
    if (gumbel_output_has_best(out))
        write_best(c, row);
    if (out->lse)
        out->lse[row->b] = lse;
    if (out->status)
        out->status[row->b] = (int32_t)row->status;
    if (out->kept)
        out->kept[row->b] = ok ? (int32_t)kept : 0;
    return 1;
}

// SPDX-License-Identifier: Apache-2.0
//
// Rows that are split over ranks, drawn from the local top-64 candidates of each rank, gathered or
// exchanged by peer buffers: the CPU backend's bits (log-normalisers within two ulps), on each
// rank; the candidates that a rank sends, from a list or from the logits of a product, stored fully
// or by bounds; and a rank that sends nothing yields an error and no token. Rows that candidates
// suffice for are not fallback rows, and fallback rows have all their logits.
#include "cuda/policy/cuda_policy.h"
#include "launch_ranks.h"

#include <gumbel/gumbel.h>

extern "C" {
#include "validate/validate.h"
}

#include "problems.h"
#include "sparse_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace
{

constexpr int32_t kAhead = 40; /* earlier tags and exchanges of a peer buffer */
constexpr size_t kRoom = 16 * GUMBEL_RANK_WORDS;

struct listed_case {
    int32_t ranks, samples;
    int64_t batch, vocab;
    bool tame; /* candidates suffice for all rows */
    std::vector<int64_t> begins;
    std::vector<float> logits, temperature, min_p, top_p;
    std::vector<int32_t> top_k;
    std::vector<uint64_t> seed, position;
    std::vector<uint32_t> first_sample;
    gumbel_truncation cut;
    gumbel_sampling sampling;

    explicit listed_case(uint64_t *random);
    gumbel_logits whole() const;
};

listed_case::listed_case(uint64_t *random)
    : ranks(1 + (int32_t)random_below(random, one_in(random, 5) ? 16 : 4)),
      samples(1 + (int32_t)random_below(random, one_in(random, 3) ? 4 : 1)),
      batch(1 + random_below(random, 6)), vocab(0), tame(!one_in(random, 3)), cut(), sampling()
{
    const bool large = one_in(random, 8); /* a shard has more blocks than candidates */
    const uint32_t widest = large ? 12000 : one_in(random, 4) ? 3 : 500;
    if (large) {
        ranks = std::min(ranks, 3);
        batch = std::min(batch, (int64_t)2);
    }
    for (int32_t r = 0; r <= ranks; r++) {
        begins.push_back(vocab);
        vocab += r < ranks ? CUDA_TOP64 + random_below(random, widest) : 0;
    }
    const float steps = tame ? 0.0f : (float)(1 + random_below(random, 40));
    const float scale = one_in(random, 4) ? 20.0f : 2.0f;
    for (int64_t i = 0; i < batch * vocab; i++) {
        float y = scale * random_normal(random);
        logits.push_back(steps > 0.0f ? std::floor(y * steps) / steps : y);
    }
    for (int64_t b = 0; b < batch; b++) {
        float *row = &logits[(size_t)(b * vocab)];
        const uint32_t kind = tame ? 9 : random_below(random, 12);
        for (int64_t i = 0; i < vocab && kind < 2; i++)
            row[i] = kind == 0 || i % 37 ? -INFINITY : row[i];
        if (kind == 2 || kind == 3)
            row[random_below(random, (uint32_t)vocab)] = kind == 2 ? NAN : INFINITY;
        temperature.push_back(
            !tame && one_in(random, 6) ? 0.0f : 0.3f + 0.2f * (float)random_below(random, 8));
        top_k.push_back(tame || !one_in(random, 4) ? 1 + (int32_t)random_below(random, 50) : 0);
        top_p.push_back(one_in(random, 3) ? 1.0f : 0.05f * (float)(1 + random_below(random, 19)));
        min_p.push_back(one_in(random, 2) ? 0.0f : 0.01f * (float)random_below(random, 30));
        seed.push_back(random_bits(random));
        position.push_back(random_below(random, 1000));
        first_sample.push_back(UINT32_MAX - 40503 * (uint32_t)b);
    }
    cut.struct_size = sizeof cut;
    cut.order = (gumbel_order)random_below(random, 6);
    if (tame && (cut.order == GUMBEL_ORDER_JOINT || cut.order == GUMBEL_ORDER_JOINT_TEMPERATURE))
        cut.order = GUMBEL_ORDER_MIN_P_TOP_K_TOP_P;
    cut.ties = one_in(random, 2) ? GUMBEL_TIES_EXACT : GUMBEL_TIES_ALL;
    cut.top_k = {top_k.data(), 0};
    cut.top_p = {top_p.data(), 0};
    cut.min_p = {min_p.data(), 0};
    sampling.struct_size = sizeof sampling;
    sampling.num_samples = samples;
    sampling.temperature = {temperature.data(), 0};
    sampling.seed = {seed.data(), 0};
    sampling.position = {position.data(), 0};
    sampling.first_sample = {first_sample.data(), 0};
    sampling.truncation = &cut;
}

gumbel_logits listed_case::whole() const
{
    gumbel_logits whole = {};
    whole.struct_size = sizeof whole;
    whole.logits = {logits.data(), GUMBEL_FLOAT32, batch, vocab, vocab, {0, 0}};
    return whole;
}

/* Outputs of a draw. */
struct found_rows {
    std::vector<int32_t> tokens, ranks, status, kept, left;
    std::vector<float> logprobs, scores, lse;

    explicit found_rows(const listed_case &c)
        : tokens((size_t)(c.batch * c.samples), -7), ranks(tokens), status((size_t)c.batch, -7),
          kept(status), left((size_t)c.batch + 1, -7), logprobs(tokens.size(), -7.0f),
          scores(logprobs), lse((size_t)c.batch, -7.0f)
    {
    }

    gumbel_output output()
    {
        gumbel_output out = {};
        out.struct_size = sizeof out;
        out.tokens = tokens.data();
        out.ranks = ranks.data();
        out.status = status.data();
        out.kept = kept.data();
        out.logprobs = logprobs.data();
        out.scores = scores.data();
        out.lse = lse.data();
        return out;
    }
};

void draw_whole(const listed_case &c, found_rows *host)
{
    gumbel_error error = {"", ""};
    gumbel_device *device = nullptr;
    size_t bytes = 0;
    const gumbel_logits whole = c.whole();
    const gumbel_output out = host->output();
    if (gumbel_open(nullptr, &device, &error) != GUMBEL_OK ||
        gumbel_workspace_size(device, nullptr, &whole, &c.sampling, &out, &bytes, &error) !=
            GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    void *workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (gumbel_sample_logits(device, nullptr, &whole, &c.sampling, &out, workspace, bytes,
                             &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    free(workspace);
    gumbel_close(device);
}

/* The candidates that rank r sends, as cuda_rank_calls.list() computes them. */
std::vector<uint32_t> list_candidates(const listed_case &c, int32_t r)
{
    const int64_t B = c.batch, n = CUDA_TOP64;
    std::vector<uint32_t> sent((size_t)((B * GUMBEL_RANK_WORDS + 3) / 4 * 4));
    for (int64_t b = 0; b < B; b++) {
        const float *row = &c.logits[(size_t)(b * c.vocab)];
        std::vector<int32_t> ids;
        int32_t status = GUMBEL_ROW_EMPTY;
        for (int64_t i = c.begins[(size_t)r]; i < c.begins[(size_t)r + 1]; i++) {
            ids.push_back((int32_t)i);
            if (std::isnan(row[i]))
                status = GUMBEL_ROW_NAN;
            else if (row[i] == INFINITY && status != GUMBEL_ROW_NAN)
                status = GUMBEL_ROW_INFINITE;
            else if (row[i] > -INFINITY && status == GUMBEL_ROW_EMPTY)
                status = GUMBEL_ROW_OK;
        }
        if (status != GUMBEL_ROW_OK)
            ids.clear();
        ids.erase(
            std::remove_if(ids.begin(), ids.end(), [&](int32_t i) { return row[i] == -INFINITY; }),
            ids.end());
        std::sort(ids.begin(), ids.end(),
                  [&](int32_t i, int32_t j) { return row[i] != row[j] ? row[i] > row[j] : i < j; });
        sent[(size_t)b] = (uint32_t)status;
        for (int64_t i = 0; i < n; i++) {
            const bool there = i < (int64_t)ids.size();
            const float y = there ? row[ids[(size_t)i]] : -INFINITY;
            sent[(size_t)(B + b * n + i)] = there ? (uint32_t)ids[(size_t)i] : ~0u;
            memcpy(&sent[(size_t)(B + (B + b) * n + i)], &y, sizeof y);
        }
    }
    return sent;
}

/* A rank's peer buffer. */
struct peer_buffer {
    std::vector<uint64_t> words;

    explicit peer_buffer(int32_t ranks)
        : words((gumbel_peer_buffer_size(ranks, kRoom) + 7) / 8, 0xa7a7a7a7a7a7a7a7)
    {
        memset(words.data(), 0, sizeof(gumbel_peer_buffer));
        head()->exchanges = head()->tags = kAhead;
    }

    gumbel_peer_buffer *head() { return (gumbel_peer_buffer *)words.data(); }

    /* Word i from rank `from` in the next exchange. */
    uint64_t *place(int32_t ranks, int32_t from, size_t i)
    {
        return (uint64_t *)(head() + 1) +
               (((kAhead + 1) % 2) * (size_t)ranks + (size_t)from) * kRoom + i;
    }
};

/* Word i of a rank's candidates, in the order of a peer buffer. */
uint32_t word_of(const listed_case &c, const std::vector<uint32_t> &sent, size_t i)
{
    const size_t b = i / GUMBEL_RANK_WORDS, at = i % GUMBEL_RANK_WORDS, n = CUDA_TOP64;
    const size_t B = (size_t)c.batch;
    return at == 0   ? sent[b]
           : at <= n ? sent[B + b * n + at - 1]
                     : sent[B + (B + b) * n + at - 1 - n];
}

cuda_top64_params params_of(const listed_case &c, const gumbel_output &out, int32_t *left)
{
    cuda_top64_params p = {};
    gumbel_error error = {"", ""};
    const gumbel_logits whole = c.whole();
    if (gumbel_read_logits(&p.rows.problem, &whole, &c.sampling, &error) != GUMBEL_OK)
        die("%s: %s", error.field, error.message);
    p.rows.problem.logits = {};
    p.rows.output = out;
    p.ranks = c.ranks;
    p.fallback = left;
    return p;
}

/* Rank r's logits as a product stores them. */
struct stored_shard {
    sparse_blocks sparse;
    std::vector<float> maxima;

    stored_shard(const listed_case &c, int32_t r, cuda_truncated_params *p, bool by_bounds,
                 uint64_t *random)
    {
        const int64_t first = c.begins[(size_t)r], end = c.begins[(size_t)r + 1];
        p->problem.first_token = first;
        p->problem.end_token = end;
        p->problem.logits = {
            &c.logits[(size_t)first], GUMBEL_FLOAT32, c.batch, end - first, c.vocab, {0, 0}};
        const int64_t range = end - CUDA_MAXIMA_ORIGIN(first);
        p->blocks = (range + CUDA_MAXIMA_BLOCK - 1) / CUDA_MAXIMA_BLOCK;
        p->has_block_maxima = 1;
        maxima = find_block_maxima(p->problem, p->blocks, false);
        p->block_maxima = maxima.data();
        cuda_truncated_params req = *p;
        req.output.num_top = CUDA_TOP64;
        by_bounds &= bounds_apply(p->problem);
        if (by_bounds)
            sparse = drop_unneeded_subtiles(req, random);
        else
            copy_logits(&sparse, p->problem.logits);
        p->problem.logits.data = sparse.logits.data();
        p->problem.logits.stride = sparse.stride;
        if (by_bounds)
            hand_over(&sparse, p);
    }

    /* Whether row b has all its logits, or at least no others. */
    bool is_whole(const listed_case &c, const cuda_truncated_params &p, int64_t b) const
    {
        const int64_t first = p.problem.first_token;
        const float *own = (const float *)sparse.logits.data() + b * sparse.stride - first;
        const float *row = &c.logits[(size_t)(b * c.vocab)];
        for (int64_t i = first; i < p.problem.end_token; i++)
            if (memcmp(&own[i], &row[i], sizeof *row) != 0 && own[i] != -INFINITY)
                return false;
        return true;
    }
};

bool near(float host, float ours)
{
    return host == ours || (std::isnan(host) && std::isnan(ours)) ||
           std::fabs(host - ours) <= 0x1p-22f * std::fmax(1.0f, std::fabs(host));
}

bool same_bits(float host, float ours)
{
    return host == ours || (std::isnan(host) && std::isnan(ours));
}

bool compare(const listed_case &c, const found_rows &host, const found_rows &ours, const char *what,
             const char *draw_path)
{
    for (size_t b = 0; b < (size_t)c.batch; b++) {
        bool same = ours.left[b] == 0 || ours.left[b] == 1;
        if (ours.left[b] == 1 && !c.tame)
            continue;
        same &= ours.left[b] == 0 && host.status[b] == ours.status[b] &&
                host.kept[b] == ours.kept[b] && near(host.lse[b], ours.lse[b]);
        for (size_t s = b * (size_t)c.samples; s < (b + 1) * (size_t)c.samples; s++)
            same &= host.tokens[s] == ours.tokens[s] && host.ranks[s] == ours.ranks[s] &&
                    same_bits(host.scores[s], ours.scores[s]) &&
                    std::fabs(std::isnan(host.logprobs[s]) && std::isnan(ours.logprobs[s])
                                  ? 0.0f
                                  : host.logprobs[s] - ours.logprobs[s]) <=
                        0x1p-22f * std::fmax(1.0f, std::fabs(host.lse[b]));
        if (!same) {
            printf("%s: %s: row %d differs (left %d, kept %d and %d, token %d and %d)\n", what,
                   draw_path, (int)b, (int)ours.left[b], (int)host.kept[b], (int)ours.kept[b],
                   (int)host.tokens[b * (size_t)c.samples],
                   (int)ours.tokens[b * (size_t)c.samples]);
            return false;
        }
    }
    return ours.left[(size_t)c.batch] == 0;
}

/* How rank r draws by peer buffers: from its list; from its list while another rank withholds a
 * word; or from a product's logits, stored fully or by bounds. */
enum draw_path { LISTED, SILENT, STORED, BOUNDED };

bool sends(const listed_case &c, const found_rows &host,
           const std::vector<std::vector<uint32_t>> &sent, int32_t r, draw_path by,
           uint64_t *random, const char *what)
{
    const bool silent = by == SILENT, stored = by >= STORED;
    std::vector<peer_buffer> boxes((size_t)c.ranks, peer_buffer(c.ranks));
    found_rows ours(c);
    gumbel_peer_report report = {};
    const size_t words = (size_t)c.batch * GUMBEL_RANK_WORDS;
    const uint64_t tag = (uint64_t)(kAhead + 1) << 32;
    cuda_top64_exchange_params p = {};
    p.draw = params_of(c, ours.output(), ours.left.data());
    p.draw.received = sent[(size_t)r].data();
    cuda_truncated_params left = p.draw.rows;
    const stored_shard shard(c, r, &left, by == BOUNDED, random);
    if (stored)
        p.draw.rows = left;
    p.exchange.rank = r;
    p.exchange.ranks = c.ranks;
    p.exchange.room = kRoom;
    p.exchange.report = &report;
    p.exchange.timeout_ns = silent ? 1000 : INT64_MAX;
    for (int32_t from = 0; from < c.ranks; from++) {
        p.exchange.peer_buffers[from] = boxes[(size_t)from].head();
        boxes[(size_t)r].head()->begun[from] = from == r ? 0 : kAhead + 1;
        for (size_t i = 0; i < words && from != r; i++)
            *boxes[(size_t)r].place(c.ranks, from, i) = tag | word_of(c, sent[(size_t)from], i);
    }
    const int32_t late = (r + 1) % c.ranks;
    if (silent)
        *boxes[(size_t)r].place(c.ranks, late, random_below(random, (uint32_t)words)) = 0;
    emulate_exchange_top64(p, random, what);
    if (silent) {
        int flagged = 0;
        bool right = true; /* rows that had arrived are drawn correctly */
        for (size_t b = 0; b < (size_t)c.batch; b++) {
            const size_t first = b * (size_t)c.samples;
            flagged += ours.status[b] == GUMBEL_ROW_NAN && ours.tokens[first] == -1;
            right &= ours.status[b] == GUMBEL_ROW_NAN || ours.left[b] ||
                     ours.tokens[first] == host.tokens[first];
        }
        if (report.failed == 1u + (uint32_t)late && flagged > 0 && right)
            return true;
        printf("%s: a silent rank is not noticed\n", what);
        return false;
    }
    for (int32_t to = 0; to < c.ranks; to++)
        for (size_t i = 0; i < words && to != r; i++) {
            const size_t b = i / GUMBEL_RANK_WORDS, at = b * GUMBEL_RANK_WORDS;
            if (stored && ours.left[b] &&
                *boxes[(size_t)to].place(c.ranks, r, at) == (tag | CUDA_ROW_NOT_SELECTED))
                continue;
            if (*boxes[(size_t)to].place(c.ranks, r, i) != (tag | word_of(c, sent[(size_t)r], i))) {
                printf("%s: rank %d sends something else\n", what, (int)r);
                return false;
            }
        }
    for (int64_t b = 0; b < c.batch && stored; b++)
        if (ours.left[(size_t)b] == 1 && !shard.is_whole(c, left, b)) {
            printf("%s: row %d is left with what is no logit\n", what, (int)b);
            return false;
        }
    const gumbel_peer_buffer *own = boxes[(size_t)r].head();
    if (own->exchanges != kAhead + 1 || own->tags != kAhead + 1 || own->ended != 0 ||
        report.failed) {
        printf("%s: the exchange does not end\n", what);
        return false;
    }
    return compare(c, host, ours, what, stored ? "sent from logits" : "sent");
}

/* Whether rank r computes the same candidates from a product's logits, except for fallback rows. */
bool lists(const listed_case &c, const std::vector<uint32_t> &sent, int32_t r, bool by_bounds,
           uint64_t *random, const char *what)
{
    std::vector<uint32_t> words(sent.size(), 0);
    cuda_top64_params p = params_of(c, {}, nullptr);
    const stored_shard shard(c, r, &p.rows, by_bounds, random);
    p.candidates = words.data();
    emulate_select_top64(p, random, what);
    for (size_t i = 0; i < (size_t)c.batch * GUMBEL_RANK_WORDS; i++) {
        const size_t b = i / GUMBEL_RANK_WORDS;
        const bool unlisted = words[b] == CUDA_ROW_NOT_SELECTED && !c.tame;
        if (!unlisted && word_of(c, words, i) != word_of(c, sent, i)) {
            printf("%s: rank %d lists something else of row %d\n", what, (int)r, (int)b);
            return false;
        }
    }
    return true;
}

bool passes(int index)
{
    uint64_t random = (uint64_t)index * 811 + 3;
    char what[100];
    const listed_case c(&random);
    found_rows host(c), gathered(c);
    snprintf(what, sizeof what, "case %d: %d ranks, %d rows of %d", index, (int)c.ranks,
             (int)c.batch, (int)c.vocab);
    draw_whole(c, &host);
    std::vector<std::vector<uint32_t>> sent;
    std::vector<uint32_t> all;
    for (int32_t r = 0; r < c.ranks; r++) {
        sent.push_back(list_candidates(c, r));
        all.insert(all.end(), sent.back().begin(), sent.back().end());
    }
    cuda_top64_params p = params_of(c, gathered.output(), gathered.left.data());
    p.received = all.data();
    p.stride = (int64_t)sent[0].size();
    emulate_draw_top64(p, &random, what);
    const int32_t r = (int32_t)random_below(&random, (uint32_t)c.ranks);
    const draw_path by = c.ranks > 1 && index % 4 == 0 ? SILENT : LISTED;
    return compare(c, host, gathered, what, "gathered") &&
           sends(c, host, sent, r, by, &random, what) &&
           sends(c, host, sent, r, index % 2 ? STORED : BOUNDED, &random, what) &&
           lists(c, sent[(size_t)r], r, index % 3 > 0, &random, what);
}

} // namespace

/* usage: test_top64_rows [FIRST [COUNT]], cases by number */
int main(int argc, char **argv)
{
    return run_problems(argc, argv, 60, 3000, [&](int i) { return passes(i); }) != 0;
}

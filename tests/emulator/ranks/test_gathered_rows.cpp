// SPDX-License-Identifier: Apache-2.0
//
// Rows that a GPU has its host gather by a host-assisted collective: the kernels request the chosen
// rows once, if there are any, and scatter the received rows side by side; they write nothing else,
// and a failed collective sets all bits. These rows are then exchanged by peer buffers.
#include "launch_ranks.h"
#include "problems.h"

#include <cstring>
#include <vector>

namespace
{

constexpr uint32_t kPoison = 0xa7a7a7a7;

/* Memory of one rank. */
struct rank_memory {
    std::vector<uint32_t> own, gathered, received;
    std::vector<int32_t> list, slots;
    int32_t listed = -1;
    uint32_t ended = 0;
    gumbel_host_collective collective = {};
    gumbel_gathered_rows call = {};
};

struct collective_case {
    int32_t ranks;
    int64_t rows, width, whole;
    int fails;
    std::vector<int32_t> chosen, of_row, picked;
    std::vector<rank_memory> of;
};

collective_case make_case(uint64_t *random)
{
    collective_case c = {};
    c.ranks = 1 + (int32_t)random_below(random, 4);
    c.rows = 1 + random_below(random, 70);
    c.width = 4 * (1 + random_below(random, one_in(random, 4) ? 1500 : 40));
    c.fails = one_in(random, 5);
    const uint32_t chosen_of = 1 + random_below(random, 4);
    const bool none = one_in(random, 4);
    for (int64_t b = 0; b < c.rows; b++) {
        c.chosen.push_back(!none && random_below(random, chosen_of) == 0);
        c.of_row.push_back((int32_t)random_below(random, 1000));
        if (c.chosen[b])
            c.picked.push_back((int32_t)b);
    }
    c.of.resize(c.ranks);
    for (int32_t r = 0; r < c.ranks; r++) {
        const int64_t rows = 1 + random_below(random, (uint32_t)c.width);
        for (rank_memory &m : c.of) {
            m.call.rows.begins[r] = c.whole;
            m.call.rows.widths[r] = rows;
        }
        c.whole += rows;
    }
    return c;
}

void fill(collective_case &c, int slotted, uint64_t *random)
{
    for (int32_t r = 0; r < c.ranks; r++) {
        rank_memory &m = c.of[r];
        for (int64_t i = 0; i < c.rows * c.width; i++)
            m.own.push_back((uint32_t)random_bits(random));
        m.gathered.assign(c.ranks * c.rows * c.width, kPoison);
        m.received.assign(c.rows * c.whole, kPoison);
        m.list.assign(c.rows, -7);
        m.slots.assign(c.rows, -7);
        m.collective.requested = 40;
        m.collective.done = 41; /* the host completes the collective at once */
        gumbel_peer_rows &p = m.call.rows;
        p.words = m.own.data();
        p.rows = c.rows;
        p.width = c.width;
        p.received = m.received.data();
        p.received_width = c.whole;
        p.chosen = c.chosen.data();
        p.of_row = slotted ? c.of_row.data() : nullptr;
        p.list = m.list.data();
        p.slots = m.slots.data();
        p.listed = &m.listed;
        m.call.rank = r;
        m.call.ranks = c.ranks;
        m.call.gathered = m.gathered.data();
        m.call.collective = &m.collective;
        m.call.ended = &m.ended;
        m.call.timeout_ms = 1000;
    }
}

/* Whether rank r requests the expected rows. */
bool requests_rows(const collective_case &c, int32_t r)
{
    const rank_memory &m = c.of[r];
    const size_t words = c.picked.size() * c.width;
    const uint32_t *own = m.gathered.data() + r * words;
    if (m.listed != (int32_t)c.picked.size() || m.ended != 0)
        return false;
    for (size_t i = 0; i < c.picked.size(); i++)
        if (m.list[i] != c.picked[i] ||
            m.slots[i] != (m.call.rows.of_row ? c.of_row[c.picked[i]] : c.picked[i]) ||
            memcmp(own + i * c.width, &m.own[c.picked[i] * c.width], c.width * sizeof *own) != 0)
            return false;
    if (words == 0)
        return m.collective.requested == 40;
    return m.collective.requested == 41 && m.collective.bytes == words * sizeof *own &&
           m.collective.send == (uint64_t)own &&
           m.collective.receive == (uint64_t)m.gathered.data();
}

/* The hosts' side of the collective. */
void gather_rows(collective_case &c)
{
    const size_t words = c.picked.size() * c.width;
    for (rank_memory &to : c.of)
        for (int32_t r = 0; r < c.ranks; r++)
            memcpy(&to.gathered[r * words], &c.of[r].gathered[r * words], words * sizeof(uint32_t));
}

bool lies(const collective_case &c, const rank_memory &m)
{
    std::vector<uint32_t> wanted(c.rows * c.whole, kPoison);
    for (size_t i = 0; i < c.picked.size(); i++)
        for (int32_t r = 0; r < c.ranks; r++)
            for (int64_t j = 0; j < m.call.rows.widths[r]; j++)
                wanted[i * c.whole + m.call.rows.begins[r] + j] =
                    c.fails ? ~0u : c.of[r].own[c.picked[i] * c.width + j];
    return wanted == m.received;
}

/* Whether rank r receives the same rows by peer buffers, into which the other ranks have written.
 * If no rows are chosen, the rank waits for nobody, and the next exchange has the same number and
 * another tag. */
bool exchanges(collective_case c, int32_t r, uint64_t *random, const char *what)
{
    constexpr uint32_t before = 40;
    const size_t words = c.picked.size() * c.width, room = (size_t)(c.rows * c.width);
    std::vector<std::vector<uint64_t>> boxes;
    rank_memory &m = c.of[r];
    gumbel_peer_report report = {};
    cuda_exchange_params p = {};
    p.rank = r;
    p.ranks = c.ranks;
    p.room = (int64_t)room;
    p.report = &report;
    p.timeout_ns = INT64_MAX;
    p.words = m.own.data();
    p.rows = c.rows;
    p.width = c.width;
    p.received = m.received.data();
    p.received_width = c.whole;
    memcpy(p.begins, m.call.rows.begins, sizeof p.begins);
    memcpy(p.widths, m.call.rows.widths, sizeof p.widths);
    p.chosen = c.chosen.data();
    p.list = m.list.data();
    p.slots = m.slots.data();
    p.listed = &m.listed;
    for (int32_t to = 0; to < c.ranks; to++)
        boxes.emplace_back(gumbel_peer_buffer_size(c.ranks, room) / 8);
    for (int32_t to = 0; to < c.ranks; to++)
        p.peer_buffers[to] = (gumbel_peer_buffer *)boxes[to].data();
    gumbel_peer_buffer *own = p.peer_buffers[r];
    own->exchanges = own->tags = before;
    for (int32_t from = 0; from < c.ranks && words > 0; from++) {
        uint64_t *place = (uint64_t *)(own + 1) + ((before + 1) % 2 * c.ranks + from) * room;
        own->begun[from] = from == r ? 0 : before + 1;
        for (size_t i = 0; i < words && from != r; i++)
            place[i] = (uint64_t)(before + 1) << 32 |
                       c.of[from].own[c.picked[i / c.width] * c.width + i % c.width];
    }
    m.received.assign(m.received.size(), kPoison);
    c.fails = 0;
    emulate_exchange(p, 1 + random_below(random, 5), random, what);
    const bool ends = own->ended == 0 && own->tags == before + 1 && !report.failed &&
                      own->exchanges == before + (words > 0) &&
                      m.listed == (int32_t)c.picked.size();
    if (!ends || !lies(c, m))
        printf("%s: rank %d exchanges something else\n", what, (int)r);
    return ends && lies(c, m);
}

bool passes(int index)
{
    uint64_t random = (uint64_t)index;
    char what[100];
    collective_case c = make_case(&random);
    snprintf(what, sizeof what, "case %d: %d ranks, %d of %d rows of %d", index, (int)c.ranks,
             (int)c.picked.size(), (int)c.rows, (int)c.width);
    fill(c, one_in(&random, 2), &random);
    for (int32_t r = 0; r < c.ranks; r++) {
        emulate_request_rows(c.of[r].call, 1 + random_below(&random, 5), &random, what);
        if (!requests_rows(c, r)) {
            printf("%s: rank %d requests something else\n", what, (int)r);
            return false;
        }
    }
    gather_rows(c);
    for (rank_memory &m : c.of) {
        m.collective.failed = (uint64_t)c.fails;
        emulate_scatter_rows(m.call, 1 + random_below(&random, 5), &random, what);
        if (!lies(c, m)) {
            printf("%s: rows do not lie as they were\n", what);
            return false;
        }
    }
    return exchanges(c, (int32_t)random_below(&random, (uint32_t)c.ranks), &random, what);
}

} // namespace

int main(int argc, char **argv) { return run_problems(argc, argv, 60, 2000, passes) > 0; }

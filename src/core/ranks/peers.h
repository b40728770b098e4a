/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks whose devices reach each other's memory. Each has a mailbox; what a rank has to say it
 * stores into the mailboxes of the others, a word of 32 bits and a tag at a time, and what the
 * others say it takes up from its own. A tag is new with each exchange, so that a word tells by
 * itself that it has come.
 *
 * A mailbox has two places for each rank's words, which exchanges use in turns. An exchange ends
 * when all ranks have begun it, as they say by a word of its own, and so have ended the one before:
 * nobody reads what the next one writes over. One that has more words than a place goes on by
 * halves of it, in turns likewise: a thread says more when it has heard what the same threads of
 * all others said behind what it writes over.
 */
#ifndef GUMBEL_CORE_RANKS_PEERS_H
#define GUMBEL_CORE_RANKS_PEERS_H

#include <stddef.h>
#include <stdint.h>

#define GUMBEL_PEERS_RANKS 16 /* GUMBEL_PEERS_MOST of dist.h */

/* The first bytes of a mailbox: what its own device has to remember from exchange to exchange. */
typedef struct gumbel_peer_buffer {
    uint32_t exchanges; /* that are done */
    uint32_t tags;      /* that were used up: one for each time that places were filled */
    uint32_t ended;     /* CTAs that have ended the exchange under way */
    uint32_t failed;    /* 0, or 1 + the rank that did not answer in time: the mailbox is spent */
    uint32_t reserved[28];
    uint64_t begun[GUMBEL_PEERS_RANKS]; /* which exchange a rank has begun, as it says here */
} gumbel_peer_buffer;

/* Bytes of a mailbox in which each of `ranks` may say so many words an exchange. */
static inline size_t gumbel_peer_buffer_bytes(int32_t ranks, size_t words)
{
    return sizeof(gumbel_peer_buffer) + 2 * (size_t)ranks * words * sizeof(uint64_t);
}

/* What a rank says of its mailbox, so that others reach it. */
typedef struct gumbel_peer_handle {
    uint64_t host;    /* which machine it is on */
    uint64_t process; /* which process there */
    uint64_t memory;  /* the mailbox's address in that process */
    int32_t ordinal;  /* of the device in that process */
    int32_t status;   /* whether it has one */
    unsigned char handle[64];
} gumbel_peer_handle;

/* What a rank's GPU writes into host memory when it gives up on another rank: `failed` last. */
typedef struct gumbel_peer_report {
    uint32_t failed;                    /* 0, or 1 + the rank that did not answer in time */
    uint32_t exchange;                  /* number of the exchange that this rank was in */
    uint64_t waited_ns;                 /* how long it waited there, by the GPU's clock */
    uint64_t begun[GUMBEL_PEERS_RANKS]; /* number of the last exchange that each rank has begun */
} gumbel_peer_report;

typedef struct gumbel_peers {
    int32_t rank, ranks;
    size_t words;                        /* that a rank says in one exchange at most */
    void *mailboxes[GUMBEL_PEERS_RANKS]; /* of all ranks, as this one's device reaches them */
    uint32_t mapped;                     /* bits: those that this rank has mapped */
    int owned;                           /* this rank's own is to be freed */
    gumbel_peer_report *report;          /* host memory */
    gumbel_peer_report *device_report;   /* the same memory at its device address */
    int64_t timeout_ms;                  /* of an exchange */
} gumbel_peers;

/* First tokens that a rank lists of a row, and words that it says of it. */
#define GUMBEL_RANK_TOP 64
#define GUMBEL_RANK_WORDS  (1 + 2 * GUMBEL_RANK_TOP)

/* Most rows of which peers tell each other as they draw: more would wait on all multiprocessors,
 * and keep out what another rank or group has to run there before it can say anything. */
#define GUMBEL_PEERS_TOP64_ROWS 64

/* Most rows of which an exchange can choose. */
#define GUMBEL_PEERS_CHOSEN_ROWS 1024

/* An exchange of rows of words, which are laid side by side: word j of row i of rank r goes to
 * received[i * received_width + begins[r] + j], for j < widths[r]. All bits of it are set where it
 * fails to come. All is the same on all ranks but for `words`. */
typedef struct gumbel_peer_rows {
    const uint32_t *words; /* [rows, width] of this rank */
    int64_t rows, width;
    uint32_t *received;
    int64_t received_width;
    int64_t begins[GUMBEL_PEERS_RANKS], widths[GUMBEL_PEERS_RANKS];
    /* [rows <= GUMBEL_PEERS_CHOSEN_ROWS]: rows that are not 0 here alone go, the i-th of them as row i;
     * NULL: all. Which they are, their slots by of_row (NULL: the rows themselves) and how many is
     * written down. */
    const int32_t *chosen, *of_row;
    int32_t *list, *slots, *listed;
} gumbel_peer_rows;

#endif

/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks whose devices reach each other's memory. Each has a mailbox; what a rank has to say it
 * stores into the mailboxes of the others, a word of 32 bits and a tag at a time, and what the
 * others say it takes up from its own. A tag is the number of the exchange, so that a word tells by
 * itself that it has come.
 *
 * A mailbox has two places for each rank's words, which exchanges use in turns: a rank that has all
 * words of exchange e knows that all others have begun it, and so have ended e - 1.
 */
#ifndef GUMBEL_CORE_PEERS_H
#define GUMBEL_CORE_PEERS_H

#include <stddef.h>
#include <stdint.h>

#define GUMBEL_PEERS_RANKS 16 /* GUMBEL_PEERS_MOST of dist.h */

/* The first bytes of a mailbox: what its own device has to remember from exchange to exchange. */
typedef struct gumbel_mailbox {
    uint32_t exchanges; /* that are done */
    uint32_t ended;     /* CTAs that have ended the one under way */
    uint32_t failed;    /* 0, or 1 + the rank that did not answer in time: the mailbox is spent */
    uint32_t reserved[29];
} gumbel_mailbox;

/* Bytes of a mailbox in which each of `ranks` may say so many words an exchange. */
static inline size_t gumbel_mailbox_bytes(int32_t ranks, size_t words)
{
    return sizeof(gumbel_mailbox) + 2 * (size_t)ranks * words * sizeof(uint64_t);
}

/* What a rank says of its mailbox, so that others reach it. */
typedef struct gumbel_peer_card {
    uint64_t host;    /* which machine it is on */
    uint64_t process; /* which process there */
    uint64_t memory;  /* the mailbox's address in that process */
    int32_t ordinal;  /* of the device in that process */
    int32_t status;   /* whether it has one */
    unsigned char handle[64];
} gumbel_peer_card;

typedef struct gumbel_peers {
    int32_t rank, ranks;
    size_t words;                        /* that a rank says in one exchange at most */
    void *mailboxes[GUMBEL_PEERS_RANKS]; /* of all ranks, as this one's device reaches them */
    uint32_t mapped;                     /* bits: those that this rank has mapped */
    int owned;                           /* this rank's own is to be freed */
    volatile uint32_t *failed;           /* host memory: as gumbel_mailbox.failed */
    uint32_t *failed_there;              /* the same, as the device reaches it */
} gumbel_peers;

/* One exchange. */
typedef struct gumbel_peer_exchange {
    const gumbel_peers *peers;
    const uint32_t *words; /* [count] of this rank */
    int64_t count;         /* the same on all ranks, at most peers->words */
    uint32_t *received;    /* rank r's go to received[r * stride]; all bits are set where they fail
                            * to come */
    int64_t stride;
    int64_t timeout_ms;
} gumbel_peer_exchange;

#endif

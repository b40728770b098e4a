/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks whose GPUs reach each other's memory. Each rank has a peer buffer; a rank sends by writing
 * into the buffers of the others, and receives by polling its own. A 64-bit store carries a 32-bit
 * word and a tag; each exchange has a new tag, so a word is complete when its tag is there.
 *
 * A buffer has two slots for each rank's words, used alternately by successive exchanges. An
 * exchange ends when all ranks have announced that they began it, which implies that they ended the
 * previous one, so no rank overwrites words that another still reads. An exchange of more words
 * than a slot holds goes on in half slots, alternately: a thread sends its next words when it has
 * received what the same threads of all others sent after the words it overwrites.
 */
#ifndef GUMBEL_CORE_RANKS_PEERS_H
#define GUMBEL_CORE_RANKS_PEERS_H

#include <stddef.h>
#include <stdint.h>

#define GUMBEL_PEERS_RANKS 16 /* GUMBEL_PEERS_MAX of dist.h */

/* Header of a peer buffer: state of its own device from one exchange to the next. */
typedef struct gumbel_peer_buffer {
    uint32_t exchanges; /* exchanges that are done */
    uint32_t tags;      /* tags used so far, one for each time that the slots were filled */
    uint32_t ended;     /* number of CTAs that have ended the current exchange */
    uint32_t failed;    /* 0, or 1 + the rank that timed out; the buffer cannot be used again */
    uint32_t reserved[28];
    uint64_t
        begun[GUMBEL_PEERS_RANKS]; /* last exchange that each rank began, written by that rank */
} gumbel_peer_buffer;

/* Bytes of a peer buffer in which each of `ranks` may send `words` words an exchange. */
static inline size_t gumbel_peer_buffer_size(int32_t ranks, size_t words)
{
    return sizeof(gumbel_peer_buffer) + 2 * (size_t)ranks * words * sizeof(uint64_t);
}

/* A rank's handle of its peer buffer, by which the others map it. */
typedef struct gumbel_peer_handle {
    uint64_t host;            /* machine */
    uint64_t process;         /* process on that machine */
    uint64_t memory;          /* the buffer's address in that process */
    int32_t ordinal;          /* of the device in that process */
    int32_t status;           /* gumbel_status of creating the buffer */
    unsigned char handle[64]; /* CUDA IPC handle */
} gumbel_peer_handle;

/* Written into host memory by a GPU that gives up on another rank; `failed` is written last. */
typedef struct gumbel_peer_report {
    uint32_t failed;                    /* 0, or 1 + the rank that timed out */
    uint32_t exchange;                  /* number of the exchange that this rank was in */
    uint64_t waited_ns;                 /* how long it waited there, by the GPU's clock */
    uint64_t begun[GUMBEL_PEERS_RANKS]; /* number of the last exchange that each rank has begun */
} gumbel_peer_report;

typedef struct gumbel_peers {
    int32_t rank, ranks;
    size_t words;                      /* the most words that a rank sends in one exchange */
    void *buffers[GUMBEL_PEERS_RANKS]; /* of all ranks, at addresses of this rank's device */
    uint32_t mapped;                   /* bits: buffers that this rank has mapped */
    int owned;                         /* this rank's own buffer is to be freed */
    gumbel_peer_report *report;        /* host memory */
    gumbel_peer_report *device_report; /* the same memory at its device address */
    int64_t timeout_ms;                /* of an exchange */
} gumbel_peers;

/* Candidates that a rank sends for each row, and their size in words: a status, ids, values. */
#define GUMBEL_RANK_TOP   64
#define GUMBEL_RANK_WORDS (1 + 2 * GUMBEL_RANK_TOP)

/* Largest batch whose candidates peers exchange within the draw's launch. More rows would occupy
 * all multiprocessors with waiting CTAs, and keep out kernels that another rank or group has to run
 * there before it can send. */
#define GUMBEL_PEERS_TOP64_ROWS 64

/* Largest batch with gumbel_peer_rows.chosen. */
#define GUMBEL_PEERS_CHOSEN_ROWS 1024

/* An exchange of rows: word j of row i of rank r goes to
 * received[i * received_width + begins[r] + j], for j < widths[r]. Words that do not arrive are set
 * to 0xffffffff. All fields but `words` are equal on all ranks. */
typedef struct gumbel_peer_rows {
    const uint32_t *words; /* [rows, width] of this rank */
    int64_t rows, width;
    uint32_t *received;
    int64_t received_width;
    int64_t begins[GUMBEL_PEERS_RANKS], widths[GUMBEL_PEERS_RANKS];
    /* chosen: [rows <= GUMBEL_PEERS_CHOSEN_ROWS]; only rows with chosen[b] != 0 are sent, the i-th
     * of them as row i. NULL: all rows. Outputs, for the chosen rows: `list`, their row numbers;
     * `slots`, their slots by of_row (NULL: their row numbers); `listed`, their number. */
    const int32_t *chosen, *of_row;
    int32_t *list, *slots, *listed;
} gumbel_peer_rows;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "thread_ranks.h"

#include "inputs.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* An exchange has two barriers: all threads have sent; all threads have read. */
struct thread_ranks {
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    int32_t ranks, arrived, left;
    int64_t round;
    size_t bytes;
    int broken;
    const void *sent[THREAD_RANKS_MAX];
    struct member {
        thread_ranks *place;
        int32_t rank;
    } members[THREAD_RANKS_MAX];
};

static struct timespec deadline(int64_t timeout_ms)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += timeout_ms % 1000 * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

static int gather(void *context, void *stream, const void *send, void *receive, size_t bytes,
                  int64_t timeout_ms, char *why)
{
    struct member *m = context;
    thread_ranks *p = m->place;
    struct timespec end = deadline(timeout_ms);
    (void)stream;
    pthread_mutex_lock(&p->mutex);
    int64_t round = p->round;
    if (p->arrived > 0 && p->bytes != bytes)
        p->broken = 1;
    p->bytes = bytes;
    p->sent[m->rank] = send;
    p->arrived++;
    pthread_cond_broadcast(&p->moved);
    while (!p->broken && p->arrived < p->ranks && p->round == round)
        if (pthread_cond_timedwait(&p->moved, &p->mutex, &end))
            p->broken = 1;
    for (int32_t r = 0; r < p->ranks && !p->broken && bytes > 0; r++)
        memcpy((char *)receive + (size_t)r * bytes, p->sent[r], bytes);
    if (++p->left == p->ranks) {
        p->arrived = p->left = 0;
        p->round++;
    }
    pthread_cond_broadcast(&p->moved);
    while (!p->broken && p->round == round)
        if (pthread_cond_timedwait(&p->moved, &p->mutex, &end))
            p->broken = 1;
    int broken = p->broken;
    if (broken)
        snprintf(why, GUMBEL_WHY_BYTES, "a thread did not come, or with another message");
    pthread_cond_broadcast(&p->moved);
    pthread_mutex_unlock(&p->mutex);
    return broken;
}

thread_ranks *thread_ranks_make(int32_t ranks)
{
    thread_ranks *p = make_zeroed(1, sizeof *p);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->moved, NULL);
    p->ranks = ranks;
    for (int32_t r = 0; r < ranks; r++)
        p->members[r] = (struct member){p, r};
    return p;
}

void thread_ranks_free(thread_ranks *p)
{
    pthread_cond_destroy(&p->moved);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

gumbel_transport thread_ranks_transport(thread_ranks *place, int32_t rank)
{
    return (gumbel_transport){.struct_size = sizeof(gumbel_transport),
                              .rank = rank,
                              .ranks = place->ranks,
                              .all_gather = gather,
                              .context = &place->members[rank]};
}

typedef struct runner {
    void (*body)(void *argument, int32_t rank);
    void *argument;
    int32_t rank;
} runner;

static void *run(void *argument)
{
    runner *r = argument;
    r->body(r->argument, r->rank);
    return NULL;
}

void thread_ranks_run(int32_t ranks, void (*body)(void *argument, int32_t rank), void *argument)
{
    pthread_t threads[THREAD_RANKS_MAX];
    runner runners[THREAD_RANKS_MAX];
    for (int32_t r = 0; r < ranks; r++) {
        runners[r] = (runner){body, argument, r};
        if (pthread_create(&threads[r], NULL, run, &runners[r]))
            die("no thread for rank %d", (int)r);
    }
    for (int32_t r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
}

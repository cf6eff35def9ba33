/* Runs calls of oneDNN's primitives on a few threads without the Python interpreter.

   A launch is a sequence of stages; a stage is a set of chunks that run in parallel; a chunk is a sequence of calls.
   The caller and its helper threads take chunks until none are left. The caller waits for the chunks that helpers took,
   not for the helpers, so that a helper that wakes up late costs nothing. Waiting threads poll for a moment before they
   sleep, since waking a thread takes longer than most stages. */

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

typedef int (*execute_t)(void *primitive, void *stream, int n, void *arguments);
typedef void (*set_threads_t)(int n);

struct call {
    execute_t execute; /* dnnl_primitive_execute, or a function with its signature */
    void *primitive, *stream, *arguments;
    int64_t n_arguments;
};
struct chunk {
    const struct call *calls;
    int64_t n;
};
struct stage {
    const struct chunk *chunks;
    int64_t n;
};

/* An argument's memory object, and its array and offset in bytes. */
struct place {
    void *memory;
    int64_t array, offset;
};
typedef int (*set_handle_t)(void *memory, void *data); /* dnnl_memory_set_data_handle */

struct team {
    set_threads_t set_threads; /* OpenMP keeps this setting per thread */
    int64_t looks_ns;
    _Atomic(const struct chunk *) chunks; /* of the running stage */
    atomic_flag busy;
    /* Stage number, number of chunks and next chunk, in one word: an atomic compare-and-exchange then never takes a
       chunk of a newer stage. */
    _Alignas(64) atomic_uint_fast64_t word;
    _Alignas(64) atomic_int left; /* chunks not yet done */
    atomic_int status, sleepers, caller_sleeps;
    pthread_mutex_t mutex;
    pthread_cond_t published, done;
};

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static void pause_shortly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int has_chunks(uint64_t word) { return (word & 0xffff) < (word >> 16 & 0xffff); }

static void run_chunk(struct team *team, const struct chunk *chunk) {
    for (int64_t i = 0; i < chunk->n && !atomic_load(&team->status); i++) {
        const struct call *call = chunk->calls + i;
        const int status = call->execute(call->primitive, call->stream, (int)call->n_arguments, call->arguments);
        if (status) atomic_store(&team->status, status);
    }
}

/* Takes and runs chunks until none are left. */
static void work(struct team *team) {
    for (;;) {
        uint64_t word = atomic_load(&team->word);
        const struct chunk *chunks = atomic_load(&team->chunks);
        if (!has_chunks(word)) return;
        if (!atomic_compare_exchange_strong(&team->word, &word, word + 1)) continue;
        run_chunk(team, chunks + (word & 0xffff));
        if (atomic_fetch_sub(&team->left, 1) == 1 && atomic_load(&team->caller_sleeps)) {
            pthread_mutex_lock(&team->mutex);
            pthread_cond_signal(&team->done);
            pthread_mutex_unlock(&team->mutex);
        }
    }
}

static void *help(void *argument) {
    struct team *team = argument;
    team->set_threads(1);
    for (;;) {
        const int64_t until = now_ns() + team->looks_ns;
        while (!has_chunks(atomic_load(&team->word)) && now_ns() < until)
            for (int i = 0; i < 16; i++) pause_shortly();
        if (!has_chunks(atomic_load(&team->word))) {
            pthread_mutex_lock(&team->mutex);
            atomic_fetch_add(&team->sleepers, 1);
            while (!has_chunks(atomic_load(&team->word))) pthread_cond_wait(&team->published, &team->mutex);
            atomic_fetch_sub(&team->sleepers, 1);
            pthread_mutex_unlock(&team->mutex);
        }
        work(team);
    }
    return NULL;
}

static void publish(struct team *team, const struct stage *stage) {
    atomic_store(&team->chunks, stage->chunks);
    atomic_store(&team->left, (int)stage->n);
    const uint64_t number = (atomic_load(&team->word) >> 32) + 1;
    atomic_store(&team->word, number << 32 | (uint64_t)stage->n << 16);
    if (atomic_load(&team->sleepers)) {
        pthread_mutex_lock(&team->mutex);
        pthread_cond_broadcast(&team->published);
        pthread_mutex_unlock(&team->mutex);
    }
}

static void wait(struct team *team) {
    const int64_t until = now_ns() + team->looks_ns;
    while (atomic_load(&team->left) && now_ns() < until)
        for (int i = 0; i < 16; i++) pause_shortly();
    if (!atomic_load(&team->left)) return;
    pthread_mutex_lock(&team->mutex);
    atomic_store(&team->caller_sleeps, 1);
    while (atomic_load(&team->left)) pthread_cond_wait(&team->done, &team->mutex);
    atomic_store(&team->caller_sleeps, 0);
    pthread_mutex_unlock(&team->mutex);
}

/* Creates a team of `n_helpers` threads besides the caller, or returns NULL. It lives as long as the process. */
struct team *team_new(set_threads_t set_threads, int n_helpers, int64_t looks_ns) {
    struct team *team = aligned_alloc(64, sizeof *team);
    if (!team) return NULL;
    *team = (struct team){.set_threads = set_threads, .looks_ns = looks_ns, .busy = ATOMIC_FLAG_INIT};
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->published, NULL);
    pthread_cond_init(&team->done, NULL);
    for (int i = 0; i < n_helpers; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, team)) return NULL;
        pthread_detach(thread);
    }
    return team;
}

/* Runs stages and returns oneDNN's first non-zero status, after which no call begins. A stage of one chunk keeps the
   caller's number of OpenMP threads. If another thread uses the team, the caller runs all calls itself. */
int team_run(struct team *team, const struct stage *stages, int n) {
    int status = 0;
    if (atomic_flag_test_and_set(&team->busy)) {
        for (int i = 0; i < n; i++)
            for (int64_t j = 0; j < stages[i].n; j++)
                for (int64_t k = 0; k < stages[i].chunks[j].n && !status; k++) {
                    const struct call *call = stages[i].chunks[j].calls + k;
                    status = call->execute(call->primitive, call->stream, (int)call->n_arguments, call->arguments);
                }
        return status;
    }
    for (int i = 0; i < n; i++) {
        if (stages[i].n == 1) {
            run_chunk(team, stages[i].chunks);
        } else {
            team->set_threads(1);
            publish(team, stages + i);
            work(team);
            wait(team);
        }
    }
    status = atomic_exchange(&team->status, 0);
    atomic_flag_clear(&team->busy);
    return status;
}

/* Tells oneDNN where its arguments are for arrays at these addresses; returns its first non-zero status. */
int place(set_handle_t set_handle, const struct place *places, int n, char *const *addresses) {
    int status = 0;
    for (int i = 0; i < n && !status; i++)
        status = set_handle(places[i].memory, addresses[places[i].array] + places[i].offset);
    return status;
}

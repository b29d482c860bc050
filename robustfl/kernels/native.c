/* Column-wise kernels on a row-major stack x[n][d], in strips of columns that stay in the first-level cache.
 *
 * Every operation and its order is that of the torch code in order.py and moments.py; compiled without contraction to
 * fused multiply-add, so that the results are the same bit for bit. Included once per element type with T and NAME set.
 */
#ifndef T
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define STRIP 1024
#define MAX_THREADS 64
#define PARTS_PER_THREAD 4
#define NO_MEMORY 1
#define WILD 2
#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(base) JOIN(base, SUFFIX)

typedef struct {
    const void *x;
    ptrdiff_t stride, start, stop;
    int n;
    const int *table;
    int comparators;
    const int *kept;
    int kept_count;
    double divisor, bound;
    void *first, *second;
} job;

/* The columns in parts, taken one after another by whichever thread is free. */
typedef struct {
    int (*work)(const job *);
    job whole;
    ptrdiff_t d, part;
    atomic_int next, outcome;
} queue;

/* How an OpenMP runtime runs a function on all threads of its pool. */
typedef void (*team)(void (*)(void *), void *, unsigned, unsigned);

static void take_parts(void *given) {
    queue *q = given;
    for (;;) {
        job mine = q->whole;
        mine.start = atomic_fetch_add(&q->next, 1) * q->part;
        if (mine.start >= q->d) return;
        mine.stop = mine.start + q->part < q->d ? mine.start + q->part : q->d;
        atomic_fetch_or(&q->outcome, q->work(&mine));
    }
}

static void *take_parts_in_thread(void *given) {
    take_parts(given);
    return NULL;
}

/* With torch's own pool where it can be had: threads of ours would compete with its threads, which wait actively. */
static int spread(int (*work)(const job *), job whole, ptrdiff_t d, int threads, team pool) {
    pthread_t ids[MAX_THREADS];
    int started[MAX_THREADS] = {0};
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    int parts = threads > 1 ? threads * PARTS_PER_THREAD : 1;
    queue q = {.work = work, .whole = whole, .d = d, .part = (d / parts + STRIP) / STRIP * STRIP};
    if (threads > 1 && pool) {
        pool(take_parts, &q, (unsigned)threads, 0);
    } else {
        for (int t = 1; t < threads; t++) started[t] = pthread_create(&ids[t], NULL, take_parts_in_thread, &q) == 0;
        take_parts(&q);
        for (int t = 1; t < threads; t++)
            if (started[t]) pthread_join(ids[t], NULL);
    }
    return q.outcome;
}

#define T float
#define BITS uint32_t
#define SUFFIX f32
#include "native.c"
#undef T
#undef BITS
#undef SUFFIX
#define T double
#define BITS uint64_t
#define SUFFIX f64
#include "native.c"

#else

static int NAME(rank_mean_part)(const job *j) {
    const T *x = j->x;
    T *out = j->first;
    const T bound = (T)j->bound;
    BITS largest = 0, limit;
    memcpy(&limit, &bound, sizeof limit);
    /* Long strips suit the memory, short ones keep many rows in the first-level cache. */
    const int strip = j->n <= 12 ? STRIP : STRIP / 4;
    T *work = malloc(sizeof(T) * (size_t)strip * (size_t)j->n);
    if (!work) return NO_MEMORY;
    for (ptrdiff_t start = j->start; start < j->stop; start += strip) {
        int w = j->stop - start < strip ? (int)(j->stop - start) : strip;
        for (int i = 0; i < j->n; i++) {
            const T *restrict from = x + i * j->stride + start;
            T *restrict to = work + i * strip;
            for (int k = 0; k < w; k++) {
                /* Sizes compare like their bits without the sign, and NaN comes last; this costs less than floats. */
                BITS bits;
                memcpy(&bits, from + k, sizeof bits);
                memcpy(to + k, &bits, sizeof bits);
                bits &= (BITS)-1 >> 1;
                largest = bits > largest ? bits : largest;
            }
        }
        for (int c = 0; c < j->comparators; c++) {
            T *restrict a = work + j->table[3 * c] * strip;
            T *restrict b = work + j->table[3 * c + 1] * strip;
            switch (j->table[3 * c + 2]) {
            case 1:
                for (int k = 0; k < strip; k++) a[k] = a[k] < b[k] ? a[k] : b[k];
                break;
            case 2:
                for (int k = 0; k < strip; k++) b[k] = a[k] < b[k] ? b[k] : a[k];
                break;
            default:
                for (int k = 0; k < strip; k++) {
                    T u = a[k], v = b[k];
                    a[k] = u < v ? u : v;
                    b[k] = u < v ? v : u;
                }
            }
        }
        T *restrict total = work + j->kept[0] * strip;
        for (int i = 1; i < j->kept_count; i++) {
            const T *restrict row = work + j->kept[i] * strip;
            for (int k = 0; k < strip; k++) total[k] += row[k];
        }
        /* Adding zero makes -0 a +0: which of two equal zeros a comparator moves is nobody's business. */
        for (int k = 0; k < w; k++) out[start + k] = total[k] / (T)j->kept_count + (T)0;
    }
    free(work);
    return largest > limit ? WILD : 0;
}

int NAME(rank_mean)(const void *x, ptrdiff_t stride, int n, ptrdiff_t d, int threads, const int *table, int comparators,
                    const int *kept, int kept_count, void *out, double bound, team pool) {
    job whole = {.x = x, .stride = stride, .n = n, .table = table, .comparators = comparators, .kept = kept,
                 .kept_count = kept_count, .first = out, .bound = bound};
    return spread(NAME(rank_mean_part), whole, d, threads, pool);
}

static int NAME(mean_and_variance_part)(const job *j) {
    const T *x = j->x;
    T *mean = j->first, *variance = j->second;
    for (ptrdiff_t start = j->start; start < j->stop; start += STRIP) {
        int w = j->stop - start < STRIP ? (int)(j->stop - start) : STRIP;
        const T *first = x + start;
        T m[STRIP], total[STRIP];
        for (int k = 0; k < w; k++) m[k] = total[k] = 0;
        for (int i = 1; i < j->n; i++) {
            const T *row = x + i * j->stride + start;
            for (int k = 0; k < w; k++) m[k] += row[k] - first[k];
        }
        for (int k = 0; k < w; k++) m[k] = m[k] / (T)j->n + first[k];
        for (int i = 0; i < j->n; i++) {
            const T *row = x + i * j->stride + start;
            for (int k = 0; k < w; k++) {
                T difference = row[k] - m[k];
                total[k] += difference * difference;
            }
        }
        for (int k = 0; k < w; k++) {
            mean[start + k] = m[k];
            variance[start + k] = total[k] / (T)j->divisor;
        }
    }
    return 0;
}

int NAME(mean_and_variance)(const void *x, ptrdiff_t stride, int n, ptrdiff_t d, int threads, double divisor, void *mean,
                            void *variance, team pool) {
    job whole = {.x = x, .stride = stride, .n = n, .divisor = divisor, .first = mean, .second = variance};
    return spread(NAME(mean_and_variance_part), whole, d, threads, pool);
}

#endif

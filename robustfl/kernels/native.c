/* Column-wise kernels on a row-major stack x[n][d], in strips of columns that stay in the first-level cache.
 *
 * Every operation and its order is that of the torch code in order.py and moments.py; compiled without contraction to
 * fused multiply-add, so that the results are the same bit for bit. Included once per element type with T and NAME set.
 */
#ifndef T
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define STRIP 1024
#define MAX_THREADS 64
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
    double divisor;
    void *first, *second;
    int failed;
} job;

/* Split the columns over threads; the calling thread takes the first part. */
static int spread(void *(*work)(void *), job whole, ptrdiff_t d, int threads) {
    job jobs[MAX_THREADS];
    pthread_t ids[MAX_THREADS];
    int started[MAX_THREADS] = {0};
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    ptrdiff_t part = (d / threads + STRIP) / STRIP * STRIP;
    int failed = 0;
    for (int t = 0; t < threads; t++) {
        jobs[t] = whole;
        jobs[t].start = t * part < d ? t * part : d;
        jobs[t].stop = (t + 1) * part < d && t + 1 < threads ? (t + 1) * part : d;
        if (t > 0) started[t] = pthread_create(&ids[t], NULL, work, &jobs[t]) == 0;
    }
    for (int t = 0; t < threads; t++)
        if (!started[t]) work(&jobs[t]);
    for (int t = 0; t < threads; t++) {
        if (started[t]) pthread_join(ids[t], NULL);
        failed |= jobs[t].failed;
    }
    return failed;
}

#define T float
#define SUFFIX f32
#include "native.c"
#undef T
#undef SUFFIX
#define T double
#define SUFFIX f64
#include "native.c"

#else

static void *NAME(rank_mean_part)(void *given) {
    job *j = given;
    const T *x = j->x;
    T *out = j->first;
    /* Long strips suit the memory, short ones keep many rows in the first-level cache. */
    const int strip = j->n <= 12 ? STRIP : STRIP / 4;
    T *work = malloc(sizeof(T) * (size_t)strip * (size_t)j->n);
    if (!work) {
        j->failed = 1;
        return NULL;
    }
    for (ptrdiff_t start = j->start; start < j->stop; start += strip) {
        int w = j->stop - start < strip ? (int)(j->stop - start) : strip;
        for (int i = 0; i < j->n; i++) memcpy(work + i * strip, x + i * j->stride + start, sizeof(T) * (size_t)w);
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
    return NULL;
}

int NAME(rank_mean)(const void *x, ptrdiff_t stride, int n, ptrdiff_t d, int threads, const int *table, int comparators,
                    const int *kept, int kept_count, void *out) {
    job whole = {.x = x, .stride = stride, .n = n, .table = table, .comparators = comparators, .kept = kept,
                 .kept_count = kept_count, .first = out};
    return spread(NAME(rank_mean_part), whole, d, threads);
}

static void *NAME(mean_and_variance_part)(void *given) {
    job *j = given;
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
    return NULL;
}

int NAME(mean_and_variance)(const void *x, ptrdiff_t stride, int n, ptrdiff_t d, int threads, double divisor, void *mean,
                            void *variance) {
    job whole = {.x = x, .stride = stride, .n = n, .divisor = divisor, .first = mean, .second = variance};
    return spread(NAME(mean_and_variance_part), whole, d, threads);
}

#endif

// Softmax, its loss and accuracy. A row is one position: its C scores stand `stride` apart.
//
// One warp works on a row; labels are floats, one a row. X_T, Y_T, ...: element types, by argument
// (P: probability). WEIGHTS: of the classes, by which losses are multiplied, if there are any.
// IGNORE: the label of rows that do not count, if there is one.

#define ROW_LOOP \
    int lane = threadIdx.x & 31; \
    int64_t warp = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5; \
    int64_t warps = ((int64_t)gridDim.x * blockDim.x) >> 5; \
    for (int64_t row = warp; row < rows; row += warps)

#ifdef WEIGHTS
__device__ const float class_weights[] = {WEIGHTS};
#define WEIGH(value, label) ((value) * class_weights[label])
#else
#define WEIGH(value, label) (value)
#endif

#ifdef IGNORE
#define IGNORED(label) ((label) == IGNORE)
#else
#define IGNORED(label) false
#endif

// The first score of a row: rows of inner positions are interleaved.
#define BASE (row / stride * stride * c + row % stride)

// A warp writes the softmax of a row. most: the greatest score; returns the sum of the exponentials
// of what they are less.
template <typename X, typename Y>
__device__ __forceinline__ float softmax_row(const X* from, Y* to, int c, int64_t stride, int lane,
                                             float& most) {
    float sum = 0;
    most = -INFINITY;
    for (int i = lane; i < c; i += 32) most = fmaxf(most, to_float(from[i * stride]));
    most = warp_max(most);
    for (int i = lane; i < c; i += 32) sum += expf(to_float(from[i * stride]) - most);
    sum = warp_sum(sum);
    float scale = 1 / sum;
    for (int i = lane; i < c; i += 32)
        to[i * stride] = from_float<Y>(expf(to_float(from[i * stride]) - most) * scale);
    return sum;
}

#if defined(X_T) && defined(Y_T)
extern "C" __global__ void softmax(const X_T* x, Y_T* y, int64_t rows, int c, int64_t stride) {
    PDL_BEGIN;
    float most;
    ROW_LOOP softmax_row(x + BASE, y + BASE, c, stride, lane, most);
}
#endif

#ifdef DX_T
#ifdef X_T
// x: the probabilities y.
extern "C" __global__ void softmax_backward(const X_T* y, const Y_T* dy, DX_T* dx, int64_t rows,
                                            int c, int64_t stride) {
    PDL_BEGIN;
    ROW_LOOP {
        int64_t base = BASE;
        float dot = 0;
        for (int i = lane; i < c; i += 32)
            dot += to_float(y[base + i * stride]) * to_float(dy[base + i * stride]);
        dot = warp_sum(dot);
        for (int i = lane; i < c; i += 32) {
            int64_t at = base + i * stride;
            dx[at] = from_float<DX_T>(to_float(y[at]) * (to_float(dy[at]) - dot));
        }
    }
}
#endif

#ifdef P_T
extern "C" __global__ void softmax_loss_backward(const P_T* probability, const float* label,
                                                 const float* dloss, const float* counted,
                                                 float scale, DX_T* dx, int64_t rows, int c,
                                                 int64_t stride) {
    PDL_BEGIN;
    float factor = *dloss * (counted ? 1 / *counted : scale);
    FOR_EACH(rows * c) {
        int64_t inner = id % stride, outer = id / stride / c;
        int channel = id / stride % c;
        int target = whole_number(label[outer * stride + inner]);
        bool counts = target >= 0 && target < c && !IGNORED(target);
        float value = (to_float(probability[id]) - (channel == target)) * factor;
        if (counts) value = WEIGH(value, target);
        dx[id] = from_float<DX_T>(IGNORED(target) ? 0.0f : value);
    }
}
#endif
#endif

// The mean, from what each thread of the block has summed and how many terms these were. fixed: what
// to divide by, or 0 for the number of terms, at least 1.
__device__ __forceinline__ void put_mean(float sum, float count, float* mean, float fixed) {
    sum = block_sum(sum);
    count = block_sum(count);
    if (threadIdx.x == 0) *mean = sum / fmaxf(fixed > 0 ? fixed : count, 1.0f);
}

// A block for each element of y: the mean of the notes that are not -1, of all rows (label is null) or
// of one class.
extern "C" __global__ void mean_of_rows(const float* note, const float* label, float* y, int64_t rows,
                                      float fixed) {
    PDL_BEGIN;
    float sum = 0, count = 0;
    for (int64_t row = threadIdx.x; row < rows; row += blockDim.x)
        if (note[row] != -1 && (!label || whole_number(label[row]) == blockIdx.x))
            sum += note[row], count += 1;
    put_mean(sum, count, y + blockIdx.x, fixed);
}

#if defined(X_T) && defined(P_T)
// note (rows): the loss of each row, or -1 where the label is ignored.
extern "C" __global__ void softmax_losses(const X_T* x, const float* label, P_T* probability,
                                          float* note, int64_t rows, int c, int64_t stride) {
    PDL_BEGIN;
    ROW_LOOP {
        const X_T* from = x + BASE;
        float most, sum = softmax_row(from, probability + BASE, c, stride, lane, most);
        if (lane == 0) {
            int target = whole_number(label[row]);
            float value = -1;
            // log softmax = score - most - log(sum)
            if (!IGNORED(target))
                value = target < 0 || target >= c
                    ? NAN
                    : WEIGH(bounded_loss(logf(sum) + most - to_float(from[target * stride])), target);
            note[row] = value;
        }
    }
}

// The same for few rows of few scores (SCORES of them), and the loss with it, by one block with a
// thread for each row.
#ifdef SCORES
extern "C" __global__ void softmax_loss(const X_T* x, const float* label, P_T* probability,
                                        float* loss, float fixed, int64_t rows, int64_t distance) {
    PDL_BEGIN;
    int row = threadIdx.x, stride = distance;
    float total = 0, count = 0;
    if (row < rows) {
        int base = row / stride * stride * SCORES + row % stride, target = whole_number(label[row]);
        float score[SCORES], most = -INFINITY, sum = 0, hit = NAN;
#pragma unroll
        for (int i = 0; i < SCORES; ++i) score[i] = to_float(x[base + i * stride]);
#pragma unroll
        for (int i = 0; i < SCORES; ++i) {
            most = fmaxf(most, score[i]);
            if (i == target) hit = score[i];
        }
#pragma unroll
        for (int i = 0; i < SCORES; ++i) sum += score[i] = expf(score[i] - most);
        float scale = 1 / sum;
#pragma unroll
        for (int i = 0; i < SCORES; ++i)
            probability[base + i * stride] = from_float<P_T>(score[i] * scale);
        if (!IGNORED(target))
            total = bounded_loss(logf(sum) + most - hit), count = 1;
        if (target >= 0 && target < SCORES) total = WEIGH(total, target);
    }
    put_mean(total, count, loss, fixed);
}
#endif
#endif

// How many labels count, at least 1. One block.
extern "C" __global__ void count_labels(const float* label, float* counted, int64_t rows) {
    PDL_BEGIN;
    float count = 0;
    for (int64_t row = threadIdx.x; row < rows; row += blockDim.x)
        count += !IGNORED(whole_number(label[row]));
    count = block_sum(count);
    if (threadIdx.x == 0) *counted = fmaxf(count, 1.0f);
}

#ifdef X_T
// note: 1 where the label is among the top k, 0 where not, NaN where its score is, -1 where ignored.
extern "C" __global__ void accuracy(const X_T* x, const float* label, float* note, int64_t rows,
                                    int c, int64_t stride, int top_k) {
    PDL_BEGIN;
    ROW_LOOP {
        const X_T* from = x + BASE;
        int target = whole_number(label[row]);
        bool skip = IGNORED(target);
        bool there = target >= 0 && target < c;
        float score = !skip && there ? to_float(from[target * stride]) : INFINITY;
        float above = 0;
        for (int i = lane; i < c; i += 32)
            above += i != target && to_float(from[i * stride]) >= score;
        above = warp_sum(above);
        float hit = score == score ? (float)(there && above < top_k) : NAN;
        if (lane == 0) note[row] = skip ? -1.0f : hit;
    }
}
#endif

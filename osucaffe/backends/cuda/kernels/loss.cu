// Owns softmax, its loss and accuracy. A row is one position: its C scores stand `step` apart.
//
// T: element type of the scores. One warp works on a row; labels are floats, one a row.

#define ROW_LOOP \
    int lane = threadIdx.x & 31; \
    int64_t warp = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5; \
    int64_t warps = ((int64_t)gridDim.x * blockDim.x) >> 5; \
    for (int64_t row = warp; row < rows; row += warps)

// The first score of a row: rows of inner positions are interleaved.
#define BASE (row / step * step * c + row % step)

extern "C" __global__ void softmax(const T* x, T* y, int64_t rows, int c, int64_t step) {
    ROW_LOOP {
        const T* from = x + BASE;
        float most = -INFINITY, sum = 0;
        for (int i = lane; i < c; i += 32) most = fmaxf(most, to_float(from[i * step]));
        most = warp_max(most);
        for (int i = lane; i < c; i += 32) sum += expf(to_float(from[i * step]) - most);
        float scale = 1 / warp_sum(sum);
        for (int i = lane; i < c; i += 32)
            y[BASE + i * step] = from_float<T>(expf(to_float(from[i * step]) - most) * scale);
    }
}

extern "C" __global__ void softmax_backward(const T* y, const T* dy, T* dx, int64_t rows, int c,
                                            int64_t step) {
    ROW_LOOP {
        int64_t base = BASE;
        float dot = 0;
        for (int i = lane; i < c; i += 32)
            dot += to_float(y[base + i * step]) * to_float(dy[base + i * step]);
        dot = warp_sum(dot);
        for (int i = lane; i < c; i += 32) {
            int64_t at = base + i * step;
            dx[at] = from_float<T>(to_float(y[at]) * (to_float(dy[at]) - dot));
        }
    }
}

// probability: float32. note (rows): the loss of each row, or -1 where the label is ignored.
extern "C" __global__ void softmax_loss(const T* x, const float* label, float* probability,
                                        float* note, int64_t rows, int c, int64_t step, int ignore,
                                        int has_ignore) {
    ROW_LOOP {
        const T* from = x + BASE;
        float most = -INFINITY, sum = 0;
        for (int i = lane; i < c; i += 32) most = fmaxf(most, to_float(from[i * step]));
        most = warp_max(most);
        for (int i = lane; i < c; i += 32) sum += expf(to_float(from[i * step]) - most);
        sum = warp_sum(sum);
        float scale = 1 / sum;
        for (int i = lane; i < c; i += 32)
            probability[BASE + i * step] = expf(to_float(from[i * step]) - most) * scale;
        if (lane == 0) {
            int wanted = (int)label[row];
            float loss = -1;
            if (!(has_ignore && wanted == ignore)) {
                loss = wanted < 0 || wanted >= c
                    ? NAN : fminf(logf(sum) + most - to_float(from[wanted * step]), -logf(1.17549435e-38f));
            }
            note[row] = loss;
        }
    }
}

// The loss from the rows' losses, and 1 / normalizer. One block. fixed: the normalizer, or 0 for
// the number of rows that count.
extern "C" __global__ void sum_losses(const float* note, float* loss, float* scale, int64_t rows,
                                      float fixed) {
    float sum = 0, count = 0;
    for (int64_t row = threadIdx.x; row < rows; row += blockDim.x)
        if (note[row] != -1) sum += note[row], count += 1;
    sum = block_sum(sum);
    count = block_sum(count);
    if (threadIdx.x == 0) {
        float normalizer = fmaxf(fixed > 0 ? fixed : count, 1.0f);
        *loss = sum / normalizer;
        *scale = 1 / normalizer;
    }
}

extern "C" __global__ void softmax_loss_backward(const float* probability, const float* label,
                                                 const float* dloss, const float* scale, T* dx,
                                                 int64_t rows, int c, int64_t step, int ignore,
                                                 int has_ignore) {
    float factor = *dloss * *scale;
    for (int64_t id = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; id < rows * c;
         id += (int64_t)gridDim.x * blockDim.x) {
        int64_t inner = id % step, outer = id / step / c;
        int channel = id / step % c;
        int wanted = (int)label[outer * step + inner];
        float value = (probability[id] - (channel == wanted)) * factor;
        dx[id] = from_float<T>(has_ignore && wanted == ignore ? 0.0f : value);
    }
}

// note: 1 where the label is among the top k, 0 where not, -1 where ignored.
extern "C" __global__ void accuracy(const T* x, const float* label, float* note, int64_t rows,
                                    int c, int64_t step, int top_k, int ignore, int has_ignore) {
    ROW_LOOP {
        const T* from = x + BASE;
        int wanted = (int)label[row];
        bool skip = has_ignore && wanted == ignore;
        float score = !skip && wanted >= 0 && wanted < c ? to_float(from[wanted * step]) : NAN;
        float above = 0;
        for (int i = lane; i < c; i += 32)
            above += i != wanted && to_float(from[i * step]) >= score;
        above = warp_sum(above);
        if (lane == 0) note[row] = skip ? -1.0f : (float)(above < top_k && score == score);
    }
}

// One block: the mean of the notes that count, over all rows (class -1) or those of one class.
extern "C" __global__ void mean_notes(const float* note, const float* label, float* y, int64_t rows,
                                      int by_class) {
    float sum = 0, count = 0;
    for (int64_t row = threadIdx.x; row < rows; row += blockDim.x)
        if (note[row] >= 0 && (!by_class || (int)label[row] == blockIdx.x))
            sum += note[row], count += 1;
    sum = block_sum(sum);
    count = block_sum(count);
    if (threadIdx.x == 0) y[blockIdx.x] = count > 0 ? sum / count : 0.0f;
}

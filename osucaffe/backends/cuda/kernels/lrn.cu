// Owns local response normalization of NHWC tensors, across channels and within a channel.
//
// T: element type; SIZE: neighbours; RELU: 1 where the backward of the ReLU that made x is fused
// (dx is zero where x <= 0).

// s^-beta; the exponent of nearly all nets is 3/4, for which two square roots do.
__device__ __forceinline__ float power(float s, float beta) {
    return beta == 0.75f ? rsqrtf(s) * rsqrtf(sqrtf(s)) : __powf(s, -beta);
}

// Across channels: a block holds PIXELS rows of C channels in shared memory, with SIZE / 2 zeros
// on both sides of each row.
#define PAD (SIZE / 2)

extern "C" __global__ void lrn(const T* x, T* y, int64_t pixels, int c, int rows,
                               float alpha, float beta, float k) {
    extern __shared__ float shared[];
    int width = c + 2 * PAD;
    int64_t first = blockIdx.x * (int64_t)rows;
    for (int i = threadIdx.x; i < rows * width; i += blockDim.x) {
        int64_t pixel = first + i / width;
        int channel = i % width - PAD;
        bool inside = channel >= 0 && channel < c && pixel < pixels;
        shared[i] = inside ? to_float(x[pixel * c + channel]) : 0.0f;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * c; i += blockDim.x) {
        int64_t pixel = first + i / c;
        if (pixel >= pixels) break;
        const float* row = shared + i / c * width + i % c;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < SIZE; ++j) sum += row[j] * row[j];
        y[first * c + i] = from_float<T>(row[PAD] * power(k + alpha / SIZE * sum, beta));
    }
}

// dx = dy s^-b - 2 alpha b / n x sum over neighbours of (dy x s^(-b-1)).
extern "C" __global__ void lrn_backward(const T* x, const T* dy, T* dx, int64_t pixels, int c,
                                        int rows, float alpha, float beta, float k) {
    extern __shared__ float shared[];
    int width = c + 2 * PAD;
    float* xs = shared;
    float* ratio = xs + rows * width;
    float* direct = ratio + rows * width;
    int64_t first = blockIdx.x * (int64_t)rows;
    for (int i = threadIdx.x; i < rows * width; i += blockDim.x) {
        int64_t pixel = first + i / width;
        int channel = i % width - PAD;
        bool inside = channel >= 0 && channel < c && pixel < pixels;
        xs[i] = inside ? to_float(x[pixel * c + channel]) : 0.0f;
        ratio[i] = 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * c; i += blockDim.x) {
        int64_t pixel = first + i / c;
        if (pixel >= pixels) break;
        int at = i / c * width + i % c;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < SIZE; ++j) sum += xs[at + j] * xs[at + j];
        float s = k + alpha / SIZE * sum;
        float scaled = to_float(dy[first * c + i]) * power(s, beta);
        direct[i] = scaled;
        ratio[at + PAD] = scaled * xs[at + PAD] / s;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < rows * c; i += blockDim.x) {
        int64_t pixel = first + i / c;
        if (pixel >= pixels) break;
        int at = i / c * width + i % c;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < SIZE; ++j) sum += ratio[at + j];
        float value = xs[at + PAD];
        float result = direct[i] - 2 * alpha * beta / SIZE * value * sum;
        dx[first * c + i] = from_float<T>(RELU && !(value > 0) ? 0.0f : result);
    }
}

// Within a channel: s = 1 + alpha * mean of x^2 over a SIZE x SIZE window, zeros outside.
#define WINDOW(body) \
    for (int dh = -PAD; dh <= PAD; ++dh) \
        for (int dw = -PAD; dw <= PAD; ++dw) { \
            if (h + dh < 0 || h + dh >= height || w + dw < 0 || w + dw >= width) continue; \
            int64_t at = id + ((int64_t)dh * width + dw) * c; \
            body; \
        }

extern "C" __global__ void lrn_within(const T* x, T* y, float* note, int64_t count, int height,
                                      int width, int c, float alpha, float beta) {
    FOR_EACH(count) {
        int w = id / c % width, h = id / c / width % height;
        float sum = 0;
        WINDOW(float v = to_float(x[at]); sum += v * v)
        float s = 1 + alpha / (SIZE * SIZE) * sum;
        note[id] = s;
        y[id] = from_float<T>(to_float(x[id]) * power(s, beta));
    }
}

extern "C" __global__ void lrn_within_backward(const T* x, const T* dy, const float* note, T* dx,
                                               int64_t count, int height, int width, int c,
                                               float alpha, float beta) {
    FOR_EACH(count) {
        int w = id / c % width, h = id / c / width % height;
        float sum = 0, value = to_float(x[id]);
        WINDOW(sum += to_float(dy[at]) * to_float(x[at]) * power(note[at], beta) / note[at])
        float result = to_float(dy[id]) * power(note[id], beta)
                     - 2 * alpha * beta / (SIZE * SIZE) * value * sum;
        dx[id] = from_float<T>(RELU && !(value > 0) ? 0.0f : result);
    }
}

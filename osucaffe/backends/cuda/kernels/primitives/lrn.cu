// Local response normalization of NHWC tensors, across channels and within a channel.
//
// T: element type; SIZE: neighbours; RELU: 1 where the backward of the ReLU that made x is fused
// (dx is zero where x <= 0).

// s^-beta; the exponent of nearly all nets is 3/4, for which two square roots do.
__device__ __forceinline__ float power(float s, float beta) {
    if (beta != 0.75f) return __powf(s, -beta);
    float root = rsqrtf(s), half;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(half) : "f"(root));
    return root * half;
}

#define PAD (SIZE / 2)

#ifdef GROUPS
// Across channels, VEC channels a thread, GROUPS threads a pixel: neighbours come from the vectors
// on either side of its own. Windows are summed in the order of the channels.
template <int N> __device__ __forceinline__ void load_around(const T* x, int64_t id, float (&to)[N]) {
    const int around = (N - VEC) / 2;
    int group = (uint32_t)id % GROUPS;
    float side[VEC];
    for (int i = 0; i < N; ++i) to[i] = 0;
    load<T, VEC>(x + id * VEC, side);
#pragma unroll
    for (int i = 0; i < VEC; ++i) to[around + i] = side[i];
#pragma unroll
    for (int away = 1; (away - 1) * VEC < around; ++away) {
        if (group >= away) {
            load<T, VEC>(x + (id - away) * VEC, side);
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                if (around - away * VEC + i >= 0) to[around - away * VEC + i] = side[i];
        }
        if (group < GROUPS - away) {
            load<T, VEC>(x + (id + away) * VEC, side);
#pragma unroll
            for (int i = 0; i < VEC; ++i)
                if (around + away * VEC + i < N) to[around + away * VEC + i] = side[i];
        }
    }
}

extern "C" __global__ void lrn_across(const T* x, T* y, int64_t count, float alpha, float beta,
                                      float k) {
    PDL_BEGIN;
    FOR_EACH(count) {
        float v[VEC + 2 * PAD], out[VEC];
        load_around(x, id, v);
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            float sum = 0;
#pragma unroll
            for (int j = 0; j < SIZE; ++j) sum += v[i + j] * v[i + j];
            out[i] = v[i + PAD] * power(k + alpha / SIZE * sum, beta);
        }
        store<T, VEC>(y + id * VEC, out);
    }
}

// dx = dy s^-b - 2 alpha b / n x sum over neighbours of (dy x s^(-b-1)).
extern "C" __global__ void lrn_across_backward(const T* x, const T* dy, T* dx, int64_t count,
                                               float alpha, float beta, float k) {
    PDL_BEGIN;
    FOR_EACH(count) {
        float v[VEC + 4 * PAD], d[VEC + 2 * PAD], direct[VEC], ratio[VEC + 2 * PAD];
        load_around(x, id, v);
        load_around(dy, id, d);
#pragma unroll
        for (int i = 0; i < VEC + 2 * PAD; ++i) {
            float sum = 0;
#pragma unroll
            for (int j = 0; j < SIZE; ++j) sum += v[i + j] * v[i + j];
            float s = k + alpha / SIZE * sum;
            float scaled = d[i] * power(s, beta);
            ratio[i] = __fdividef(scaled * v[i + PAD], s);
            if (i >= PAD && i < VEC + PAD) direct[i - PAD] = scaled;
        }
        float out[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            float sum = 0, value = v[i + 2 * PAD];
#pragma unroll
            for (int j = 0; j < SIZE; ++j) sum += ratio[i + j];
            out[i] = direct[i] - 2 * alpha * beta / SIZE * value * sum;
            if (RELU) out[i] = relu_backward(out[i], value);
        }
        store<T, VEC>(dx + id * VEC, out);
    }
}
#endif

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
    PDL_BEGIN;
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
    PDL_BEGIN;
    FOR_EACH(count) {
        int w = id / c % width, h = id / c / width % height;
        float sum = 0, value = to_float(x[id]);
        WINDOW(sum += to_float(dy[at]) * to_float(x[at]) * power(note[at], beta) / note[at])
        float result = to_float(dy[id]) * power(note[id], beta)
                     - 2 * alpha * beta / (SIZE * SIZE) * value * sum;
        dx[id] = from_float<T>(RELU ? relu_backward(result, value) : result);
    }
}

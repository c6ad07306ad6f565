// Owns convolution of each channel by a filter of its own, on images with the channels last.
//
// T: element type; VEC: channels a thread (a divisor of C); C H W OH OW: channels and extents of the
// image and of the maps; KH KW SH SW PH PW DH DW: kernel, stride, padding, dilation. A block has
// LANES x ROWS threads: LANES vectors of neighbouring channels, whose filters it keeps in shared
// memory, and ROWS pixels at a time. w: filters (C, KH, KW), of type T.

#define TAPS (KH * KW)
#define OWN (LANES * VEC)

// The filters of the block's channels, as floats [TAPS][OWN].
__device__ __forceinline__ void load_filters(const T* w, float* filters, int first) {
    for (int i = threadIdx.y * LANES + threadIdx.x; i < OWN * TAPS; i += LANES * ROWS) {
        int channel = first + i / TAPS;
        filters[i % TAPS * OWN + i / TAPS] = channel < C ? to_float(w[channel * TAPS + i % TAPS]) : 0.0f;
    }
    __syncthreads();
}

// y = x correlated with w, plus b (may be null), then y or slope * y where it is not positive.
extern "C" __global__ void depthwise(const T* x, const T* w, const float* b, T* y, int64_t pixels,
                                     float slope) {
    PDL_BEGIN;
    extern __shared__ float shared[];
    int first = blockIdx.y * OWN, channel = first + threadIdx.x * VEC;
    load_filters(w, shared, first);
    if (channel >= C) return;
    for (int64_t pixel = blockIdx.x * (int64_t)ROWS + threadIdx.y; pixel < pixels;
         pixel += gridDim.x * (int64_t)ROWS) {
        int ow = (uint32_t)pixel % OW, oh = (uint32_t)pixel / OW % OH;
        int64_t image = (uint32_t)pixel / (OW * OH) * (int64_t)(H * W);
        float sum[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] = b ? b[channel + i] : 0.0f;
#pragma unroll
        for (int kh = 0; kh < KH; ++kh) {
            int h = oh * SH - PH + kh * DH;
            if ((unsigned)h >= H) continue;
#pragma unroll
            for (int kw = 0; kw < KW; ++kw) {
                int column = ow * SW - PW + kw * DW;
                if ((unsigned)column >= W) continue;
                float v[VEC];
                load<T, VEC>(x + (image + h * W + column) * C + channel, v);
                const float* filter = shared + (kh * KW + kw) * OWN + threadIdx.x * VEC;
#pragma unroll
                for (int i = 0; i < VEC; ++i) sum[i] += v[i] * filter[i];
            }
        }
#pragma unroll
        for (int i = 0; i < VEC; ++i) sum[i] = relu(sum[i], slope);
        store<T, VEC>(y + pixel * C + channel, sum);
    }
}

// dx = the gradient to x. relu_output (may be null): lies as dx; where it is not positive, dx is 0.
extern "C" __global__ void depthwise_data(const T* dy, const T* w, const T* relu_output, T* dx,
                                          int64_t pixels) {
    PDL_BEGIN;
    extern __shared__ float shared[];
    int first = blockIdx.y * OWN, channel = first + threadIdx.x * VEC;
    load_filters(w, shared, first);
    if (channel >= C) return;
    for (int64_t pixel = blockIdx.x * (int64_t)ROWS + threadIdx.y; pixel < pixels;
         pixel += gridDim.x * (int64_t)ROWS) {
        int column = (uint32_t)pixel % W, row = (uint32_t)pixel / W % H;
        int64_t image = (uint32_t)pixel / (W * H) * (int64_t)(OH * OW);
        float sum[VEC] = {};
#pragma unroll
        for (int kh = 0; kh < KH; ++kh) {
            int h = row + PH - kh * DH;
            if (h < 0 || h % SH || h / SH >= OH) continue;
#pragma unroll
            for (int kw = 0; kw < KW; ++kw) {
                int across = column + PW - kw * DW;
                if (across < 0 || across % SW || across / SW >= OW) continue;
                float v[VEC];
                load<T, VEC>(dy + (image + h / SH * OW + across / SW) * C + channel, v);
                const float* filter = shared + (kh * KW + kw) * OWN + threadIdx.x * VEC;
#pragma unroll
                for (int i = 0; i < VEC; ++i) sum[i] += v[i] * filter[i];
            }
        }
        if (relu_output) {
            float v[VEC];
            load<T, VEC>(relu_output + pixel * C + channel, v);
#pragma unroll
            for (int i = 0; i < VEC; ++i) sum[i] = behind_relu(sum[i], v[i]);
        }
        store<T, VEC>(dx + pixel * C + channel, sum);
    }
}

// Owns what goes around a convolution, on images with the channels last.
//
// T: element type; VEC: elements that a thread treats at once, a divisor of the channels.

// y = y + b, then y or slope * y where it is not positive. groups: vectors in the channels.
extern "C" __global__ void add_bias(T* y, const float* b, int64_t count, int groups, float slope) {
    FOR_EACH(count) {
        float v[VEC];
        load<T, VEC>(y + id * VEC, v);
        int channel = id % groups * VEC;
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            float value = v[i] + (b ? b[channel + i] : 0.0f);
            v[i] = value > 0 ? value : slope * value;
        }
        store<T, VEC>(y + id * VEC, v);
    }
}

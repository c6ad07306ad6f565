// The picking of elements, in row-major float32 tensors.

#ifdef INDEX
// y (picks, inner) = rows of x (rows, inner); NaN where the index is out of range. INDEX: its type.
extern "C" __global__ void gather(const float* x, const INDEX* index, float* y, int rows, int picks,
                                  int64_t inner) {
    PDL_BEGIN;
    FOR_EACH(picks * inner) {
        int row = whole_number(index[id / inner]);
        y[id] = row >= 0 && row < rows ? x[row * inner + id % inner] : NAN;
    }
}
#endif

// A block for each row of dx, which adds what was picked from it, in order: no atomics, the same bits
// each time. The block looks at blockDim.x picks at a time: a bit of a warp's word for each.
extern "C" __global__ void gather_backward(const float* dy, const float* index, float* dx, int rows,
                                           int picks, int64_t inner, int accumulate) {
    PDL_BEGIN;
    __shared__ unsigned matches[32];
    int row = blockIdx.x;
    if (row >= rows) return;
    float* sums = dx + row * inner;
    if (!accumulate)
        for (int64_t i = threadIdx.x; i < inner; i += blockDim.x) sums[i] = 0;
    for (int first = 0; first < picks; first += blockDim.x) {
        int pick = first + threadIdx.x;
        bool match = pick < picks && whole_number(index[pick]) == row;
        unsigned word = __ballot_sync(0xffffffff, match);
        if ((threadIdx.x & 31) == 0) matches[threadIdx.x >> 5] = word;
        if (!__syncthreads_or(match)) continue;
        for (int64_t i = threadIdx.x; i < inner; i += blockDim.x) {
            float sum = sums[i];
            for (int warp = 0; warp < blockDim.x >> 5; ++warp)
                for (unsigned left = matches[warp]; left; left &= left - 1)
                    sum += dy[(first + warp * 32 + __ffs(left) - 1) * inner + i];
            sums[i] = sum;
        }
        __syncthreads();
    }
}

// An element's rank is the number of those before it: larger ones, and equal ones that come later. NaN
// is larger than all others.
extern "C" __global__ void top_k(const float* x, float* index, float* value, int64_t count,
                                 int length, int k, int64_t step) {
    PDL_BEGIN;
    FOR_EACH(count) {
        int64_t inner = id % step, outer = id / step / length;
        int place = id / step % length;
        const float* row = x + outer * length * step + inner;
        float own = x[id];
        int rank = 0;
        for (int i = 0; i < length; ++i) {
            float other = row[i * step];
            bool larger = other > own || (other != other && own == own);
            bool equal = other == own || (other != other && own != own);
            rank += larger || (equal && i > place);
        }
        if (rank >= k) continue;
        int64_t to = (outer * k + rank) * step + inner;
        if (index) index[to] = place;
        if (value) value[to] = own;
    }
}

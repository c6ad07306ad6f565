// Boxes: their geometry, their codes against priors, and how a block picks some of many.
//
// CODING: 1 CORNER, 2 CENTER_SIZE, 3 CORNER_SIZE. SCALED: whether variances are in the codes.

struct Box { float xmin, ymin, xmax, ymax; };

__device__ __forceinline__ Box load_box(const float* at) { return {at[0], at[1], at[2], at[3]}; }

__device__ __forceinline__ float area(Box b) {
    float width = b.xmax - b.xmin, height = b.ymax - b.ymin;
    return width < 0 || height < 0 ? 0.0f : width * height;
}

__device__ __forceinline__ float box_iou(Box a, Box b) {
    float width = fminf(a.xmax, b.xmax) - fmaxf(a.xmin, b.xmin);
    float height = fminf(a.ymax, b.ymax) - fmaxf(a.ymin, b.ymin);
    if (!(width > 0 && height > 0)) return 0;
    float inside = width * height;
    return inside / (area(a) + area(b) - inside);
}

__device__ __forceinline__ bool beyond_image(Box b) {
    return b.xmin < 0 || b.xmin > 1 || b.ymin < 0 || b.ymin > 1 || b.xmax < 0 || b.xmax > 1 ||
           b.ymax < 0 || b.ymax > 1;
}

#ifdef CODING
// The box of a code, whose prior's variances follow.
__device__ __forceinline__ Box decode(const float* code, const float* prior, const float* variance) {
    float c[4], width = prior[2] - prior[0], height = prior[3] - prior[1];
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = SCALED ? code[i] * variance[i] : code[i];
    if (CODING == 1) return {prior[0] + c[0], prior[1] + c[1], prior[2] + c[2], prior[3] + c[3]};
    if (CODING == 3)
        return {prior[0] + c[0] * width, prior[1] + c[1] * height, prior[2] + c[2] * width,
                prior[3] + c[3] * height};
    float x = c[0] * width + (prior[0] + prior[2]) / 2, y = c[1] * height + (prior[1] + prior[3]) / 2;
    float half = expf(c[2]) * width / 2, tall = expf(c[3]) * height / 2;
    return {x - half, y - tall, x + half, y + tall};
}

// The code of a box, without variances.
__device__ __forceinline__ void encode(const float* box, const float* prior, float (&code)[4]) {
    float sides[2] = {prior[2] - prior[0], prior[3] - prior[1]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (CODING == 2 && i < 2)
            code[i] = ((box[i] + box[i + 2]) / 2 - (prior[i] + prior[i + 2]) / 2) / sides[i];
        else if (CODING == 2)
            code[i] = logf((box[i] - box[i - 2]) / sides[i - 2]);
        else
            code[i] = (box[i] - prior[i]) / (CODING == 3 ? sides[i & 1] : 1.0f);
    }
}
#endif

// How many threads of the block before this one have the flag set. All of them call it; total: how
// many have it at all.
__device__ __forceinline__ int block_rank(bool flag, int& total) {
    __shared__ int counts[32];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    unsigned set = __ballot_sync(0xffffffff, flag);
    __syncthreads();
    if (lane == 0) counts[warp] = __popc(set);
    __syncthreads();
    int warps = (blockDim.x + 31) >> 5, before = 0;
    total = 0;
    for (int i = 0; i < warps; ++i) {
        before += i < warp ? counts[i] : 0;
        total += counts[i];
    }
    return before + __popc(set & ((1u << lane) - 1));
}

// A number of 32 bits that grows as a float does.
__device__ __forceinline__ uint32_t ordered_bits(float x) {
    uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

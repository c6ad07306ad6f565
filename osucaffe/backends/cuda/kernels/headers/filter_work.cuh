// How the gradients of filters are divided among blocks: (tiles of outputs, parts of the channels,
// parts of the kernel, groups) x shares of the stages, for wgrad_16bit.cu and wgrad_tf32.cu.

#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define ACROSS ((OW + WIDE - 1) / WIDE)
#define STAGES_IMAGE ((OH + ROWS - 1) / ROWS * ACROSS)
#define PARTS_C ((CG + BLOCK_C - 1) / BLOCK_C)
#define PARTS_O ((OG + OUTPUTS - 1) / OUTPUTS)
#define PARTS_K (KH / KROWS)
#define BIAS_OWNERS (PARTS_C * PARTS_K)

// A block's work: its first output, channel, row of the kernel, its group, its stages, and its turn
// among the blocks that have the same dy.
struct Work { int output, channel, row, group, first, count, bias_owner; };
__device__ __forceinline__ Work work() {
    int at = blockIdx.x, all = BATCH * STAGES_IMAGE;
    Work w;
    w.output = at % PARTS_O * OUTPUTS, at /= PARTS_O;
    w.bias_owner = at % BIAS_OWNERS;
    w.channel = at % PARTS_C * BLOCK_C, at /= PARTS_C;
    w.row = at % PARTS_K * KROWS, w.group = at / PARTS_K;
    w.first = (int64_t)all * blockIdx.y / gridDim.y;
    w.count = (int64_t)all * (blockIdx.y + 1) / gridDim.y - w.first;
    return w;
}

// Whether a stage is an image's last.
__device__ __forceinline__ bool is_last(int stage) {
    return stage % STAGES_IMAGE == STAGES_IMAGE - 1;
}

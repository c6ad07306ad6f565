// Owns what implicit_gemm.cu needs to run as plain C++ beside the instructions: threads of a warp that meet.
#include "hopper_lockstep.h"
static Index blockDim;
#define FOR_EACH(count) \
    for (int64_t id = blockIdx.x * blockDim.x + threadIdx.x; id < (count); \
         id += gridDim.x * blockDim.x)

static int arrived[32], meetings[32];
static void meet_warp() {
    int warp = threadIdx.x / 32, before = meetings[warp];
    if (++arrived[warp] == 32) {
        arrived[warp] = 0;
        ++meetings[warp];
    }
    while (meetings[warp] == before) meet();
}
#define __syncwarp meet_warp
static bool votes[1024];
inline uint32_t __ballot_sync(uint32_t, bool vote) {
    int first = threadIdx.x / 32 * 32;
    votes[threadIdx.x] = vote;
    meet_warp();
    uint32_t result = 0;
    for (int i = 0; i < 32; ++i) result |= (uint32_t)votes[first + i] << i;
    meet_warp();
    return result;
}
#define __popc __builtin_popcount

// Owns what wgrad_16bit.cu and wgrad_tf32.cu need to run as plain C++ beside the instructions.
#include "hopper_lockstep.h"
static float summands[1024];
inline float warp_sum(float x) {
    summands[threadIdx.x] = x;
    meet();
    float sum = 0;
    for (int lane = 0; lane < 32; ++lane) sum += summands[threadIdx.x / 32 * 32 + lane];
    meet();
    return sum;
}
#define __shfl_sync(lanes, value, lane) (value)

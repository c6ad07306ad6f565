// Owns what wgrad_tf32.cu needs to run as plain C++ beside the instructions.
#define LATE_COPIES 0
#include "hopper_lockstep.h"
#define __grid_constant__
template <int N> void store(float* to, const float (&from)[N]) { memcpy(to, from, sizeof from); }

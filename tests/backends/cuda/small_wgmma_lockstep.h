// Owns what warpgroup.cu needs to run as plain C++ beside the instructions: numbers of one type.
#define LATE_COPIES 0  // there are none: products are late
#include "hopper_lockstep.h"
typedef float T;
inline float to_float(float x) { return x; }
template <typename E> E from_float(float x) { return x; }

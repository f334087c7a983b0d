// What kernels that write into a cache have in common.
#pragma once
#include <string>

#include "core/kernel.hpp"

namespace tenonnx::TENONNX_ISA_NS {

// Of in [cache, values, position, ...], out [updated], ints [axis, batch_axis, ...], each of them a valid view.
std::string check_update(const Args& a);

// Where the rows of row `row` of the batch go.
static inline int64_t position_of(const Tensor& position, int64_t row) {
  return position.as<const int64_t>()[position.rank == 0 ? 0 : row * position.strides[0]];
}

}  // namespace tenonnx::TENONNX_ISA_NS

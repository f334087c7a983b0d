// Activations as 8-bit codes, for kernels that make them on the way.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tenonnx::TENONNX_ISA_NS {

// Blocks `first` to `first + count` of a row of k columns, as `packed.hpp` lays it out; x begins at the first of them.
void quantize_columns(const float* x, int64_t first, int64_t count, std::byte* row, int64_t k);

}  // namespace tenonnx::TENONNX_ISA_NS

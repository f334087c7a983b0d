// A view of memory as kernels see it: no ownership, strides in elements (0 repeats, so broadcasts are views).
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"

namespace tenonnx {

constexpr int kMaxRank = 8;

// Its functions are inlined always: a copy compiled for one instruction set must not be linked in for another.
struct Tensor {
  std::byte* data = nullptr;  // null for an absent optional input, and while shapes alone are validated
  DType dtype = DType::Undefined;
  int rank = 0;
  int64_t dims[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};

  [[gnu::always_inline]] bool present() const { return dtype != DType::Undefined; }
  [[gnu::always_inline]] int64_t size() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dims[i];
    return n;
  }
  [[gnu::always_inline]] bool empty() const {
    for (int i = 0; i < rank; ++i)
      if (dims[i] == 0) return true;
    return false;
  }
  [[gnu::always_inline]] bool contiguous() const {
    if (empty()) return true;
    int64_t expected = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (dims[i] != 1 && strides[i] != expected) return false;
      expected *= dims[i];
    }
    return true;
  }
  template <typename T> T* as() const { return reinterpret_cast<T*>(data); }
};

}  // namespace tenonnx

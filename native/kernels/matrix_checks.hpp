// What the kernels over packed matrices check before they run.
#pragma once
#include <cstdarg>
#include <cstdio>
#include <string>

#include "core/kernel.hpp"
#include "kernels/packed.hpp"

namespace tenonnx::TENONNX_ISA_NS {

[[gnu::format(printf, 1, 2)]] static inline std::string text(const char* format, ...) {
  char line[256];
  va_list values;
  va_start(values, format);
  std::vsnprintf(line, sizeof line, format, values);
  va_end(values);
  return line;
}

static inline std::string check_counts(const Args& a, int inputs, int outputs, int ints) {
  if (a.n_in != inputs || a.n_out != outputs || a.n_ints != ints)
    return text("expects %d inputs, %d outputs and %d ints, found %d, %d and %d", inputs, outputs, ints, a.n_in, a.n_out, a.n_ints);
  return {};
}

// A 1-D run of exactly the bytes of an [n, k] matrix in `format`.
static inline std::string check_bytes(const char* what, const Tensor& t, const Format& format, int64_t n, int64_t k) {
  const int64_t bytes = matrix_bytes(format, n, k);
  if (bytes < 0)
    return text("%s: a matrix [%lld, %lld] has no such layout: K must be a multiple of %lld, N and K from 0 to 2^40, the size below 2^63",
                what, (long long)n, (long long)k, (long long)format.columns);
  if (t.dtype != DType::UInt8 || t.rank != 1 || !t.contiguous()) return text("%s: expected contiguous UINT8 [%lld]", what, (long long)bytes);
  if (t.dims[0] != bytes)
    return text("%s: expected %lld bytes for a matrix [%lld, %lld], found %lld", what, (long long)bytes, (long long)n, (long long)k,
                (long long)t.dims[0]);
  return {};
}

// [rows, width] with unit column stride; the rows of an output must not overlap.
static inline std::string check_rows(const char* what, const Tensor& t, DType dtype, int64_t rows, int64_t width, bool output) {
  if (t.dtype != dtype || t.rank != 2)
    return text("%s: expected element type %d and rank 2, found element type %d and rank %d", what, int(dtype), int(t.dtype), t.rank);
  if (t.dims[0] != rows || t.dims[1] != width)
    return text("%s: expected [%lld, %lld], found [%lld, %lld]", what, (long long)rows, (long long)width, (long long)t.dims[0], (long long)t.dims[1]);
  int64_t size;
  if (rows < 0 || rows > kMaxDim || width < 0 || __builtin_mul_overflow(rows, width, &size) || size > INT64_MAX / 8)
    return text("%s: [%lld, %lld] is no size of a tensor", what, (long long)rows, (long long)width);
  if (rows > 0 && width > 1 && t.strides[1] != 1) return text("%s: columns must be contiguous, found stride %lld", what, (long long)t.strides[1]);
  if (output && rows > 1 && t.strides[0] < width)
    return text("%s: rows of %lld elements overlap with stride %lld", what, (long long)width, (long long)t.strides[0]);
  return {};
}

}  // namespace tenonnx::TENONNX_ISA_NS

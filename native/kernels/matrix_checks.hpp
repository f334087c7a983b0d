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
  if (a.n_in == inputs && a.n_out == outputs && a.n_ints == ints) return {};
  return text("expects %d inputs, %d outputs and %d ints, found %d, %d and %d", inputs, outputs, ints, a.n_in, a.n_out, a.n_ints);
}

// A 1-D run of exactly the bytes of an [n, k] matrix in `format`.
static inline std::string check_bytes(const char* what, const Tensor& t, const Format& format, int64_t n, int64_t k) {
  const long long rows = n, columns = k, bytes = matrix_bytes(format, n, k), found = t.dims[0];
  if (bytes < 0)
    return text("%s: no such layout of a matrix [%lld, %lld]: K must be a multiple of %d, N and K from 0 to 2^40, and the "
                "size below 2^63", what, rows, columns, int(format.columns));
  if (t.dtype != DType::UInt8 || t.rank != 1 || !t.contiguous()) return text("%s: expected contiguous UINT8 [%lld]", what, bytes);
  if (found == bytes) return {};
  return text("%s: expected %lld bytes for a matrix [%lld, %lld], found %lld", what, bytes, rows, columns, found);
}

// [rows, width] with unit column stride; the rows of an output must not overlap.
static inline std::string check_rows(const char* what, const Tensor& t, DType dtype, long long rows, long long width,
                                     bool output) {
  if (t.dtype != dtype || t.rank != 2)
    return text("%s: expected element type %d and rank 2, found %d and %d", what, int(dtype), int(t.dtype), t.rank);
  const long long found_rows = t.dims[0], found_width = t.dims[1], stride = t.strides[0];
  if (found_rows != rows || found_width != width)
    return text("%s: expected [%lld, %lld], found [%lld, %lld]", what, rows, width, found_rows, found_width);
  long long size;
  if (rows < 0 || rows > kMaxDim || width < 0 || __builtin_mul_overflow(rows, width, &size) || size > INT64_MAX / 8)
    return text("%s: [%lld, %lld] is no size of a tensor", what, rows, width);
  if (rows > 0 && width > 1 && t.strides[1] != 1)
    return text("%s: columns must be contiguous, found stride %lld", what, (long long)t.strides[1]);
  if (output && rows > 1 && stride < width)
    return text("%s: rows of %lld elements overlap with stride %lld", what, width, stride);
  return {};
}

// Of rows by id: in[1] INT64 ids of any rank, out[0] FLOAT [*ids.dims, K], ints N, K.
static inline std::string check_gathered(const Args& a) {
  const Tensor &ids = a.in[1], &out = a.out[0];
  if (ids.dtype != DType::Int64 || ids.rank >= kMaxRank || !ids.contiguous())
    return text("ids: expected contiguous INT64 of rank below %d", kMaxRank);
  bool fits = out.dtype == DType::Float && out.rank == ids.rank + 1 && out.contiguous() && out.dims[ids.rank] == a.ints[1];
  int64_t size = 4;
  for (int i = 0; i < out.rank && fits; ++i)
    fits = out.dims[i] >= 0 && (i == ids.rank || out.dims[i] == ids.dims[i]) &&
           !__builtin_mul_overflow(size, out.dims[i], &size);
  if (fits) return {};
  return text("out: expected contiguous FLOAT of the shape of ids and a last dimension of %lld", (long long)a.ints[1]);
}

}  // namespace tenonnx::TENONNX_ISA_NS

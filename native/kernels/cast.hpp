// Rows of elements from one type to another, as ONNX Cast: a real number is truncated towards zero, and one outside an
// integer type's range (which the standard leaves undefined) saturates, NaN giving 0; an integer keeps its low bits;
// BOOL is "not zero". A row goes through a widened form held on the stack, so types cost 13 readers and writers each.
#pragma once
#include <cstddef>

#include "core/dtype.hpp"
#include "kernels/vec.hpp"

namespace tenonnx::TENONNX_ISA_NS {

constexpr int64_t kCastChunk = 256;

static inline bool to_wide_lane(Truth v) { return v.bits != 0; }
template <typename T> static inline T to_wide_lane(T v) { return v; }
static inline float to_wide_lane(Half v) { return to_float(v); }
static inline float to_wide_lane(Bfloat v) { return to_float(v); }

template <typename T, typename W> static inline T narrow(W v) {
  if constexpr (__is_same(W, float) || __is_same(W, double)) {
    constexpr bool is_signed = T(-1) < T(0);
    constexpr int bits = int(sizeof(T)) * 8 - is_signed;
    constexpr W limit = W(uint64_t(1) << (bits - 1)) * 2;  // one past the largest
    constexpr T largest = T(~uint64_t(0) >> (64 - bits));
    if (v >= limit) return largest;
    if (is_signed ? v < -limit : v <= W(-1)) return is_signed ? T(-largest - 1) : T(0);
    return v == v ? T(v) : T(0);
  } else {
    return T(v);
  }
}
template <typename W> static inline void put(float* p, W v) { *p = float(v); }
template <typename W> static inline void put(double* p, W v) { *p = double(v); }
template <typename W> static inline void put(Half* p, W v) { p->bits = float_to_half(float(v)); }
template <typename W> static inline void put(Bfloat* p, W v) { p->bits = float_to_bfloat(float(v)); }
template <typename W> static inline void put(Truth* p, W v) { p->bits = v != W(0); }
template <typename T, typename W> static inline void put(T* p, W v) { *p = narrow<T>(v); }

template <typename T, typename W>
static void read_row(const std::byte* from, int64_t stride, void* wide, int64_t n) {
  auto* p = reinterpret_cast<const T*>(from);
  auto* w = static_cast<W*>(wide);
  if constexpr (__is_same(T, Half) || __is_same(T, Bfloat)) {
    if (stride == 1) return map(w, n, [](Vec v) { return v; }, p);
  }
  if (stride == 1)
    for (int64_t i = 0; i < n; ++i) w[i] = W(to_wide_lane(p[i]));
  else
    for (int64_t i = 0; i < n; ++i) w[i] = W(to_wide_lane(p[i * stride]));
}

template <typename T, typename W>
static void write_row(const void* wide, std::byte* to, int64_t stride, int64_t n) {
  auto* w = static_cast<const W*>(wide);
  auto* p = reinterpret_cast<T*>(to);
  int64_t i = 0;
  if constexpr (__is_same(T, Half) && __is_same(W, float)) {
    for (; stride == 1 && i + kLanes <= n; i += kLanes) store(p + i, load(w + i));
  }
  if (stride == 1)
    for (; i < n; ++i) put(p + i, w[i]);
  else
    for (; i < n; ++i) put(p + i * stride, w[i]);
}

using ReadRow = void (*)(const std::byte*, int64_t, void*, int64_t);
using WriteRow = void (*)(const void*, std::byte*, int64_t, int64_t);

enum class Wide { real, precise, integer, natural };  // float, double, int64, uint64: each holds its sources exactly

static inline Wide wide_of(DType t) {
  switch (t) {
    case DType::Float: case DType::Float16: case DType::BFloat16: return Wide::real;
    case DType::Double: return Wide::precise;
    case DType::UInt64: return Wide::natural;
    default: return Wide::integer;
  }
}

static inline ReadRow reader_of(DType t) {
  switch (t) {
    case DType::Float: return read_row<float, float>;
    case DType::Float16: return read_row<Half, float>;
    case DType::BFloat16: return read_row<Bfloat, float>;
    case DType::Double: return read_row<double, double>;
    case DType::UInt64: return read_row<uint64_t, uint64_t>;
    case DType::Int64: return read_row<int64_t, int64_t>;
    case DType::Int32: return read_row<int32_t, int64_t>;
    case DType::UInt32: return read_row<uint32_t, int64_t>;
    case DType::Int16: return read_row<int16_t, int64_t>;
    case DType::UInt16: return read_row<uint16_t, int64_t>;
    case DType::Int8: return read_row<int8_t, int64_t>;
    case DType::UInt8: return read_row<uint8_t, int64_t>;
    case DType::Bool: return read_row<Truth, int64_t>;
    default: return nullptr;
  }
}

template <typename W>
static WriteRow writer_from(DType t) {
  switch (t) {
    case DType::Float: return write_row<float, W>;
    case DType::Float16: return write_row<Half, W>;
    case DType::BFloat16: return write_row<Bfloat, W>;
    case DType::Double: return write_row<double, W>;
    case DType::UInt64: return write_row<uint64_t, W>;
    case DType::Int64: return write_row<int64_t, W>;
    case DType::Int32: return write_row<int32_t, W>;
    case DType::UInt32: return write_row<uint32_t, W>;
    case DType::Int16: return write_row<int16_t, W>;
    case DType::UInt16: return write_row<uint16_t, W>;
    case DType::Int8: return write_row<int8_t, W>;
    case DType::UInt8: return write_row<uint8_t, W>;
    case DType::Bool: return write_row<Truth, W>;
    default: return nullptr;
  }
}

static inline WriteRow writer_of(Wide from, DType to) {
  switch (from) {
    case Wide::real: return writer_from<float>(to);
    case Wide::precise: return writer_from<double>(to);
    case Wide::natural: return writer_from<uint64_t>(to);
    default: return writer_from<int64_t>(to);
  }
}

template <typename T>
static void move_elements(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride, int64_t n) {
  auto* p = reinterpret_cast<const T*>(from);
  auto* q = reinterpret_cast<T*>(to);
  if (from_stride == 1 && to_stride == 1) std::memmove(q, p, size_t(n) * sizeof(T));
  else for (int64_t i = 0; i < n; ++i) q[i * to_stride] = p[i * from_stride];
}

// Copies n elements between two rows, strides in elements.
class RowCopy {
 public:
  RowCopy(DType from, DType to)
      : from_size_(size_of(from)), to_size_(size_of(to)), same_(from == to), pass_(from == DType::Float),
        read_(reader_of(from)), write_(writer_of(wide_of(from), to)) {}

  int64_t from_size() const { return from_size_; }
  int64_t to_size() const { return to_size_; }

  void operator()(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride, int64_t n) const {
    if (same_) return move(from, from_stride, to, to_stride, n);
    if (pass_ && from_stride == 1) return write_(from, to, to_stride, n);
    alignas(64) std::byte wide[kCastChunk * 8];
    for (int64_t i = 0; i < n; i += kCastChunk) {
      const int64_t count = n - i < kCastChunk ? n - i : kCastChunk;
      read_(from + i * from_stride * from_size_, from_stride, wide, count);
      write_(wide, to + i * to_stride * to_size_, to_stride, count);
    }
  }

 private:
  void move(const std::byte* from, int64_t from_stride, std::byte* to, int64_t to_stride, int64_t n) const {
    switch (from_size_) {
      case 1: return move_elements<uint8_t>(from, from_stride, to, to_stride, n);
      case 2: return move_elements<uint16_t>(from, from_stride, to, to_stride, n);
      case 4: return move_elements<uint32_t>(from, from_stride, to, to_stride, n);
      default: return move_elements<uint64_t>(from, from_stride, to, to_stride, n);
    }
  }

  int64_t from_size_, to_size_;
  bool same_, pass_;
  ReadRow read_;
  WriteRow write_;
};

}  // namespace tenonnx::TENONNX_ISA_NS

// Vectors of quantized matrix products, under one set of names per instruction set. `Narrow` holds one group of 8 rows,
// `Wide` the groups that share a strip, `Single` one row; kTile is how many tokens keep their sums in registers beside
// unpacked codes.
//
//   Source         where a block of the strip's groups lies; `at` is always a byte of the block
//   load           codes of 4 columns
//   shift_*        of every byte; bits from or to a neighbour are left in what `select` clears
//   lookup         the table's entry for each code of 4 bits
//   Signed         8-bit codes made ready
//   ShortSum       sum of code * x over 4 columns at a time, for unsigned codes: exact while the largest code times the
//                  number of additions is at most kShort
//   WideSum        the same for any codes
//   total          sums per row; those of signed codes have kBias * (sum of x) too much
//   load_*         numbers of the rows: FLOAT16, FLOAT, INT8, fields of bits of a byte, and 2^(byte - 128)
#pragma once
#include <cstddef>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/half.hpp"
#include "kernels/packed.hpp"

namespace tenonnx::TENONNX_ISA_NS {

using std::byte;

template <typename T>
static inline T load_as(const byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Half of a FLOAT8E8M0, whose ends are 2^-127 and NaN.
static inline float half_power(uint8_t exponent) {
  const uint32_t extra = exponent == 0 || exponent == 255 ? 0x00400000 : 0;
  return 0.5f * bits_to_float(uint32_t(exponent) << 23 | extra);
}

template <int Groups>
struct GroupsOf {
  const byte* group[Groups];

  inline void advance(int64_t bytes) {
    for (const byte*& at : group) at += bytes;
  }
};

struct Single {
  struct Source {
    const byte* group;
    int row;
    inline void advance(int64_t bytes) { group += bytes; }
  };
  using Rows = float;

  static inline Rows all(float value) { return value; }
  static inline Rows negate(Rows a) { return -a; }
  static inline Rows multiply(Rows a, Rows b) { return a * b; }
  static inline Rows multiply_add(Rows a, Rows b, Rows c) { return a * b + c; }
  static inline Rows multiply_subtract(Rows a, Rows b, Rows c) { return c - a * b; }
  static inline Rows load_halves(const Source& w, int at) { return half_to_float(load_as<uint16_t>(w.group + at + 2 * w.row)); }
  static inline Rows load_floats(const Source& w, int at) { return load_as<float>(w.group + at + 4 * w.row); }
  static inline Rows load_signed(const Source& w, int at) { return float(load_as<int8_t>(w.group + at + w.row)); }
  template <int Shift, int Bits>
  static inline Rows load_fields(const Source& w, int at) {
    return float(load_as<uint8_t>(w.group + at + w.row) >> Shift & ((1 << Bits) - 1));
  }
  static inline Rows load_half_powers(const Source& w, int at) { return half_power(load_as<uint8_t>(w.group + at + w.row)); }
};

}  // namespace tenonnx::TENONNX_ISA_NS

#if !defined(__AVX2__)
#include "kernels/lanes_portable.hpp"
#else
#include "kernels/lanes_avx2.hpp"
#endif
#if defined(__AVX512VNNI__)
#include "kernels/lanes_avx512.hpp"
#endif

// The inner step of quantized matrix products: one block of 32 columns of a strip of rows, times the codes of T tokens.
//
//   y[t] += scale[t] * (d * dot(codes, x[t]) + m * sum(x[t]))
//
// A dot product of codes is a whole number and exact, and the floats are combined in this one order, so that a token's
// result is the same bits in a tile of any T. Per instruction set: kStrip groups of 8 rows share a vector of
// accumulators, and kTile tokens keep theirs in registers while the codes are unpacked once.
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

static inline float load_float(const byte* at) {
  float value;
  std::memcpy(&value, at, 4);
  return value;
}

static inline int32_t load_word(const byte* at) {
  int32_t value;
  std::memcpy(&value, at, 4);
  return value;
}

// Rows of quantized activations: codes, then scales, then sums.
struct Tokens {
  const byte* codes;
  int64_t stride, k;

  const byte* at(int t, int64_t column) const { return codes + t * stride + column; }
  float scale(int t, int64_t b) const { return load_float(at(t, k + 4 * b)); }
  float sum(int t, int64_t b) const { return load_float(at(t, k + k / 8 + 4 * b)); }
};

#if defined(__AVX512VNNI__)

constexpr int kStrip = 2, kTile = 8;
using Rows = __m512;  // one float for each row of the strip

static inline __m512i join(const byte* a, const byte* b) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b)), 1);
}

static inline Rows halves(const byte* a, const byte* b) {
  const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(a));
  return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1));
}

static inline void store_rows(Rows rows, float* out) { _mm512_storeu_ps(out, rows); }

struct DotQ4 {
  static constexpr Format packed = kPackedQ4;
  template <int T>
  static inline void add(const byte* const (&w)[kStrip], int64_t b, const Tokens& x, Rows (&y)[T]) {
    __m512i dot[T];
    for (int t = 0; t < T; ++t) dot[t] = _mm512_setzero_si512();
    const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int at = int(offsetof(BlockQ4, codes)) + 32 * i;
      const __m512i codes = join(w[0] + at, w[1] + at);
      const __m512i low = _mm512_and_si512(codes, mask), high = _mm512_and_si512(_mm512_srli_epi16(codes, 4), mask);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const byte* column = x.at(t, b * kBlock + 4 * i);
        dot[t] = _mm512_dpbusd_epi32(dot[t], low, _mm512_set1_epi32(load_word(column)));
        dot[t] = _mm512_dpbusd_epi32(dot[t], high, _mm512_set1_epi32(load_word(column + 16)));
      }
    }
    const Rows d = halves(w[0], w[1]), m = halves(w[0] + offsetof(BlockQ4, m), w[1] + offsetof(BlockQ4, m));
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const Rows minima = _mm512_mul_ps(m, _mm512_set1_ps(x.sum(t, b)));
      const Rows block = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(dot[t]), minima);
      y[t] = _mm512_fmadd_ps(_mm512_set1_ps(x.scale(t, b)), block, y[t]);
    }
  }
};

// The instruction wants unsigned codes: 128 is added to each, and 128 * sum taken from the result.
struct DotQ8 {
  static constexpr Format packed = kPackedQ8;
  template <int T>
  static inline void add(const byte* const (&w)[kStrip], int64_t b, const Tokens& x, Rows (&y)[T]) {
    __m512i dot[T];
    for (int t = 0; t < T; ++t) dot[t] = _mm512_setzero_si512();
    const __m512i offset = _mm512_set1_epi8(-128);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const int at = int(offsetof(BlockQ8, codes)) + 32 * i;
      const __m512i codes = _mm512_xor_si512(join(w[0] + at, w[1] + at), offset);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t)
        dot[t] = _mm512_dpbusd_epi32(dot[t], codes, _mm512_set1_epi32(load_word(x.at(t, b * kBlock + 4 * i))));
    }
    const Rows d = halves(w[0], w[1]);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const Rows whole = _mm512_fnmadd_ps(_mm512_set1_ps(128.0f), _mm512_set1_ps(x.sum(t, b)), _mm512_cvtepi32_ps(dot[t]));
      y[t] = _mm512_fmadd_ps(_mm512_set1_ps(x.scale(t, b)), _mm512_mul_ps(d, whole), y[t]);
    }
  }
};

#elif defined(__AVX2__)

constexpr int kStrip = 1, kTile = 4;
using Rows = __m256;

static inline __m256i load_codes(const byte* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
static inline Rows halves(const byte* at) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))); }
static inline void store_rows(Rows rows, float* out) { _mm256_storeu_ps(out, rows); }

// Sixteen bits hold the sum over the whole block: 8 vectors * 2 products * 15 * 127 = 30,480.
struct DotQ4 {
  static constexpr Format packed = kPackedQ4;
  template <int T>
  static inline void add(const byte* const (&w)[kStrip], int64_t b, const Tokens& x, Rows (&y)[T]) {
    __m256i dot[T];
    for (int t = 0; t < T; ++t) dot[t] = _mm256_setzero_si256();
    const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i codes = load_codes(w[0] + offsetof(BlockQ4, codes) + 32 * i);
      const __m256i low = _mm256_and_si256(codes, mask), high = _mm256_and_si256(_mm256_srli_epi16(codes, 4), mask);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        const byte* column = x.at(t, b * kBlock + 4 * i);
        dot[t] = _mm256_add_epi16(dot[t], _mm256_maddubs_epi16(low, _mm256_set1_epi32(load_word(column))));
        dot[t] = _mm256_add_epi16(dot[t], _mm256_maddubs_epi16(high, _mm256_set1_epi32(load_word(column + 16))));
      }
    }
    const Rows d = halves(w[0]), m = halves(w[0] + offsetof(BlockQ4, m));
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      const Rows minima = _mm256_mul_ps(m, _mm256_set1_ps(x.sum(t, b)));
      const Rows block = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(_mm256_madd_epi16(dot[t], ones)), minima);
      y[t] = _mm256_fmadd_ps(_mm256_set1_ps(x.scale(t, b)), block, y[t]);
    }
  }
};

// The instruction wants one unsigned operand: |code| * (x with the code's sign). A pair is at most 2 * 128 * 127 = 32,512.
struct DotQ8 {
  static constexpr Format packed = kPackedQ8;
  template <int T>
  static inline void add(const byte* const (&w)[kStrip], int64_t b, const Tokens& x, Rows (&y)[T]) {
    __m256i dot[T];
    for (int t = 0; t < T; ++t) dot[t] = _mm256_setzero_si256();
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m256i codes = load_codes(w[0] + offsetof(BlockQ8, codes) + 32 * i), magnitude = _mm256_abs_epi8(codes);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        const __m256i signs = _mm256_sign_epi8(_mm256_set1_epi32(load_word(x.at(t, b * kBlock + 4 * i))), codes);
        dot[t] = _mm256_add_epi32(dot[t], _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, signs), ones));
      }
    }
    const Rows d = halves(w[0]);
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t)
      y[t] = _mm256_fmadd_ps(_mm256_set1_ps(x.scale(t, b)), _mm256_mul_ps(d, _mm256_cvtepi32_ps(dot[t])), y[t]);
  }
};

#else

constexpr int kStrip = 1, kTile = 1;
struct Rows {
  float of[kGroup];
};

static inline void store_rows(const Rows& rows, float* out) { std::memcpy(out, &rows, sizeof rows); }

static inline float half_at(const byte* at) {
  uint16_t half;
  std::memcpy(&half, at, 2);
  return half_to_float(half);
}

// dot[row] += codes of 4 columns of 8 rows * x of these columns
static inline void add_products(int32_t (&dot)[kGroup], const int16_t (&codes)[4 * kGroup], const byte* x) {
  for (int row = 0; row < kGroup; ++row)
    for (int c = 0; c < 4; ++c) dot[row] += codes[4 * row + c] * int8_t(x[c]);
}

struct DotQ4 {
  static constexpr Format packed = kPackedQ4;
  template <int T>
  static inline void add(const byte* const (&w)[kStrip], int64_t b, const Tokens& x, Rows (&y)[T]) {
    int32_t dot[kGroup] = {};
    for (int i = 0; i < 4; ++i) {
      const byte* column = x.at(0, b * kBlock + 4 * i);
      int16_t low[4 * kGroup], high[4 * kGroup];
      for (int j = 0; j < 4 * kGroup; ++j) {
        const uint8_t code = uint8_t(w[0][offsetof(BlockQ4, codes) + 32 * i + j]);
        low[j] = code & 15;
        high[j] = code >> 4;
      }
      add_products(dot, low, column);
      add_products(dot, high, column + 16);
    }
    for (int row = 0; row < kGroup; ++row) {
      const float minimum = half_at(w[0] + offsetof(BlockQ4, m) + 2 * row) * x.sum(0, b);
      y[0].of[row] += x.scale(0, b) * (half_at(w[0] + 2 * row) * float(dot[row]) + minimum);
    }
  }
};

struct DotQ8 {
  static constexpr Format packed = kPackedQ8;
  template <int T>
  static inline void add(const byte* const (&w)[kStrip], int64_t b, const Tokens& x, Rows (&y)[T]) {
    int32_t dot[kGroup] = {};
    for (int i = 0; i < 8; ++i) {
      int16_t codes[4 * kGroup];
      for (int j = 0; j < 4 * kGroup; ++j) codes[j] = int8_t(w[0][offsetof(BlockQ8, codes) + 32 * i + j]);
      add_products(dot, codes, x.at(0, b * kBlock + 4 * i));
    }
    for (int row = 0; row < kGroup; ++row) y[0].of[row] += x.scale(0, b) * (half_at(w[0] + 2 * row) * float(dot[row]));
  }
};

#endif

}  // namespace tenonnx::TENONNX_ISA_NS

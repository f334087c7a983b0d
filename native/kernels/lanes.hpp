// Vectors of quantized matrix products, under one set of names per instruction set. `Narrow` holds one group of 8 rows,
// `Wide` the groups that share a strip; kTile is how many tokens keep their sums in registers beside unpacked codes.
//
//   load           4 columns of codes of the strip's rows (`at`: byte within the block)
//   low, high      the two halves of bytes that hold two 4-bit codes
//   add_unsigned   sum += code * x over 4 columns, codes of at most 15; exact for a block of 32 columns
//   Signed         8-bit codes made ready; add_signed adds their products
//   total_*        sums per row as floats; `x_sum` is the sum of the block's x
#pragma once
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

#if defined(__AVX2__)

struct Narrow {
  static constexpr int groups = 1;
  using Rows = __m256;
  using Codes = __m256i;
  using UnsignedSum = __m256i;
  using SignedSum = __m256i;

  static inline Codes load(const byte* const (&w)[1], int at) { return load_as<__m256i>(w[0] + at); }
  static inline Rows load_halves(const byte* const (&w)[1], int at) { return _mm256_cvtph_ps(load_as<__m128i>(w[0] + at)); }
  static inline void store(Rows rows, float* out) { _mm256_storeu_ps(out, rows); }
  static inline Rows all(float value) { return _mm256_set1_ps(value); }
  static inline Rows multiply(Rows a, Rows b) { return _mm256_mul_ps(a, b); }
  static inline Rows multiply_add(Rows a, Rows b, Rows c) { return _mm256_fmadd_ps(a, b, c); }
  static inline Codes low(Codes codes) { return _mm256_and_si256(codes, _mm256_set1_epi8(15)); }
  static inline Codes high(Codes codes) { return low(_mm256_srli_epi16(codes, 4)); }
  static inline Codes columns(const byte* x) { return _mm256_set1_epi32(load_as<int32_t>(x)); }

#if defined(__AVX512VNNI__)
  // The instruction wants unsigned codes: signed ones get 128 added, and 128 * x_sum is taken from the total.
  using Signed = __m256i;
  static inline Signed make_signed(Codes codes) { return _mm256_xor_si256(codes, _mm256_set1_epi8(-128)); }
  static inline void add_unsigned(UnsignedSum& sum, Codes codes, const byte* x) {
    sum = _mm256_dpbusd_epi32(sum, codes, columns(x));
  }
  static inline void add_signed(SignedSum& sum, Signed codes, const byte* x) { add_unsigned(sum, codes, x); }
  static inline Rows total_unsigned(UnsignedSum sum) { return _mm256_cvtepi32_ps(sum); }
  static inline Rows total_signed(SignedSum sum, float x_sum) {
    return _mm256_fnmadd_ps(all(128.0f), all(x_sum), _mm256_cvtepi32_ps(sum));
  }
#else
  // Sixteen bits hold unsigned sums over a whole block: 8 vectors * 2 products * 15 * 127 = 30,480. A signed code is its
  // magnitude times x with the code's sign: a pair is at most 2 * 128 * 127 = 32,512, and is widened at once.
  struct Signed {
    __m256i codes, magnitudes;
  };
  static inline Signed make_signed(Codes codes) { return {codes, _mm256_abs_epi8(codes)}; }
  static inline void add_unsigned(UnsignedSum& sum, Codes codes, const byte* x) {
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, columns(x)));
  }
  static inline __m256i add_pairs(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
  static inline void add_signed(SignedSum& sum, const Signed& w, const byte* x) {
    sum = _mm256_add_epi32(sum, add_pairs(_mm256_maddubs_epi16(w.magnitudes, _mm256_sign_epi8(columns(x), w.codes))));
  }
  static inline Rows total_unsigned(UnsignedSum sum) { return _mm256_cvtepi32_ps(add_pairs(sum)); }
  static inline Rows total_signed(SignedSum sum, float) { return _mm256_cvtepi32_ps(sum); }
#endif
};

#else

constexpr int kVector = 4 * kGroup;  // codes of 4 columns

struct Narrow {
  static constexpr int groups = 1;
  struct Rows {
    float of[kGroup];
  };
  struct Codes {
    uint8_t of[kVector];
  };
  struct Signed {
    int16_t of[kVector];
  };
  struct UnsignedSum {
    int16_t of[kVector];  // one for each row and each column modulo 4: at most 8 * 15 * 127 = 15,240
  };
  struct SignedSum {
    int32_t of[kVector];
  };

  static inline Codes load(const byte* const (&w)[1], int at) { return load_as<Codes>(w[0] + at); }
  static inline Rows load_halves(const byte* const (&w)[1], int at) {
    Rows rows;
    for (int row = 0; row < kGroup; ++row) rows.of[row] = half_to_float(load_as<uint16_t>(w[0] + at + 2 * row));
    return rows;
  }
  static inline void store(const Rows& rows, float* out) { std::memcpy(out, &rows, sizeof rows); }
  static inline Rows all(float value) { return {{value, value, value, value, value, value, value, value}}; }
  static inline Rows multiply(const Rows& a, const Rows& b) {
    Rows rows;
    for (int row = 0; row < kGroup; ++row) rows.of[row] = a.of[row] * b.of[row];
    return rows;
  }
  static inline Rows multiply_add(const Rows& a, const Rows& b, const Rows& c) {
    Rows rows;
    for (int row = 0; row < kGroup; ++row) rows.of[row] = a.of[row] * b.of[row] + c.of[row];
    return rows;
  }
  static inline Codes low(Codes codes) {
    for (uint8_t& code : codes.of) code &= 15;
    return codes;
  }
  static inline Codes high(Codes codes) {
    for (uint8_t& code : codes.of) code >>= 4;
    return codes;
  }
  static inline Signed make_signed(const Codes& codes) {
    Signed wide;
    for (int i = 0; i < kVector; ++i) wide.of[i] = int8_t(codes.of[i]);
    return wide;
  }
  static inline Signed columns(const byte* x) {
    const int16_t four[4] = {int8_t(x[0]), int8_t(x[1]), int8_t(x[2]), int8_t(x[3])};
    Signed repeated;
    for (int row = 0; row < kGroup; ++row) std::memcpy(repeated.of + 4 * row, four, sizeof four);
    return repeated;
  }
  static inline void add_unsigned(UnsignedSum& sum, const Codes& codes, const byte* x) {
    const Signed repeated = columns(x);
    for (int i = 0; i < kVector; ++i) sum.of[i] = int16_t(sum.of[i] + int16_t(codes.of[i] * repeated.of[i]));
  }
  static inline void add_signed(SignedSum& sum, const Signed& codes, const byte* x) {
    const Signed repeated = columns(x);
    for (int i = 0; i < kVector; ++i) sum.of[i] += codes.of[i] * repeated.of[i];
  }
  template <typename Sum>
  static inline Rows total(const Sum& sum) {
    Rows rows;
    for (int row = 0; row < kGroup; ++row)
      rows.of[row] = float(sum.of[4 * row] + sum.of[4 * row + 1] + sum.of[4 * row + 2] + sum.of[4 * row + 3]);
    return rows;
  }
  static inline Rows total_unsigned(const UnsignedSum& sum) { return total(sum); }
  static inline Rows total_signed(const SignedSum& sum, float) { return total(sum); }
};

#endif

#if defined(__AVX512VNNI__)

// Two groups in one register; one token alone is better served by one group, whose bytes are one stream of memory.
struct Wide {
  static constexpr int groups = 2;
  using Rows = __m512;
  using Codes = __m512i;
  using UnsignedSum = __m512i;
  using SignedSum = __m512i;
  using Signed = __m512i;

  static inline Codes load(const byte* const (&w)[2], int at) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load_as<__m256i>(w[0] + at)), load_as<__m256i>(w[1] + at), 1);
  }
  static inline Rows load_halves(const byte* const (&w)[2], int at) {
    const __m256i first = _mm256_castsi128_si256(load_as<__m128i>(w[0] + at));
    return _mm512_cvtph_ps(_mm256_inserti128_si256(first, load_as<__m128i>(w[1] + at), 1));
  }
  static inline void store(Rows rows, float* out) { _mm512_storeu_ps(out, rows); }
  static inline Rows all(float value) { return _mm512_set1_ps(value); }
  static inline Rows multiply(Rows a, Rows b) { return _mm512_mul_ps(a, b); }
  static inline Rows multiply_add(Rows a, Rows b, Rows c) { return _mm512_fmadd_ps(a, b, c); }
  static inline Codes low(Codes codes) { return _mm512_and_si512(codes, _mm512_set1_epi8(15)); }
  static inline Codes high(Codes codes) { return low(_mm512_srli_epi16(codes, 4)); }
  static inline Codes columns(const byte* x) { return _mm512_set1_epi32(load_as<int32_t>(x)); }
  static inline Signed make_signed(Codes codes) { return _mm512_xor_si512(codes, _mm512_set1_epi8(-128)); }
  static inline void add_unsigned(UnsignedSum& sum, Codes codes, const byte* x) {
    sum = _mm512_dpbusd_epi32(sum, codes, columns(x));
  }
  static inline void add_signed(SignedSum& sum, Signed codes, const byte* x) { add_unsigned(sum, codes, x); }
  static inline Rows total_unsigned(UnsignedSum sum) { return _mm512_cvtepi32_ps(sum); }
  static inline Rows total_signed(SignedSum sum, float x_sum) {
    return _mm512_fnmadd_ps(all(128.0f), all(x_sum), _mm512_cvtepi32_ps(sum));
  }
};
constexpr int kTile = 8, kUnroll = 8;

#else

using Wide = Narrow;
#if defined(__AVX2__)
constexpr int kTile = 4, kUnroll = 1;
#else
constexpr int kTile = 1, kUnroll = 8;
#endif

#endif

}  // namespace tenonnx::TENONNX_ISA_NS

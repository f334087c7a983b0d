// Lanes of 256 bits; with VNNI the products are its own. Included by `lanes.hpp`.
#pragma once

namespace tenonnx::TENONNX_ISA_NS {

struct Narrow {
  static constexpr int groups = 1;
  using Source = GroupsOf<1>;
  using Rows = __m256;
  using Codes = __m256i;

  static inline Codes load(const Source& w, int at) { return load_as<__m256i>(w.group[0] + at); }
  template <int Bits>
  static inline Codes shift_right(Codes codes) { return _mm256_srli_epi16(codes, Bits); }
  template <int Bits>
  static inline Codes shift_left(Codes codes) { return _mm256_slli_epi16(codes, Bits); }
  static inline Codes select(Codes codes, int mask) { return _mm256_and_si256(codes, _mm256_set1_epi8(char(mask))); }
  static inline Codes either(Codes a, Codes b) { return _mm256_or_si256(a, b); }
  static inline Codes table(const int8_t (&values)[16]) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  }
  static inline Codes lookup(Codes table, Codes places) { return _mm256_shuffle_epi8(table, places); }
  static inline Codes columns(const byte* x) { return _mm256_set1_epi32(load_as<int32_t>(x)); }

#if defined(__AVX512VNNI__)
  // The instruction wants unsigned codes: signed ones get 128 added.
  static constexpr int kShort = 1 << 20, kBias = 128;
  struct Signed {
    __m256i biased;
  };
  struct WideSum {
    __m256i of;
  };
  using ShortSum = WideSum;
  static inline Signed make_signed(Codes codes) { return {_mm256_xor_si256(codes, _mm256_set1_epi8(-128))}; }
  static inline Signed lookup(Signed table, Codes places) { return {lookup(table.biased, places)}; }
  static inline void add(WideSum& sum, Codes codes, const byte* x) { sum.of = _mm256_dpbusd_epi32(sum.of, codes, columns(x)); }
  static inline void add(WideSum& sum, Signed codes, const byte* x) { add(sum, codes.biased, x); }
  static inline Rows total(WideSum sum) { return _mm256_cvtepi32_ps(sum.of); }
#else
  // A sum of 16 bits takes the products of two columns. A signed code is its magnitude times x with the code's sign: a pair
  // is at most 2 * 128 * 127 = 32,512, and is widened at once.
  static constexpr int kShort = 32767 / (2 * 127), kBias = 0;
  struct Signed {
    __m256i codes, magnitudes;
  };
  struct ShortSum {
    __m256i of;
  };
  struct WideSum {
    __m256i of;
  };
  static inline Signed make_signed(Codes codes) { return {codes, _mm256_abs_epi8(codes)}; }
  static inline Signed lookup(const Signed& table, Codes places) {
    return {lookup(table.codes, places), lookup(table.magnitudes, places)};
  }
  static inline __m256i add_pairs(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
  static inline void add(ShortSum& sum, Codes codes, const byte* x) {
    sum.of = _mm256_add_epi16(sum.of, _mm256_maddubs_epi16(codes, columns(x)));
  }
  static inline void add(WideSum& sum, Codes codes, const byte* x) {
    sum.of = _mm256_add_epi32(sum.of, add_pairs(_mm256_maddubs_epi16(codes, columns(x))));
  }
  static inline void add(WideSum& sum, const Signed& w, const byte* x) {
    sum.of = _mm256_add_epi32(sum.of, add_pairs(_mm256_maddubs_epi16(w.magnitudes, _mm256_sign_epi8(columns(x), w.codes))));
  }
  static inline Rows total(ShortSum sum) { return _mm256_cvtepi32_ps(add_pairs(sum.of)); }
  static inline Rows total(WideSum sum) { return _mm256_cvtepi32_ps(sum.of); }
#endif

  static inline void store(Rows rows, float* out) { _mm256_storeu_ps(out, rows); }
  static inline Rows all(float value) { return _mm256_set1_ps(value); }
  static inline Rows negate(Rows a) { return _mm256_xor_ps(a, all(-0.0f)); }
  static inline Rows plus(Rows a, Rows b) { return _mm256_add_ps(a, b); }
  static inline Rows multiply(Rows a, Rows b) { return _mm256_mul_ps(a, b); }
  static inline Rows multiply_add(Rows a, Rows b, Rows c) { return _mm256_fmadd_ps(a, b, c); }
  static inline Rows multiply_subtract(Rows a, Rows b, Rows c) { return _mm256_fnmadd_ps(a, b, c); }
  static inline Rows load_halves(const Source& w, int at) { return _mm256_cvtph_ps(load_as<__m128i>(w.group[0] + at)); }
  static inline Rows load_floats(const Source& w, int at) { return load_as<__m256>(w.group[0] + at); }
  static inline __m128i load_bytes(const Source& w, int at) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(w.group[0] + at));
  }
  static inline Rows load_signed(const Source& w, int at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_bytes(w, at)));
  }
  template <int Shift, int Bits>
  static inline Rows load_fields(const Source& w, int at) {
    __m256i fields = _mm256_cvtepu8_epi32(load_bytes(w, at));
    if constexpr (Shift + Bits < 8) fields = _mm256_and_si256(fields, _mm256_set1_epi32(((1 << Bits) - 1) << Shift));
    if constexpr (Shift > 0) fields = _mm256_srli_epi32(fields, Shift);
    return _mm256_cvtepi32_ps(fields);
  }
  static inline Rows load_half_powers(const Source& w, int at) {
    const __m128i exponents = load_bytes(w, at), ends = _mm_or_si128(_mm_cmpeq_epi8(exponents, _mm_setzero_si128()),
                                                                     _mm_cmpeq_epi8(exponents, _mm_set1_epi8(-1)));
    const __m256i extra = _mm256_and_si256(_mm256_cvtepi8_epi32(ends), _mm256_set1_epi32(0x00400000));
    const __m256i bits = _mm256_or_si256(_mm256_slli_epi32(_mm256_cvtepu8_epi32(exponents), 23), extra);
    return multiply(all(0.5f), _mm256_castsi256_ps(bits));
  }
};

#if !defined(__AVX512VNNI__)
using Wide = Narrow;
constexpr int kTile = 4;
#endif

}  // namespace tenonnx::TENONNX_ISA_NS

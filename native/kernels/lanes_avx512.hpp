// Two groups in lanes of 512 bits; one token alone is better served by one group, whose bytes are one stream of memory.
// Included by `lanes.hpp`.
#pragma once

namespace tenonnx::TENONNX_ISA_NS {

struct Wide {
  static constexpr int groups = 2;
  static constexpr int kShort = Narrow::kShort, kBias = Narrow::kBias;
  using Source = GroupsOf<2>;
  using Rows = __m512;
  using Codes = __m512i;
  struct Signed {
    __m512i biased;
  };
  struct WideSum {
    __m512i of;
  };
  using ShortSum = WideSum;

  static inline Codes load(const Source& w, int at) {
    const __m512i first = _mm512_castsi256_si512(load_as<__m256i>(w.group[0] + at));
    return _mm512_inserti64x4(first, load_as<__m256i>(w.group[1] + at), 1);
  }
  template <int Bits>
  static inline Codes shift_right(Codes codes) { return _mm512_srli_epi16(codes, Bits); }
  template <int Bits>
  static inline Codes shift_left(Codes codes) { return _mm512_slli_epi16(codes, Bits); }
  static inline Codes select(Codes codes, int mask) { return _mm512_and_si512(codes, _mm512_set1_epi8(char(mask))); }
  static inline Codes either(Codes a, Codes b) { return _mm512_or_si512(a, b); }
  static inline Codes table(const int8_t (&values)[16]) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  }
  static inline Codes lookup(Codes table, Codes places) { return _mm512_shuffle_epi8(table, places); }
  static inline Signed lookup(Signed table, Codes places) { return {lookup(table.biased, places)}; }
  static inline Codes columns(const byte* x) { return _mm512_set1_epi32(load_as<int32_t>(x)); }
  static inline Signed make_signed(Codes codes) { return {_mm512_xor_si512(codes, _mm512_set1_epi8(-128))}; }
  static inline void add(WideSum& sum, Codes codes, const byte* x) { sum.of = _mm512_dpbusd_epi32(sum.of, codes, columns(x)); }
  static inline void add(WideSum& sum, Signed codes, const byte* x) { add(sum, codes.biased, x); }
  static inline Rows total(WideSum sum) { return _mm512_cvtepi32_ps(sum.of); }

  static inline void store(Rows rows, float* out) { _mm512_storeu_ps(out, rows); }
  static inline Rows all(float value) { return _mm512_set1_ps(value); }
  static inline Rows negate(Rows a) { return _mm512_xor_ps(a, all(-0.0f)); }
  static inline Rows plus(Rows a, Rows b) { return _mm512_add_ps(a, b); }
  static inline Rows multiply(Rows a, Rows b) { return _mm512_mul_ps(a, b); }
  static inline Rows multiply_add(Rows a, Rows b, Rows c) { return _mm512_fmadd_ps(a, b, c); }
  static inline Rows multiply_subtract(Rows a, Rows b, Rows c) { return _mm512_fnmadd_ps(a, b, c); }

  // Numbers of the rows are loaded as those of two narrow groups.
  static inline Rows join(__m256 first, __m256 second) { return _mm512_insertf32x8(_mm512_castps256_ps512(first), second, 1); }
  static inline Narrow::Source part(const Source& w, int group) { return {{w.group[group]}}; }
  static inline __m128i load_bytes(const Source& w, int at) {
    return _mm_unpacklo_epi64(Narrow::load_bytes(part(w, 0), at), Narrow::load_bytes(part(w, 1), at));
  }
  static inline Rows load_halves(const Source& w, int at) {
    const __m256i first = _mm256_castsi128_si256(load_as<__m128i>(w.group[0] + at));
    return _mm512_cvtph_ps(_mm256_inserti128_si256(first, load_as<__m128i>(w.group[1] + at), 1));
  }
  static inline Rows load_floats(const Source& w, int at) {
    return join(Narrow::load_floats(part(w, 0), at), Narrow::load_floats(part(w, 1), at));
  }
  static inline Rows load_signed(const Source& w, int at) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(w, at))); }
  template <int Shift, int Bits>
  static inline Rows load_fields(const Source& w, int at) {
    __m512i fields = _mm512_cvtepu8_epi32(load_bytes(w, at));
    if constexpr (Shift + Bits < 8) fields = _mm512_and_si512(fields, _mm512_set1_epi32(((1 << Bits) - 1) << Shift));
    if constexpr (Shift > 0) fields = _mm512_srli_epi32(fields, Shift);
    return _mm512_cvtepi32_ps(fields);
  }
  static inline Rows load_half_powers(const Source& w, int at) {
    return join(Narrow::load_half_powers(part(w, 0), at), Narrow::load_half_powers(part(w, 1), at));
  }
};
constexpr int kTile = 8;

}  // namespace tenonnx::TENONNX_ISA_NS

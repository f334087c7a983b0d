// One vector of floats of this copy's width, on the compiler's vector types: the same source serves every instruction
// set, and intrinsics stand only where the language has no word (fused multiply-add, half conversions, sums).
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/half.hpp"

namespace tenonnx::TENONNX_ISA_NS {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t VecInt __attribute__((vector_size(4 * kLanes)));

struct Half { uint16_t bits; };
struct Bfloat { uint16_t bits; };
struct Truth { uint8_t bits; };  // BOOL: any byte but 0 is true
static inline float to_float(float v) { return v; }
static inline float to_float(Half v) { return half_to_float(v.bits); }
static inline float to_float(Bfloat v) { return bfloat_to_float(v.bits); }

#define TENONNX_INLINE static inline __attribute__((always_inline))

TENONNX_INLINE Vec splat(float v) {
#if defined(__AVX512F__)
  return _mm512_set1_ps(v);
#elif defined(__AVX2__)
  return _mm256_set1_ps(v);
#else
  return Vec{v, v, v, v};
#endif
}
TENONNX_INLINE VecInt as_int(Vec v) { return reinterpret_cast<VecInt>(v); }
TENONNX_INLINE Vec as_float(VecInt v) { return reinterpret_cast<Vec>(v); }
TENONNX_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
TENONNX_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }

TENONNX_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

TENONNX_INLINE Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

TENONNX_INLINE Vec load(const Half* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  Vec v;
  for (int i = 0; i < kLanes; ++i) v[i] = to_float(p[i]);
  return v;
#endif
}

TENONNX_INLINE Vec load(const Bfloat* p) {
#if defined(__AVX512F__)
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
#elif defined(__AVX2__)
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
#else
  Vec v;
  for (int i = 0; i < kLanes; ++i) v[i] = to_float(p[i]);
  return v;
#endif
}

// The first n elements, zeros behind: nothing past them is read.
template <typename T>
TENONNX_INLINE Vec load_some(const T* p, int64_t n) {
  T lanes[kLanes] = {};
  std::memcpy(lanes, p, size_t(n) * sizeof(T));
  return load(lanes);
}

TENONNX_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
TENONNX_INLINE void store_some(float* p, Vec v, int64_t n) { std::memcpy(p, &v, size_t(n) * sizeof(float)); }

TENONNX_INLINE void store(Half* p, Vec v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) p[i].bits = float_to_half(v[i]);
#endif
}

// Joins the lanes pairwise, halves against each other: one order wherever it is used.
template <typename F>
TENONNX_INLINE float fold(Vec v, F f) {
#if defined(__AVX512F__)
  const __m256 half = f(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 quad = f(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
#elif defined(__AVX2__)
  const __m128 quad = f(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
#else
  const Vec quad = v;
#endif
  return f(f(quad[0], quad[2]), f(quad[1], quad[3]));
}

TENONNX_INLINE float sum(Vec v) {
  return fold(v, [](auto a, auto b) { return a + b; });
}

TENONNX_INLINE float largest(Vec v) {
  return fold(v, [](auto a, auto b) { return a > b ? a : b; });
}

// out[i] = f(in[i]...) over n contiguous floats; the last, shorter vector goes through the same lanes, so that a value
// never depends on its place.
template <typename F, typename... In>
TENONNX_INLINE void map(float* out, int64_t n, F f, const In*... in) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, f(load(in + i)...));
  if (i < n) store_some(out + i, f(load_some(in + i, n - i)...), n - i);
}

}  // namespace tenonnx::TENONNX_ISA_NS

// FLOAT16 and BFLOAT16 to and from float, with the host's conversion instructions where this copy may use them.
// Everything is static: a copy compiled for one instruction set must never be linked in for another.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace tenonnx::TENONNX_ISA_NS {

static inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

static inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

static inline float half_to_float(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#else
  const uint32_t sign = uint32_t(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return bits_to_float(sign | 0x7f800000u | (magnitude & 0x3ff) << 13 | ((magnitude & 0x3ff) ? 0x400000u : 0));
  // A subnormal half is its integer times 2^-24; others only move their exponent by 112.
  if (magnitude < 0x400) return bits_to_float(sign | float_to_bits(float(magnitude) * 0x1p-24f));
  return bits_to_float(sign | ((magnitude << 13) + 0x38000000u));
#endif
}

// Round to nearest, ties to even; overflow to infinity; a NaN stays a NaN.
static inline uint16_t float_to_half(float value) {
#if defined(__F16C__)
  return uint16_t(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
#else
  const uint32_t bits = float_to_bits(value);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);
  if (magnitude < 0x38800000) {
    // Adding 0.5 puts the last bit of a subnormal half at the last bit of the float sum, which rounds it.
    const float shifted = bits_to_float(magnitude) + 0.5f;
    return uint16_t(sign | (float_to_bits(shifted) - 0x3f000000u));
  }
  return uint16_t(sign | ((magnitude - 0x38000000u + 0xfff + (magnitude >> 13 & 1)) >> 13));
#endif
}

static inline float bfloat_to_float(uint16_t value) { return bits_to_float(uint32_t(value) << 16); }

static inline uint16_t float_to_bfloat(float value) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace tenonnx::TENONNX_ISA_NS

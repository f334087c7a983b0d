// The formats of cache pages that kernels read and write, row by row: a row is whole blocks; bytes as in
// tenonnx/structs/formats_pages.py. Each has bytes(size) of a row of `size` elements, decode and encode.
#pragma once
#include <cmath>

#include "kernels/decode.hpp"

namespace tenonnx::TENONNX_ISA_NS {

template <typename T>
static inline void store_to(byte* at, T value) { std::memcpy(at, &value, sizeof value); }

static inline float reciprocal_of(float scale) { return scale == 0 ? 0.0f : 1.0f / scale; }
static inline float clamped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

struct Extremes {
  float low, high;
};

template <int N>
static inline Extremes extremes(const float* x) {
  Extremes found{x[0], x[0]};
  for (int i = 1; i < N; ++i) {
    found.low = x[i] < found.low ? x[i] : found.low;
    found.high = x[i] > found.high ? x[i] : found.high;
  }
  return found;
}

constexpr float kLargestHalf = 65504.0f;

// kLanes unsigned codes of 16, from place `at` on.
static inline VecInt widen_unsigned(Bytes codes, int at) {
#if defined(__AVX512F__)
  return at == 0 ? VecInt(_mm512_cvtepu8_epi32(__m128i(codes))) : VecInt{};
#elif defined(__AVX2__)
  return VecInt(_mm256_cvtepu8_epi32(at == 0 ? __m128i(codes) : _mm_unpackhi_epi64(__m128i(codes), __m128i(codes))));
#else
  return VecInt{codes[at], codes[at + 1], codes[at + 2], codes[at + 3]};
#endif
}

// value(code) of 16 unsigned codes.
template <typename F>
TENONNX_INLINE void store_unsigned(float* out, Bytes codes, F value) {
  for (int i = 0; i < kVectorCodes; i += kLanes) store(out + i, value(widen_unsigned(codes, i)));
}

// FLOAT16 scale and minimum, then codes of Width bits: the first Block * Width / 8 elements in the lowest bits of their bytes.
template <int Width, int Block>
struct AffineRow {
  static constexpr int kBytes = Block * Width / 8, kSize = 4 + kBytes, kParts = 8 / Width, kLargest = (1 << Width) - 1;

  static int64_t bytes(int64_t size) { return size % Block == 0 ? size / Block * kSize : -1; }

  static void decode(const byte* row, int64_t size, float* out) {
    for (int64_t i = 0; i < size; i += Block, row += kSize) {
      const float d = half_at(row), m = half_at(row + 2);
      if constexpr (kBytes % kVectorCodes == 0) {
        for (int part = 0; part < kParts; ++part)
          for (int j = 0; j < kBytes; j += kVectorCodes)
            store_unsigned(out + i + part * kBytes + j, load_from<Bytes>(row + 4 + j) >> uint8_t(part * Width) & uint8_t(kLargest),
                           [d, m](VecInt code) { return fma(splat(d), to_floats(code), splat(m)); });
        continue;
      }
      uint8_t packed[kBytes];
      std::memcpy(packed, row + 4, kBytes);
      for (int part = 0; part < kParts; ++part)
        for (int j = 0; j < kBytes; ++j) out[i + part * kBytes + j] = d * float(packed[j] >> part * Width & kLargest) + m;
    }
  }

  static void encode(const float* x, int64_t size, byte* row) {
    for (int64_t i = 0; i < size; i += Block, row += kSize) {
      const Extremes found = extremes<Block>(x + i);
      const uint16_t m = float_to_half(clamped(found.low, -kLargestHalf, kLargestHalf));
      const float low = half_to_float(m);
      const uint16_t d = float_to_half(clamped((found.high - low) / float(kLargest), 0, kLargestHalf));
      const float inverse = reciprocal_of(half_to_float(d));
      uint8_t packed[kBytes] = {};
      for (int part = 0; part < kParts; ++part)
        for (int j = 0; j < kBytes; ++j) {
          const float steps = (x[i + part * kBytes + j] - low) * inverse;
          // The comparisons are false for NaN, which becomes code 0.
          const float code = steps > 0 ? (steps < float(kLargest) ? __builtin_rintf(steps) : float(kLargest)) : 0.0f;
          packed[j] = uint8_t(packed[j] | unsigned(code) << part * Width);
        }
      store_to(row, d);
      store_to(row + 2, m);
      std::memcpy(row + 4, packed, kBytes);
    }
  }
};

// FLOAT8E4M3FN from its bits: moved into a float's place it is a float 2^120 too small, subnormals included.
static inline float float_of_e4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7f;
  const float value = bits_to_float(magnitude << 20) * 0x1p120f;
  return bits_to_float(float_to_bits(magnitude == 0x7f ? __builtin_nanf("") : value) | uint32_t(code & 0x80) << 24);
}

// To nearest, ties to even; |x| is at most 448. Adding 2^(exponent + 20) would round in one step, but so does the integer
// arithmetic on a float scaled to where FLOAT8 subnormals are float subnormals' neighbours: here by a table-free split.
static inline uint8_t e4m3_of_float(float x) {
  const uint32_t bits = float_to_bits(x), sign = bits >> 24 & 0x80, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint8_t(sign | 0x7f);
  if (magnitude < 0x3c800000) {  // under 2^-6: a multiple of 2^-9, rounded by the last place of 2^14
    const float shifted = bits_to_float(magnitude) + 0x1p14f;
    return uint8_t(sign | (float_to_bits(shifted) - 0x46800000u));
  }
  const uint32_t rounded = magnitude + 0x7ffff + (magnitude >> 20 & 1);
  return uint8_t(sign | ((rounded - (120u << 23)) >> 20));
}

// One FLOAT16 scale for the row, then FLOAT8E4M3FN elements.
struct Fp8Row {
  static int64_t bytes(int64_t size) { return size + 2; }

  static void decode(const byte* row, int64_t size, float* out) {
    const float d = half_at(row);
    int64_t i = 0;
    for (; i + kVectorCodes <= size; i += kVectorCodes)
      store_unsigned(out + i, load_from<Bytes>(row + 2 + i), [d](VecInt code) {
        const VecInt magnitude = code & 127;
        const Vec value = as_float(magnitude << 20) * 0x1p120f;
        const Vec found = magnitude == 127 ? splat(__builtin_nanf("")) : value;
        return as_float(as_int(found) | (code & 128) << 24) * d;
      });
    for (; i < size; ++i) out[i] = d * float_of_e4m3(uint8_t(row[2 + i]));
  }

  static void encode(const float* x, int64_t size, byte* row) {
    float largest = 0;
    for (int64_t i = 0; i < size; ++i) largest = __builtin_fabsf(x[i]) > largest ? __builtin_fabsf(x[i]) : largest;
    const uint16_t d = float_to_half(clamped(largest / 448.0f, 0, kLargestHalf));
    const float inverse = reciprocal_of(half_to_float(d));
    store_to(row, d);
    for (int64_t i = 0; i < size; ++i) row[2 + i] = byte(e4m3_of_float(clamped(x[i] * inverse, -448.0f, 448.0f)));
  }
};

struct F32Row {
  static int64_t bytes(int64_t size) { return 4 * size; }
  static void decode(const byte* row, int64_t size, float* out) { std::memcpy(out, row, size_t(size) * 4); }
  static void encode(const float* x, int64_t size, byte* row) { std::memcpy(row, x, size_t(size) * 4); }
};

struct F16Row {
  static int64_t bytes(int64_t size) { return 2 * size; }
  static void decode(const byte* row, int64_t size, float* out) {
    for (int64_t i = 0; i < size; ++i) out[i] = half_at(row + 2 * i);
  }
  static void encode(const float* x, int64_t size, byte* row) {
    for (int64_t i = 0; i < size; ++i) store_to(row + 2 * i, float_to_half(x[i]));
  }
};

struct BF16Row {
  static int64_t bytes(int64_t size) { return 2 * size; }
  static void decode(const byte* row, int64_t size, float* out) {
    for (int64_t i = 0; i < size; ++i) out[i] = bfloat_to_float(load_from<uint16_t>(row + 2 * i));
  }
  static void encode(const float* x, int64_t size, byte* row) {
    for (int64_t i = 0; i < size; ++i) store_to(row + 2 * i, float_to_bfloat(x[i]));
  }
};

// GGUF's blocks of 32, as its own encoder makes them. `Block` has decode and encode of one of them.
template <typename Block>
struct BlockRow {
  static int64_t bytes(int64_t size) { return size % 32 == 0 ? size / 32 * Block::kSize : -1; }
  static void decode(const byte* row, int64_t size, float* out) {
    for (int64_t i = 0; i < size; i += 32, row += Block::kSize) Block::decode(row, out + i);
  }
  static void encode(const float* x, int64_t size, byte* row) {
    for (int64_t i = 0; i < size; i += 32, row += Block::kSize) Block::encode(x + i, row);
  }
};

struct Q8_0Block {
  static constexpr int kSize = 34;
  static void decode(const byte* block, float* out) {
    const float d = half_at(block);
    store_scaled(out, load_from<Bytes>(block + 2), d);
    store_scaled(out + 16, load_from<Bytes>(block + 18), d);
  }
  static void encode(const float* x, byte* block) {
    const Extremes found = extremes<32>(x);
    const float largest = -found.low > found.high ? -found.low : found.high;
    const float scale = largest / 127.0f, inverse = reciprocal_of(scale);
    store_to(block, float_to_half(scale));
    for (int i = 0; i < 32; ++i) {
      const float steps = x[i] * inverse, magnitude = __builtin_floorf(__builtin_fabsf(steps) + 0.5f);
      const float code = magnitude < 127.0f ? magnitude : 127.0f;
      block[2 + i] = byte(int8_t(code >= 0 ? (steps < 0 ? -code : code) : 0));
    }
  }
};

struct Q4_0Block {
  static constexpr int kSize = 18;
  static void decode(const byte* block, float* out) {
    const float d = half_at(block);
    const Bytes packed = load_from<Bytes>(block + 2);
    store_scaled(out, low_nibbles(packed) - 8, d);
    store_scaled(out + 16, high_nibbles(packed) - 8, d);
  }
  static uint8_t code(float x, float inverse) {
    const float found = __builtin_fmaf(x, inverse, 8.5f);
    return found > 0 ? uint8_t(found < 15.0f ? found : 15.0f) : uint8_t(0);
  }
  static void encode(const float* x, byte* block) {
    float largest = x[0];  // of magnitude, with its sign
    for (int i = 1; i < 32; ++i) largest = __builtin_fabsf(x[i]) > __builtin_fabsf(largest) ? x[i] : largest;
    const float scale = largest / -8.0f, inverse = reciprocal_of(scale);
    store_to(block, float_to_half(scale));
    for (int i = 0; i < 16; ++i) block[2 + i] = byte(code(x[i], inverse) | code(x[i + 16], inverse) << 4);
  }
};

struct Mxfp4Block {
  static constexpr int kSize = 17;
  // FLOAT4E2M1, doubled: the sign in the highest bit of a code.
  static float value(uint8_t code, float scale) {
    constexpr float doubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    const float magnitude = doubled[code & 7] * 0.5f * scale;
    return code & 8 ? -magnitude : magnitude;
  }
  static float scale_of(uint8_t e) {
    return bits_to_float(e == 0xff ? 0x7fc00000u : e == 0 ? 0x00400000u : uint32_t(e) << 23);
  }
  static void decode(const byte* block, float* out) {
    const float d = scale_of(uint8_t(block[0]));
    for (int i = 0; i < 16; ++i) {
      out[i] = value(uint8_t(block[1 + i]) & 15, d);
      out[i + 16] = value(uint8_t(block[1 + i]) >> 4, d);
    }
  }
  static uint8_t nearest(float x, float scale) {  // ties to the lower code, positive codes first
    uint8_t best = 0;
    float least = __builtin_fabsf(x);
    for (uint8_t code = 1; code < 16; ++code) {
      const float off = __builtin_fabsf(value(code, scale) - x);
      if (off < least) least = off, best = code;
    }
    return best;
  }
  static void encode(const float* x, byte* block) {
    const Extremes found = extremes<32>(x);
    const float largest = -found.low > found.high ? -found.low : found.high;
    int exponent = 0;
    if (largest > 0 && largest <= 0x1.fffffep127f) {
      (void)std::frexp(largest, &exponent);
      exponent = exponent - 1 + 125 < 0 ? 0 : exponent - 1 + 125;
    }
    block[0] = byte(uint8_t(exponent));
    const float scale = scale_of(uint8_t(exponent));
    for (int i = 0; i < 16; ++i) block[1 + i] = byte(nearest(x[i], scale) | nearest(x[i + 16], scale) << 4);
  }
};

}  // namespace tenonnx::TENONNX_ISA_NS

// Blocks with one scale: 32 elements of 4, 5 or 8 bits, some with a minimum or a table, and the microscaling formats.
// Formats of 4 bits keep element i in the low half of byte i and element i + 16 in its high half.
#include "kernels/decode.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

constexpr int kElements = 32;

// The values of a 16-entry table for 32 split nibbles.
void store_table(float* out, Bytes table, Bytes packed, float scale) {
  store_scaled(out, __builtin_shuffle(table, low_nibbles(packed)), scale);
  store_scaled(out + 16, __builtin_shuffle(table, high_nibbles(packed)), scale);
}

struct Q4_0 {
  static constexpr int bytes = 18, elements = kElements;
  static void decode(const byte* block, float* out) {
    const float d = half_at(block);
    const Bytes packed = load_from<Bytes>(block + 2);
    store_scaled(out, low_nibbles(packed) - 8, d);
    store_scaled(out + 16, high_nibbles(packed) - 8, d);
  }
};

struct Q4_1 {
  static constexpr int bytes = 20, elements = kElements;
  static void decode(const byte* block, float* out) {
    const float d = half_at(block), m = half_at(block + 2);
    const Bytes packed = load_from<Bytes>(block + 4);
    store_affine(out, low_nibbles(packed), d, m);
    store_affine(out + 16, high_nibbles(packed), d, m);
  }
};

struct Q5_0 {
  static constexpr int bytes = 22, elements = kElements;
  static void decode(const byte* block, float* out) {
    const float d = half_at(block);
    const uint32_t high = load_from<uint32_t>(block + 2);
    const Bytes packed = load_from<Bytes>(block + 6);
    store_scaled(out, (low_nibbles(packed) | spread_bits(high, 16)) - 16, d);
    store_scaled(out + 16, (high_nibbles(packed) | spread_bits(high >> 16, 16)) - 16, d);
  }
};

struct Q5_1 {
  static constexpr int bytes = 24, elements = kElements;
  static void decode(const byte* block, float* out) {
    const float d = half_at(block), m = half_at(block + 2);
    const uint32_t high = load_from<uint32_t>(block + 4);
    const Bytes packed = load_from<Bytes>(block + 8);
    store_affine(out, low_nibbles(packed) | spread_bits(high, 16), d, m);
    store_affine(out + 16, high_nibbles(packed) | spread_bits(high >> 16, 16), d, m);
  }
};

struct Q8_0 {
  static constexpr int bytes = 34, elements = kElements;
  static void decode(const byte* block, float* out) {
    const float d = half_at(block);
    store_scaled(out, load_from<Bytes>(block + 2), d);
    store_scaled(out + 16, load_from<Bytes>(block + 18), d);
  }
};

constexpr Codes kNonlinear = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct IQ4_NL {
  static constexpr int bytes = 18, elements = kElements;
  static void decode(const byte* block, float* out) {
    store_table(out, Bytes(kNonlinear), load_from<Bytes>(block + 2), half_at(block));
  }
};

struct IQ4_XS {
  static constexpr int bytes = 136, elements = 256;
  static void decode(const byte* block, float* out) {
    const float d = half_at(block);
    const uint32_t high = load_from<uint16_t>(block + 2), low = load_from<uint32_t>(block + 4);
    for (int i = 0; i < 8; ++i) {
      const int scale = int((low >> 4 * i & 15) | (high >> 2 * i & 3) << 4) - 32;
      store_table(out + 32 * i, Bytes(kNonlinear), load_from<Bytes>(block + 8 + 16 * i), d * float(scale));
    }
  }
};

// FLOAT4E2M1 by a table of twice its magnitudes with the sign in the highest bit: -0 is a value too.
void store_float4(float* out, Bytes codes, float scale) {
  constexpr uint8_t minus = 128;
  const Bytes doubled = {0, 1, 2, 3, 4, 6, 8, 12, minus, minus + 1, minus + 2, minus + 3, minus + 4, minus + 6, minus + 8, minus + 12};
  store_codes(out, __builtin_shuffle(doubled, codes), [scale](VecInt code) {
    const Vec magnitude = to_floats(code & 127) * 0.5f;
    return as_float(as_int(magnitude) | (code & INT32_MIN)) * scale;
  });
}

// FLOAT8E8M0: 2^(e - 127), and NaN for e = 255.
float scale_e8m0(uint8_t e) {
  if (e == 0xff) return bits_to_float(0x7fc00000u);
  return bits_to_float(e == 0 ? 0x00400000u : uint32_t(e) << 23);
}

// FLOAT8E4M3FN: sign, 4 bits of exponent, 3 of fraction; both codes with all bits below the sign set are NaN.
float scale_e4m3(uint8_t code) {
  const uint32_t sign = uint32_t(code & 0x80) << 24, magnitude = code & 0x7f;
  if (magnitude == 0x7f) return bits_to_float(sign | 0x7fc00000u);
  if (magnitude < 8) return bits_to_float(sign | float_to_bits(float(magnitude) * 0x1p-9f));
  return bits_to_float(sign | ((magnitude << 20) + (120u << 23)));
}

struct MXFP4 {
  static constexpr int bytes = 17, elements = kElements;
  static void decode(const byte* block, float* out) {
    const float d = scale_e8m0(uint8_t(block[0]));
    const Bytes packed = load_from<Bytes>(block + 1);
    store_float4(out, low_nibbles(packed), d);
    store_float4(out + 16, high_nibbles(packed), d);
  }
};

// Four runs of 16 elements, each with a scale; per 8 bytes 8 low nibbles, then 8 high ones.
struct NVFP4 {
  static constexpr int bytes = 36, elements = 64;
  static void decode(const byte* block, float* out) {
    for (int i = 0; i < 4; ++i) {
      const uint64_t packed = load_from<uint64_t>(block + 4 + 8 * i), mask = 0x0f0f0f0f0f0f0f0f;
      const uint64_t halves[2] = {packed & mask, packed >> 4 & mask};
      Bytes codes;
      std::memcpy(&codes, halves, sizeof codes);
      store_float4(out + 16 * i, codes, scale_e4m3(uint8_t(block[i])));
    }
  }
};

// Plain floats, one at a time: the compiler has vectors for the conversions.
struct F16 {
  static constexpr int bytes = 2, elements = 1;
  static void decode(const byte* value, float* out) { *out = half_at(value); }
};

struct BF16 {
  static constexpr int bytes = 2, elements = 1;
  static void decode(const byte* value, float* out) { *out = bfloat_to_float(load_from<uint16_t>(value)); }
};

struct F32 {
  static constexpr int bytes = 4, elements = 1;
  static void decode(const byte* value, float* out) { std::memcpy(out, value, 4); }
};

}  // namespace

KernelTable decode_blocks_table() {
  // in: blocks UINT8 [bytes]; out: values FLOAT [blocks * elements]
  static const Kernel kernels[] = {
      BlockDecoder<Q4_0>::kernel("decode_Q4_0"),     BlockDecoder<Q4_1>::kernel("decode_Q4_1"),
      BlockDecoder<Q5_0>::kernel("decode_Q5_0"),     BlockDecoder<Q5_1>::kernel("decode_Q5_1"),
      BlockDecoder<Q8_0>::kernel("decode_Q8_0"),     BlockDecoder<IQ4_NL>::kernel("decode_IQ4_NL"),
      BlockDecoder<IQ4_XS>::kernel("decode_IQ4_XS"), BlockDecoder<MXFP4>::kernel("decode_MXFP4"),
      BlockDecoder<NVFP4>::kernel("decode_NVFP4"),   BlockDecoder<F16>::kernel("decode_F16"),
      BlockDecoder<BF16>::kernel("decode_BF16"),     BlockDecoder<F32>::kernel("decode_F32"),
  };
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

// From blocks of a known format to FLOAT: what the decode kernels share. A block's codes are taken 16 at a time as the
// bytes of one vector; a scale times a code is exact in a float for every format here, so that the values are those of
// the format's formula to the last bit, whether or not the product is fused with the sum.
#pragma once
#include <cstddef>
#include <cstring>

#include "kernels/check.hpp"
#include "kernels/vec.hpp"

namespace tenonnx::TENONNX_ISA_NS {

using std::byte;

typedef uint8_t Bytes __attribute__((vector_size(16)));
typedef int8_t Codes __attribute__((vector_size(16)));

constexpr int kVectorCodes = 16;

template <typename T>
static inline T load_from(const byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

static inline float half_at(const byte* at) { return half_to_float(load_from<uint16_t>(at)); }

static inline Bytes in_each(uint8_t value) { return Bytes{} + value; }

static inline Bytes low_nibbles(Bytes packed) { return packed & 15; }
static inline Bytes high_nibbles(Bytes packed) { return packed >> 4; }
static inline Bytes crumbs(Bytes packed, int place) { return packed >> uint8_t(2 * place) & 3; }

// `value` in each byte of `flags` that has one of the bits of `mask`, 0 elsewhere.
static inline Bytes where_set(Bytes flags, Bytes mask, uint8_t value) { return Bytes((flags & mask) != 0) & value; }

// Sixteen single bits, the lowest first, as `value` or 0.
static inline Bytes spread_bits(uint32_t bits, uint8_t value) {
  const uint8_t low = uint8_t(bits), high = uint8_t(bits >> 8);
  const Bytes flags = {low, low, low, low, low, low, low, low, high, high, high, high, high, high, high, high};
  return where_set(flags, Bytes{1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128}, value);
}

// kLanes signed codes, from place `at` on.
static inline VecInt widen(Codes codes, int at) {
#if defined(__AVX512F__)
  return at == 0 ? VecInt(_mm512_cvtepi8_epi32(__m128i(codes))) : VecInt{};
#elif defined(__AVX2__)
  return VecInt(_mm256_cvtepi8_epi32(at == 0 ? __m128i(codes) : _mm_unpackhi_epi64(__m128i(codes), __m128i(codes))));
#else
  return VecInt{codes[at], codes[at + 1], codes[at + 2], codes[at + 3]};
#endif
}

static inline Vec to_floats(VecInt codes) { return __builtin_convertvector(codes, Vec); }

// Floats from 16 signed codes, a vector at a time.
template <typename F>
static inline void store_codes(float* out, Bytes codes, F value) {
  for (int i = 0; i < kVectorCodes; i += kLanes) store(out + i, value(widen(Codes(codes), i)));
}

// scale * code, and scale * code + minimum
static inline void store_scaled(float* out, Bytes codes, float scale) {
  store_codes(out, codes, [scale](VecInt code) { return to_floats(code) * scale; });
}
static inline void store_affine(float* out, Bytes codes, float scale, float minimum) {
  store_codes(out, codes, [scale, minimum](VecInt code) { return to_floats(code) * scale + minimum; });
}

// A format F has `bytes` and `elements` of one block, and decode(block, out).
template <typename F>
struct BlockDecoder {
  static constexpr int64_t kTaskBlocks = F::elements < 8192 ? 8192 / F::elements : 1;

  static std::string validate(const Args& a) {
    REQUIRE_OK(check_call(a, {1, 1, 1, 1, 0, 0}));
    const Tensor &in = a.in[0], &out = a.out[0];
    REQUIRE(in.dtype == DType::UInt8 && in.rank == 1 && in.contiguous(), "blocks are %s, expected contiguous UINT8 [bytes]", describe(in));
    REQUIRE(in.dims[0] % F::bytes == 0, "%lld bytes are no whole number of blocks of %d bytes", (long long)in.dims[0], int(F::bytes));
    int64_t elements;
    REQUIRE(!__builtin_mul_overflow(in.dims[0] / F::bytes, int64_t(F::elements), &elements), "larger than an address space");
    REQUIRE(out.dtype == DType::Float && out.rank == 1 && out.contiguous() && out.dims[0] == elements,
            "values are %s, expected contiguous FLOAT [%lld]", describe(out), (long long)elements);
    return {};
  }

  static int64_t blocks(const Args& a) { return a.in[0].dims[0] / F::bytes; }

  static int64_t tasks(const Args& a) { return (blocks(a) + kTaskBlocks - 1) / kTaskBlocks; }

  static void run(const Args& a, int64_t begin, int64_t end) {
    const int64_t last = end * kTaskBlocks < blocks(a) ? end * kTaskBlocks : blocks(a);
    for (int64_t block = begin * kTaskBlocks; block < last; ++block)
      F::decode(a.in[0].data + block * F::bytes, a.out[0].as<float>() + block * F::elements);
  }

  static constexpr Kernel kernel(const char* name) { return {name, validate, tasks, run}; }
};

}  // namespace tenonnx::TENONNX_ISA_NS

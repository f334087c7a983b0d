// Blocks of 256 elements: the K-quants, whose small scales are multiples of one or two FLOAT16, and the ternary formats.
// Where several elements share a byte, element 32 j + l of a run lies in byte l at place j.
#include "kernels/decode.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

constexpr int kElements = 256;

Bytes bytes_at(const byte* at) { return load_from<Bytes>(at); }

struct Q2_K {
  static constexpr int bytes = 84, elements = kElements;
  static void decode(const byte* block, float* out) {
    const float d = half_at(block + 80), dmin = half_at(block + 82);
    for (int run = 0; run < 16; ++run) {  // of 16 elements
      const uint8_t scales = uint8_t(block[run]);
      const byte* codes = block + 16 + run / 8 * 32 + run % 2 * 16;
      store_affine(out + 16 * run, crumbs(bytes_at(codes), run / 2 % 4), d * float(scales & 15), -(dmin * float(scales >> 4)));
    }
  }
};

struct Q3_K {
  static constexpr int bytes = 110, elements = kElements;
  static void decode(const byte* block, float* out) {
    const float d = half_at(block + 108);
    for (int run = 0; run < 16; ++run) {
      const int low = int(block[96 + run % 8]) >> run / 8 * 4 & 15, high = int(block[104 + run % 4]) >> run / 4 * 2 & 3;
      const Bytes codes = crumbs(bytes_at(block + 32 + run / 8 * 32 + run % 2 * 16), run / 2 % 4);
      const Bytes third = where_set(bytes_at(block + run % 2 * 16), in_each(uint8_t(1 << run / 2)), 4);
      store_scaled(out + 16 * run, (codes | third) - 4, d * float((low | high << 4) - 32));
    }
  }
};

// Scale and minimum of each run of 32 elements in 12 bytes: 6 bits each, the upper two of runs 4 to 7 kept apart.
struct Header {
  float scale[8], minimum[8];
  explicit Header(const byte* block) {
    const float d = half_at(block), dmin = half_at(block + 2);
    for (int i = 0; i < 4; ++i) {
      const int s = int(block[4 + i]), m = int(block[8 + i]), low = int(block[12 + i]);
      scale[i] = d * float(s & 63);
      minimum[i] = -(dmin * float(m & 63));
      scale[i + 4] = d * float((low & 15) | s >> 6 << 4);
      minimum[i + 4] = -(dmin * float(low >> 4 | m >> 6 << 4));
    }
  }
};

struct Q4_K {
  static constexpr int bytes = 144, elements = kElements;
  static void decode(const byte* block, float* out) {
    const Header header(block);
    for (int run = 0; run < 8; run += 2) {
      for (int half = 0; half < 2; ++half) {
        const Bytes packed = bytes_at(block + 16 + 16 * run + 16 * half);
        float* to = out + 32 * run + 16 * half;
        store_affine(to, low_nibbles(packed), header.scale[run], header.minimum[run]);
        store_affine(to + 32, high_nibbles(packed), header.scale[run + 1], header.minimum[run + 1]);
      }
    }
  }
};

struct Q5_K {
  static constexpr int bytes = 176, elements = kElements;
  static void decode(const byte* block, float* out) {
    const Header header(block);
    for (int run = 0; run < 8; run += 2) {
      for (int half = 0; half < 2; ++half) {
        const Bytes packed = bytes_at(block + 48 + 16 * run + 16 * half), fifth = bytes_at(block + 16 + 16 * half);
        const Bytes first = where_set(fifth, in_each(uint8_t(1 << run)), 16), second = where_set(fifth, in_each(uint8_t(2 << run)), 16);
        float* to = out + 32 * run + 16 * half;
        store_affine(to, low_nibbles(packed) | first, header.scale[run], header.minimum[run]);
        store_affine(to + 32, high_nibbles(packed) | second, header.scale[run + 1], header.minimum[run + 1]);
      }
    }
  }
};

struct Q6_K {
  static constexpr int bytes = 210, elements = kElements;
  static void decode(const byte* block, float* out) {
    const float d = half_at(block + 208);
    for (int run = 0; run < 16; ++run) {
      const int part = run / 8, place = run % 8;  // 128 elements have 64 bytes of low halves and 32 of high crumbs
      const Bytes packed = bytes_at(block + 64 * part + place % 4 * 16);
      const Bytes low = place < 4 ? low_nibbles(packed) : high_nibbles(packed);
      const Bytes high = crumbs(bytes_at(block + 128 + 32 * part + place % 2 * 16), place / 2) << 4;
      store_scaled(out + 16 * run, (low | high) - 32, d * float(int8_t(block[192 + run])));
    }
  }
};

struct TQ2_0 {
  static constexpr int bytes = 66, elements = kElements;
  static void decode(const byte* block, float* out) {
    const float d = half_at(block + 64);
    for (int run = 0; run < 16; ++run)
      store_scaled(out + 16 * run, crumbs(bytes_at(block + run / 8 * 32 + run % 2 * 16), run / 2 % 4) - 1, d);
  }
};

// Five ternary digits a byte, as a fraction of 256: a digit is the whole part of three times what the digits before leave.
Bytes digit(Bytes fraction) {
  typedef uint16_t Wide __attribute__((vector_size(32)));
  return __builtin_convertvector(__builtin_convertvector(fraction, Wide) * 3 >> 8, Bytes);
}

struct TQ1_0 {
  static constexpr int bytes = 54, elements = kElements;
  static void decode(const byte* block, float* out) {
    const float d = half_at(block + 52);
    static constexpr uint8_t powers[] = {1, 3, 9, 27, 81};
    for (int place = 0; place < 5; ++place) {
      for (int half = 0; half < 2; ++half)
        store_scaled(out + 32 * place + 16 * half, digit(bytes_at(block + 16 * half) * powers[place]) - 1, d);
      store_scaled(out + 160 + 16 * place, digit(bytes_at(block + 32) * powers[place]) - 1, d);
    }
    Bytes rest;  // four bytes have four digits each, the last 16 elements
    for (int i = 0; i < kVectorCodes; ++i) rest[i] = uint8_t(uint8_t(block[48 + i % 4]) * powers[i / 4]);
    store_scaled(out + 240, digit(rest) - 1, d);
  }
};

}  // namespace

KernelTable decode_superblocks_table() {
  // in: blocks UINT8 [bytes]; out: values FLOAT [blocks * 256]
  static const Kernel kernels[] = {
      BlockDecoder<Q2_K>::kernel("decode_Q2_K"),   BlockDecoder<Q3_K>::kernel("decode_Q3_K"),
      BlockDecoder<Q4_K>::kernel("decode_Q4_K"),   BlockDecoder<Q5_K>::kernel("decode_Q5_K"),
      BlockDecoder<Q6_K>::kernel("decode_Q6_K"),   BlockDecoder<TQ1_0>::kernel("decode_TQ1_0"),
      BlockDecoder<TQ2_0>::kernel("decode_TQ2_0"),
  };
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

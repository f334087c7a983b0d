// Packing of formats with two levels of scales: 256 columns under FLOAT16 numbers, with small integers per 16 or 32.
#include "kernels/pack.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

constexpr int kColumns = 256, kSubs = kColumns / kBlock;

template <typename L, int Bytes>
struct Super {
  static constexpr Format source{1, kColumns, Bytes}, packed = L::packed;

  static byte* sub(byte* at, int i) { return at + L::Scales::head + i * L::sub_bytes; }
  static void put_codes(byte* at, int row, const uint8_t (&codes)[kColumns]) {
    for (int i = 0; i < kSubs; ++i) L::Codes::pack(sub(at, i) + L::Scales::bytes, row, codes + kBlock * i);
  }
};

// Adds to each code, from bit Target on, a field of Bits of a byte. Runs of Run bytes hold the codes of their first fields,
// then of their second ones, and so on.
template <int Bits, int Run, int Target>
void add_fields(const byte* packed, uint8_t (&codes)[kColumns]) {
  constexpr int fields = 8 / Bits;
  for (int run = 0; run < kColumns / (Run * fields); ++run)
    for (int field = 0; field < fields; ++field)
      for (int i = 0; i < Run; ++i) {
        const int value = int(packed[run * Run + i]) >> (field * Bits) & ((1 << Bits) - 1);
        uint8_t& code = codes[(run * fields + field) * Run + i];
        code = uint8_t(code | value << Target);
      }
}

struct Q2_K : Super<Q2K, 84> {
  static void add(byte* at, int row, const byte* block) {
    put_half(at, row, block + 80);
    put_half(at + 2 * kGroup, row, block + 82);
    for (int i = 0; i < 16; ++i) sub(at, i / 2)[i % 2 * kGroup + row] = block[i];
    uint8_t codes[kColumns] = {};
    add_fields<2, 32, 0>(block + 16, codes);
    put_codes(at, row, codes);
  }
};

// Ternary: d * (code - 1) is d * 1 * code - d * 1.
void put_unit_header(byte* at, int row, const byte* d) {
  put_half(at, row, d);
  put_half(at + 2 * kGroup, row, d);
  for (int i = 0; i < 16; ++i) at[Q2K::Scales::head + i / 2 * Q2K::sub_bytes + i % 2 * kGroup + row] = byte(0x11);
}

struct TQ2_0 : Super<Q2K, 66> {
  static void add(byte* at, int row, const byte* block) {
    put_unit_header(at, row, block + 64);
    uint8_t codes[kColumns] = {};
    add_fields<2, 32, 0>(block, codes);
    put_codes(at, row, codes);
  }
};

// Digits to base 3 of bytes that are fractions of 256, the first digits of all bytes first.
uint8_t* put_digits(const byte* packed, int bytes, int digits, uint8_t* codes) {
  for (int digit = 0, power = 1; digit < digits; ++digit, power *= 3)
    for (int i = 0; i < bytes; ++i) *codes++ = uint8_t(uint8_t(int(packed[i]) * power) * 3 >> 8);
  return codes;
}

struct TQ1_0 : Super<Q2K, 54> {
  static void add(byte* at, int row, const byte* block) {
    put_unit_header(at, row, block + 52);
    uint8_t codes[kColumns];
    put_digits(block + 48, 4, 4, put_digits(block + 32, 16, 5, put_digits(block, 32, 5, codes)));
    put_codes(at, row, codes);
  }
};

struct Q3_K : Super<Q3K, 110> {
  static void add(byte* at, int row, const byte* block) {
    put_half(at, row, block + 108);
    const byte *low = block + 96, *high = block + 104;
    for (int i = 0; i < 16; ++i) {
      const int scale = (int(low[i % 8]) >> (i / 8 * 4) & 15) | (int(high[i % 4]) >> (i / 4 * 2) & 3) << 4;
      sub(at, i / 2)[i % 2 * kGroup + row] = byte(scale - 32);
    }
    uint8_t codes[kColumns] = {};
    add_fields<2, 32, 0>(block + 32, codes);
    add_fields<1, 32, 2>(block, codes);
    put_codes(at, row, codes);
  }
};

// Scales and minima of 6 bits: four of each whole, then the low halves of four more, whose top bits lie above the first.
template <typename L>
void put_affine_header(byte* at, int row, const byte* block) {
  put_half(at, row, block);
  put_half(at + 2 * kGroup, row, block + 2);
  const uint32_t scales = load_word(block + 4), minima = load_word(block + 8), rest = load_word(block + 12);
  const uint32_t whole = 0x3f3f3f3fu, low = 0x0f0f0f0fu, top = 0x30303030u;
  const uint32_t words[4] = {scales & whole, minima & whole, (rest & low) | (scales >> 2 & top),
                             (rest >> 4 & low) | (minima >> 2 & top)};
  for (int i = 0; i < kSubs; ++i) {
    byte* scale = at + L::Scales::head + i * L::sub_bytes + row;
    scale[0] = byte(words[i / 4 * 2] >> (i % 4 * 8));
    scale[kGroup] = byte(words[i / 4 * 2 + 1] >> (i % 4 * 8));
  }
}

struct Q4_K : Super<Q4K, 144> {
  static void add(byte* at, int row, const byte* block) {
    put_affine_header<Q4K>(at, row, block);
    uint8_t codes[kColumns] = {};
    add_fields<4, 32, 0>(block + 16, codes);
    put_codes(at, row, codes);
  }
};

struct Q5_K : Super<Q5K, 176> {
  static void add(byte* at, int row, const byte* block) {
    put_affine_header<Q5K>(at, row, block);
    uint8_t codes[kColumns] = {};
    add_fields<4, 32, 0>(block + 48, codes);
    add_fields<1, 32, 4>(block + 16, codes);
    put_codes(at, row, codes);
  }
};

struct Q6_K : Super<Q6K, 210> {
  static void add(byte* at, int row, const byte* block) {
    put_half(at, row, block + 208);
    for (int i = 0; i < 16; ++i) sub(at, i / 2)[i % 2 * kGroup + row] = block[192 + i];
    uint8_t codes[kColumns] = {};
    add_fields<4, 64, 0>(block, codes);
    add_fields<2, 32, 4>(block + 128, codes);
    put_codes(at, row, codes);
  }
};

struct IQ4_XS : Super<IQ4K, 136> {
  static void add(byte* at, int row, const byte* block) {
    put_half(at, row, block);
    for (int i = 0; i < kSubs; ++i) {
      const int high = int(block[2 + i / 4]) >> (i % 4 * 2) & 3, low = int(block[4 + i / 2]) >> (i % 2 * 4) & 15;
      sub(at, i)[row] = byte((low | high << 4) - 32);
      put_words<4>(sub(at, i) + IQ4K::Scales::bytes, row, block + 8 + 16 * i);
    }
  }
};

}  // namespace

KernelTable pack_k_table() {
  // in: source UINT8 [bytes], out: packed UINT8 [bytes], ints: N, K
  static const Kernel kernels[] = {
      packer<Q2_K>("pack_q2k_from_Q2_K"), packer<Q3_K>("pack_q3k_from_Q3_K"), packer<Q4_K>("pack_q4k_from_Q4_K"),
      packer<Q5_K>("pack_q5k_from_Q5_K"), packer<Q6_K>("pack_q6k_from_Q6_K"), packer<IQ4_XS>("pack_iq4k_from_IQ4_XS"),
      packer<TQ1_0>("pack_q2k_from_TQ1_0"), packer<TQ2_0>("pack_q2k_from_TQ2_0"),
  };
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

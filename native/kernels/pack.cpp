// Packing of floats and of formats with one scale per 16 or 32 columns.
#include "kernels/pack.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

// A packed block in which every row has FLOAT16 numbers, then codes.
template <typename L, int Bytes>
struct OfHalves {
  static constexpr Format source{1, kBlock, Bytes}, packed = L::packed;
  static constexpr int halves = L::Scales::bytes / (2 * kGroup);

  static byte* put(byte* at, int row, const byte* block) {
    for (int i = 0; i < halves; ++i) put_half(at + 2 * kGroup * i, row, block + 2 * i);
    return at + L::Scales::bytes;
  }
};

template <typename L, int Words>
struct Copied : OfHalves<L, L::packed.bytes / kGroup> {
  static void add(byte* at, int row, const byte* block) {
    put_words<Words>(Copied::put(at, row, block), row, block + 2 * Copied::halves);
  }
};

// Q5_0 and Q5_1: element e has its high bit at bit e of 32.
template <typename L>
struct FiveBits : OfHalves<L, L::packed.bytes / kGroup> {
  static void add(byte* at, int row, const byte* block) {
    byte* codes = FiveBits::put(at, row, block);
    const byte* high = block + 2 * FiveBits::halves;
    put_words<4>(codes, row, high + 4);
    const uint32_t bits = load_as<uint32_t>(high);
    uint32_t plane = 0;
    for (int half = 0; half < 2; ++half)
      for (int i = 0; i < 4; ++i) {
        // Four consecutive bits to the lowest bits of four bytes.
        const uint32_t four = (bits >> (16 * half + 4 * i) & 15) * 0x00204081u & 0x01010101u;
        plane |= four << (4 * half + i);
      }
    std::memcpy(codes + Bits4::bytes + 4 * row, &plane, 4);
  }
};

struct MXFP4 {
  static constexpr Format source{1, kBlock, 17}, packed = FP4::packed;
  static void add(byte* at, int row, const byte* block) {
    at[row] = block[0];
    put_words<4>(at + kGroup, row, block + 1);
  }
};

// Half of each FLOAT8E4M3FN, exactly, as FLOAT16.
struct HalfOfE4M3 {
  uint16_t of[256];

  constexpr HalfOfE4M3() : of{} {
    for (int code = 0; code < 256; ++code) {
      const int magnitude = code & 0x7f;
      int half = (magnitude << 7) + (7 << 10);
      if (magnitude == 0x7f) half = 0x7e00;
      if (magnitude < 8) {  // subnormal: magnitude * 2^-10, whose highest bit becomes the hidden one
        int top = 0;
        while (magnitude >> (top + 1)) ++top;
        half = magnitude == 0 ? 0 : ((top + 5) << 10) + (magnitude << (10 - top) & 0x3ff);
      }
      of[code] = uint16_t((code & 0x80) << 8 | half);
    }
  }
};
constexpr HalfOfE4M3 kHalfOfE4M3;

// Four runs of 16 elements; of 8 bytes the low halves come first.
struct NVFP4 {
  static constexpr Format source{1, 64, 36}, packed = FP4H::packed;
  static void add(byte* at, int row, const byte* block) {
    for (int sub = 0; sub < 2; ++sub, at += packed.bytes) {
      uint32_t words[8];
      for (int half = 0; half < 2; ++half) {
        const uint16_t scale = kHalfOfE4M3.of[uint8_t(block[2 * sub + half])];
        std::memcpy(at + 2 * kGroup * half + 2 * row, &scale, 2);
        for (int i = 0; i < 4; ++i) {
          const uint32_t pairs = load_word(block + 4 + 8 * (2 * sub + half) + i % 2 * 4);
          words[4 * half + i] = pairs >> (i / 2 * 4) & 0x0f0f0f0fu;
        }
      }
      Bits4::LowPlane::pack(at + FP4H::Scales::bytes, row, words);
    }
  }
};

// FLOAT scale, UINT8 zero, UINT4 codes: the low half of a byte first.
template <int Columns>
struct Int4 {
  static constexpr Format source{1, Columns, 5 + Columns / 2}, packed = G4<Columns>::packed;
  static void add(byte* at, int row, const byte* block) {
    std::memcpy(at + 4 * row, block, 4);
    at[4 * kGroup + row] = block[4];
    for (int sub = 0; sub < Columns / kBlock; ++sub) {
      uint8_t codes[kBlock];
      for (int i = 0; i < kBlock / 2; ++i) {
        const byte pair = block[5 + 16 * sub + i];
        codes[2 * i] = uint8_t(pair & byte(15));
        codes[2 * i + 1] = uint8_t(pair >> 4);
      }
      Bits4::pack(at + 5 * kGroup + sub * Bits4::bytes, row, codes);
    }
  }
};

// FLOAT scale, UINT8 zero and codes; both lose 128.
template <int Columns>
struct Int8 {
  static constexpr Format source{1, Columns, 5 + Columns}, packed = G8<Columns>::packed;
  static void add(byte* at, int row, const byte* block) {
    std::memcpy(at + 4 * row, block, 4);
    at[4 * kGroup + row] = block[4] ^ byte(128);
    for (int i = 0; i < Columns / 4; ++i) {
      const uint32_t four = load_word(block + 5 + 4 * i) ^ 0x80808080u;
      std::memcpy(at + 5 * kGroup + kVectorBytes * i + 4 * row, &four, 4);
    }
  }
};

template <int Bytes>
struct Plain {
  static constexpr Format source{1, 1, Bytes}, packed{kGroup, 1, kGroup * Bytes};
  static void add(byte* at, int row, const byte* value) { std::memcpy(at + Bytes * row, value, Bytes); }
};

// Floats of a matrix that is stored as its transpose [K, N]: some of its rows, which are columns [first, first + count) of
// the packed matrix, so that a large one is packed by parts. One task is a strip of groups.
constexpr int64_t kStrip = 16;

template <int Bytes>
std::string validate_columns(const Args& a) {
  std::string problem = check_counts(a, 1, 1, 4);
  if (!problem.empty()) return problem;
  const int64_t n = a.ints[0], k = a.ints[1], first = a.ints[2], count = a.ints[3];
  problem = check_bytes("packed", a.out[0], Plain<Bytes>::packed, n, k);
  if (problem.empty()) problem = check_bytes("source", a.in[0], Plain<Bytes>::source, count, n);
  if (problem.empty() && (first < 0 || first > k - count))
    problem = text("columns %lld to %lld are not in a matrix of %lld", (long long)first, (long long)(first + count), (long long)k);
  return problem;
}

int64_t column_tasks(const Args& a) {
  return a.ints[3] == 0 ? 0 : (a.ints[0] + kStrip * kGroup - 1) / (kStrip * kGroup);
}

template <int Bytes>
void run_columns(const Args& a, int64_t begin, int64_t end) {
  const int64_t n = a.ints[0], k = a.ints[1], first = a.ints[2], count = a.ints[3], whole = n / kGroup;
  const size_t left = size_t(n % kGroup * Bytes);
  for (int64_t strip = begin; strip < end; ++strip) {
    const int64_t from = strip * kStrip, to = from + kStrip < whole ? from + kStrip : whole;
    for (int64_t column = 0; column < count; ++column) {
      const byte* source = a.in[0].data + column * n * Bytes;
      byte* packed = a.out[0].data + (first + column) * kGroup * Bytes;
      for (int64_t group = from; group < to; ++group)
        std::memcpy(packed + group * k * kGroup * Bytes, source + group * kGroup * Bytes, kGroup * Bytes);
      if (left == 0 || strip != whole / kStrip) continue;
      byte* last = packed + whole * k * kGroup * Bytes;
      std::memset(last, 0, kGroup * Bytes);
      std::memcpy(last, source + whole * kGroup * Bytes, left);
    }
  }
}

template <int Bytes>
constexpr Kernel column_packer(const char* name) {
  return {name, validate_columns<Bytes>, column_tasks, run_columns<Bytes>};
}

}  // namespace

KernelTable pack_table() {
  // in: source UINT8 [bytes], out: packed UINT8 [bytes], ints: N, K; those from columns: N, K, first column, count
  static const Kernel kernels[] = {
      packer<Copied<Q4, 4>>("pack_q4_from_Q4_0"),     packer<Copied<Q4M, 4>>("pack_q4m_from_Q4_1"),
      packer<FiveBits<Q5>>("pack_q5_from_Q5_0"),      packer<FiveBits<Q5M>>("pack_q5m_from_Q5_1"),
      packer<Copied<Q8, 8>>("pack_q8_from_Q8_0"),     packer<Copied<IQ4, 4>>("pack_iq4_from_IQ4_NL"),
      packer<MXFP4>("pack_fp4_from_MXFP4"),           packer<NVFP4>("pack_fp4h_from_NVFP4"),
      packer<Int4<32>>("pack_g4_32_from_INT4_32"),    packer<Int8<32>>("pack_g8_32_from_INT8_32"),
      packer<Int4<64>>("pack_g4_64_from_INT4_64"),    packer<Int8<64>>("pack_g8_64_from_INT8_64"),
      packer<Int4<128>>("pack_g4_128_from_INT4_128"), packer<Int8<128>>("pack_g8_128_from_INT8_128"),
      packer<Plain<2>>("pack_f16_from_F16"),          packer<Plain<2>>("pack_bf16_from_BF16"),
      packer<Plain<4>>("pack_f32_from_F32"),          column_packer<2>("pack_f16_from_F16_columns"),
      column_packer<2>("pack_bf16_from_BF16_columns"), column_packer<4>("pack_f32_from_F32_columns"),
  };
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

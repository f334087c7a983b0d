// From row-major blocks, as GGUF files hold them, to the compute layouts. One task is one group of 8 rows.
#include <cstddef>
#include <cstring>

#include "kernels/half.hpp"
#include "kernels/matrix_checks.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

using std::byte;

// The words of 4 codes of one row go, in order, to every eighth word: the transposition that `packed.hpp` describes.
template <int Words>
void scatter_codes(byte* codes, int row, const byte* source) {
  for (int i = 0; i < Words; ++i) std::memcpy(codes + 32 * i + 4 * row, source + 4 * i, 4);
}

// Adds one row's block to the packed block. `at` is the start of the packed block of 8 rows.
struct Q4_1 {
  static constexpr Format source = kSourceQ4_1, packed = kPackedQ4;
  static void add(byte* at, int row, const byte* block) {
    std::memcpy(at + 2 * row, block, 2);
    std::memcpy(at + offsetof(BlockQ4, m) + 2 * row, block + 2, 2);
    scatter_codes<4>(at + offsetof(BlockQ4, codes), row, block + 4);
  }
};

// d * (code - 8) is d * code - 8d, exactly, where 8d is a FLOAT16: for |d| < 8192. A larger d gives a minimum that is
// infinite and so a row of infinities or NaN, never a wrong finite value.
struct Q4_0 {
  static constexpr Format source = kSourceQ4_0, packed = kPackedQ4;
  static void add(byte* at, int row, const byte* block) {
    uint16_t d;
    std::memcpy(&d, block, 2);
    const uint16_t m = float_to_half(-8.0f * half_to_float(d));
    std::memcpy(at + 2 * row, &d, 2);
    std::memcpy(at + offsetof(BlockQ4, m) + 2 * row, &m, 2);
    scatter_codes<4>(at + offsetof(BlockQ4, codes), row, block + 2);
  }
};

struct Q8_0 {
  static constexpr Format source = kSourceQ8_0, packed = kPackedQ8;
  static void add(byte* at, int row, const byte* block) {
    std::memcpy(at + 2 * row, block, 2);
    scatter_codes<8>(at + offsetof(BlockQ8, codes), row, block + 2);
  }
};

template <int Bytes>
struct Plain {
  static constexpr Format source{1, 1, Bytes}, packed{kGroup, 1, kGroup * Bytes};
  static void add(byte* at, int row, const byte* value) { std::memcpy(at + Bytes * row, value, Bytes); }
};

template <typename F>
std::string validate(const Args& a) {
  std::string problem = check_counts(a, 1, 1, 2);
  if (problem.empty()) problem = check_bytes("source", a.in[0], F::source, a.ints[0], a.ints[1]);
  if (problem.empty()) problem = check_bytes("packed", a.out[0], F::packed, a.ints[0], a.ints[1]);
  return problem;
}

int64_t groups(const Args& a) { return a.ints[1] == 0 ? 0 : (a.ints[0] + kGroup - 1) / kGroup; }

template <typename F>
void run(const Args& a, int64_t begin, int64_t end) {
  const int64_t n = a.ints[0], blocks = a.ints[1] / F::source.columns, row_bytes = blocks * F::source.bytes;
  for (int64_t group = begin; group < end; ++group) {
    const byte* source = a.in[0].data + group * kGroup * row_bytes;
    byte* packed = a.out[0].data + group * blocks * F::packed.bytes;
    const int64_t rows = n - group * kGroup;
    if (rows >= kGroup) {
      for (int64_t b = 0; b < blocks; ++b)
        for (int row = 0; row < kGroup; ++row)
          F::add(packed + b * F::packed.bytes, row, source + row * row_bytes + b * F::source.bytes);
    } else {
      std::memset(packed, 0, size_t(blocks * F::packed.bytes));
      for (int row = 0; row < int(rows); ++row)
        for (int64_t b = 0; b < blocks; ++b)
          F::add(packed + b * F::packed.bytes, row, source + row * row_bytes + b * F::source.bytes);
    }
  }
}

template <typename F>
constexpr Kernel packer(const char* name) {
  return {name, validate<F>, groups, run<F>};
}

}  // namespace

KernelTable pack_table() {
  // in: source UINT8 [bytes], out: packed UINT8 [bytes], ints: N, K
  static const Kernel kernels[] = {
      packer<Q4_0>("pack_q4_from_Q4_0"),      packer<Q4_1>("pack_q4_from_Q4_1"),
      packer<Q8_0>("pack_q8_from_Q8_0"),      packer<Plain<2>>("pack_f16_from_F16"),
      packer<Plain<2>>("pack_bf16_from_BF16"), packer<Plain<4>>("pack_f32_from_F32"),
  };
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

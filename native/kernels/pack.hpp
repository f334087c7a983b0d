// Packing: from row-major blocks, as GGUF files hold them, to the compute layouts. One task is one group of 8 rows.
// A format F has `source` and `packed`, and `add`, which adds one row's block to the packed block of 8 rows at `at`.
#pragma once
#include "kernels/compute.hpp"
#include "kernels/matrix_checks.hpp"

namespace tenonnx::TENONNX_ISA_NS {

// One FLOAT16 of a row; those of 8 rows stand together.
static inline void put_half(byte* at, int row, const byte* half) { std::memcpy(at + 2 * row, half, 2); }

// Codes of 4 or 8 bits that stand in the source as in a row of the layout: they go, 4 bytes at a time, to every eighth word.
template <int Words>
void put_words(byte* codes, int row, const byte* source) {
  for (int i = 0; i < Words; ++i) std::memcpy(codes + kVectorBytes * i + 4 * row, source + 4 * i, 4);
}

template <typename F>
std::string validate_packing(const Args& a) {
  std::string problem = check_counts(a, 1, 1, 2);
  if (problem.empty()) problem = check_bytes("source", a.in[0], F::source, a.ints[0], a.ints[1]);
  if (problem.empty()) problem = check_bytes("packed", a.out[0], F::packed, a.ints[0], a.ints[1]);
  return problem;
}

static int64_t packing_tasks(const Args& a) { return a.ints[1] == 0 ? 0 : (a.ints[0] + kGroup - 1) / kGroup; }

template <typename F>
void run_packing(const Args& a, int64_t begin, int64_t end) {
  const int64_t n = a.ints[0], blocks = a.ints[1] / F::source.columns, row_bytes = blocks * F::source.bytes;
  const int64_t group_bytes = a.ints[1] / F::packed.columns * F::packed.bytes, block_bytes = blocks ? group_bytes / blocks : 0;
  for (int64_t group = begin; group < end; ++group) {
    const byte* source = a.in[0].data + group * kGroup * row_bytes;
    byte* packed = a.out[0].data + group * group_bytes;
    const int64_t rows = n - group * kGroup < kGroup ? n - group * kGroup : kGroup;
    if (rows < kGroup) std::memset(packed, 0, size_t(group_bytes));
    for (int64_t b = 0; b < blocks; ++b)
      for (int row = 0; row < int(rows); ++row)
        F::add(packed + b * block_bytes, row, source + row * row_bytes + b * F::source.bytes);
  }
}

template <typename F>
constexpr Kernel packer(const char* name) {
  return {name, validate_packing<F>, packing_tasks, run_packing<F>};
}

}  // namespace tenonnx::TENONNX_ISA_NS

// Rows of a packed matrix as floats, so that a tied embedding is resident once. One task is one row. Every product of a
// FLOAT16 scale and a code is exact in a float, so the values are the source format's own to the last bit.
#include <cstddef>
#include <cstring>

#include "kernels/compute.hpp"
#include "kernels/matrix_checks.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

// decode() writes the values of one row of one packed block.
template <typename L>
struct Quantized {
  static constexpr Format packed = L::packed;
  static void decode(const byte* block, int row, float* out) {
    const Single::Source source{block, row};
    for (int sub = 0; sub < L::Scales::blocks; ++sub, out += kBlock) {
      const int at = L::Scales::head + sub * L::sub_bytes;
      const auto scales = L::Scales::template load<Single>(source, at);
      uint8_t codes[kBlock];
      L::Codes::unpack(block + at + L::Scales::bytes, row, codes);
      for (int i = 0; i < kBlock; ++i)
        out[i] = scales.add(L::Scales::parts == 2 ? i / 16 : 0, float(L::Codes::value(codes[i])), 1.0f, -0.0f);
    }
  }
};

struct F16 {
  static constexpr Format packed = kPacked16;
  static void decode(const byte* block, int row, float* out) { *out = half_to_float(load_as<uint16_t>(block + 2 * row)); }
};

struct BF16 {
  static constexpr Format packed = kPacked16;
  static void decode(const byte* block, int row, float* out) { *out = bfloat_to_float(load_as<uint16_t>(block + 2 * row)); }
};

struct F32 {
  static constexpr Format packed = kPackedF32;
  static void decode(const byte* block, int row, float* out) { *out = load_as<float>(block + 4 * row); }
};

template <typename L>
std::string validate(const Args& a) {
  std::string problem = check_counts(a, 2, 1, 2);
  if (problem.empty()) problem = check_bytes("packed", a.in[0], L::packed, a.ints[0], a.ints[1]);
  if (!problem.empty()) return problem;
  return check_gathered(a);
}

int64_t tasks(const Args& a) { return a.in[1].size(); }

template <typename L>
void run(const Args& a, int64_t begin, int64_t end) {
  const int64_t n = a.ints[0], k = a.ints[1], blocks = k / L::packed.columns;
  for (int64_t i = begin; i < end; ++i) {
    float* out = a.out[0].as<float>() + i * k;
    const int64_t id = a.in[1].as<int64_t>()[i], row = id < 0 ? id + n : id;
    if (row < 0 || row >= n) {
      std::memset(out, 0, size_t(k) * sizeof(float));
      continue;
    }
    const byte* group = a.in[0].data + row / kGroup * blocks * L::packed.bytes;
    for (int64_t b = 0; b < blocks; ++b) L::decode(group + b * L::packed.bytes, int(row % kGroup), out + b * L::packed.columns);
  }
}

template <typename L>
constexpr Kernel gather(const char* name) {
  return {name, validate<L>, tasks, run<L>};
}

template <typename L>
constexpr Kernel packed(const char* name) {
  return gather<Quantized<L>>(name);
}

}  // namespace

KernelTable gather_packed_table() {
  // in: packed UINT8 [bytes], ids INT64 of any rank; out: FLOAT [*ids.dims, K]; ints: N, K. An id below 0 counts from the
  // end; one out of range gives a row of zeros (a check before this step reports it).
  static const Kernel kernels[] = {
      packed<Q4>("gather_q4"),     packed<Q4M>("gather_q4m"), packed<Q5>("gather_q5"),   packed<Q5M>("gather_q5m"),
      packed<Q8>("gather_q8"),     packed<IQ4>("gather_iq4"), packed<FP4>("gather_fp4"), packed<FP4H>("gather_fp4h"),
      packed<Q2K>("gather_q2k"), packed<Q3K>("gather_q3k"),
      packed<Q4K>("gather_q4k"),   packed<Q5K>("gather_q5k"), packed<Q6K>("gather_q6k"), packed<IQ4K>("gather_iq4k"),
      packed<G4<32>>("gather_g4_32"), packed<G4<64>>("gather_g4_64"), packed<G4<128>>("gather_g4_128"),
      packed<G8<32>>("gather_g8_32"), packed<G8<64>>("gather_g8_64"), packed<G8<128>>("gather_g8_128"),
      gather<F16>("gather_f16"),   gather<BF16>("gather_bf16"), gather<F32>("gather_f32"),
  };
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

// Rows of a packed matrix as floats, so that a tied embedding is resident once. One task is one row. Every product of a
// FLOAT16 scale and a code is exact in a float, so the values are the source format's own to the last bit.
#include <cstddef>
#include <cstring>

#include "kernels/half.hpp"
#include "kernels/matrix_checks.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

using std::byte;

template <typename T>
T load(const byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// decode() writes the values of one row of one packed block.
struct Q4 {
  static constexpr Format packed = kPackedQ4;
  static void decode(const byte* block, int row, float* out) {
    const float d = half_to_float(load<uint16_t>(block + 2 * row));
    const float m = half_to_float(load<uint16_t>(block + offsetof(BlockQ4, m) + 2 * row));
    const byte* codes = block + offsetof(BlockQ4, codes) + 4 * row;
    for (int i = 0; i < kBlock / 2; ++i) {
      const int code = int(codes[i / 4 * 32 + i % 4]);
      out[i] = d * float(code & 15) + m;
      out[i + kBlock / 2] = d * float(code >> 4) + m;
    }
  }
};

struct Q8 {
  static constexpr Format packed = kPackedQ8;
  static void decode(const byte* block, int row, float* out) {
    const float d = half_to_float(load<uint16_t>(block + 2 * row));
    const byte* codes = block + offsetof(BlockQ8, codes) + 4 * row;
    for (int i = 0; i < kBlock; ++i) out[i] = d * float(int8_t(codes[i / 4 * 32 + i % 4]));
  }
};

struct F16 {
  static constexpr Format packed = kPacked16;
  static void decode(const byte* block, int row, float* out) { *out = half_to_float(load<uint16_t>(block + 2 * row)); }
};

struct BF16 {
  static constexpr Format packed = kPacked16;
  static void decode(const byte* block, int row, float* out) { *out = bfloat_to_float(load<uint16_t>(block + 2 * row)); }
};

struct F32 {
  static constexpr Format packed = kPackedF32;
  static void decode(const byte* block, int row, float* out) { *out = load<float>(block + 4 * row); }
};

template <typename L>
std::string validate(const Args& a) {
  std::string problem = check_counts(a, 2, 1, 2);
  if (problem.empty()) problem = check_bytes("packed", a.in[0], L::packed, a.ints[0], a.ints[1]);
  if (!problem.empty()) return problem;
  const Tensor &ids = a.in[1], &out = a.out[0];
  if (ids.dtype != DType::Int64 || ids.rank >= kMaxRank || !ids.contiguous())
    return text("ids: expected contiguous INT64 of rank below %d", kMaxRank);
  bool fits = out.dtype == DType::Float && out.rank == ids.rank + 1 && out.contiguous() && out.dims[ids.rank] == a.ints[1];
  int64_t size = 4;
  for (int i = 0; i < out.rank && fits; ++i)
    fits = out.dims[i] >= 0 && (i == ids.rank || out.dims[i] == ids.dims[i]) &&
           !__builtin_mul_overflow(size, out.dims[i], &size);
  if (fits) return {};
  return text("out: expected contiguous FLOAT of the shape of ids and a last dimension of %lld", (long long)a.ints[1]);
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

}  // namespace

KernelTable gather_packed_table() {
  // in: packed UINT8 [bytes], ids INT64 of any rank; out: FLOAT [*ids.dims, K]; ints: N, K. An id below 0 counts from the
  // end; one out of range gives a row of zeros (a check before this step reports it).
  static const Kernel kernels[] = {
      gather<Q4>("gather_q4"),     gather<Q8>("gather_q8"),   gather<F16>("gather_f16"),
      gather<BF16>("gather_bf16"), gather<F32>("gather_f32"),
  };
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

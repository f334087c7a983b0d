// Activations to 8-bit codes, once per row for all matrices that multiply it. One task is one row.
#include <cstddef>
#include <cstring>

#include "kernels/half.hpp"
#include "kernels/matrix_checks.hpp"
#include "kernels/quantize.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

constexpr uint32_t kInfinity = 0x7f800000;

// Codes are x * 127 / max|x|, rounded to nearest. Magnitudes are compared as integers, where a NaN is largest: a block
// with a NaN or an infinity gets a NaN for scale, so that all it meets is NaN. A block below 2^-100 counts as zeros (its
// reciprocal would overflow).
void quantize_block(const float* x, int8_t* codes, float* scale, float (&halves)[2]) {
  uint32_t magnitude = 0;
  for (int i = 0; i < kBlock; ++i) {
    const uint32_t bits = float_to_bits(x[i]) & 0x7fffffff;
    magnitude = magnitude < bits ? bits : magnitude;
  }
  const float largest = bits_to_float(magnitude);
  if (magnitude >= kInfinity || largest < 0x1p-100f) {
    std::memset(codes, 0, kBlock);
    *scale = magnitude >= kInfinity ? __builtin_nanf("") : 0.0f;
    halves[0] = halves[1] = 0.0f;
    return;
  }
  // Adding 1.5 * 2^23 leaves the rounded number in the low bits of the sum: unlike a conversion, plain SIMD everywhere.
  const float inverse = 127.0f / largest, shift = 0x1.8p23f;
  int32_t totals[2] = {};
  for (int half = 0; half < 2; ++half)
    for (int i = half * 16; i < half * 16 + 16; ++i) {
      const int32_t code = int32_t(float_to_bits(x[i] * inverse + shift)) - int32_t(float_to_bits(shift));
      codes[i] = int8_t(code);
      totals[half] += code;
    }
  *scale = largest / 127.0f;
  halves[0] = float(totals[0]);
  halves[1] = float(totals[1]);
}

std::string validate(const Args& a) {
  std::string problem = check_counts(a, 1, 1, 0);
  if (!problem.empty()) return problem;
  const Tensor& x = a.in[0];
  problem = check_rows("x", x, DType::Float, x.dims[0], x.dims[1], false);
  if (!problem.empty()) return problem;
  if (x.dims[1] % kBlock != 0 || x.dims[1] > kMaxDim)
    return text("x: K must be a multiple of %d, found %lld", kBlock, (long long)x.dims[1]);
  return check_rows("quantized", a.out[0], DType::UInt8, x.dims[0], quantized_row_bytes(x.dims[1]), true);
}

int64_t tasks(const Args& a) { return a.in[0].dims[0]; }

void run(const Args& a, int64_t begin, int64_t end) {
  const Tensor &x = a.in[0], &out = a.out[0];
  const int64_t k = x.dims[1];
  for (int64_t row = begin; row < end; ++row)
    quantize_columns(x.as<float>() + row * x.strides[0], 0, k / kBlock, out.data + row * out.strides[0], k);
}

}  // namespace

void quantize_columns(const float* x, int64_t first, int64_t count, std::byte* row, int64_t k) {
  const int64_t blocks = k / kBlock;
  for (int64_t b = first; b < first + count; ++b, x += kBlock) {
    float scale, halves[2];
    quantize_block(x, reinterpret_cast<int8_t*>(row + b * kBlock), &scale, halves);
    const float sum = halves[0] + halves[1];
    std::memcpy(row + k + 4 * b, &scale, 4);
    std::memcpy(row + k + 4 * (blocks + b), &sum, 4);
    std::memcpy(row + k + 8 * (blocks + b), halves, 8);
  }
}

KernelTable quantize_table() {
  // in: x FLOAT [M, K], out: UINT8 [M, K + K / 2], rows as `packed.hpp` describes
  static const Kernel kernels[] = {{"quantize_rows", validate, tasks, run}};
  return {kernels, 1};
}

}  // namespace tenonnx::TENONNX_ISA_NS

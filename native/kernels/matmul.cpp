// Quantized activations times packed weights. One task is one strip of rows of the weights times one chunk of tokens;
// consecutive tasks share the chunk, so that it stays in the second-level cache while the weights pass by.
#include "kernels/block_sums.hpp"
#include "kernels/matrix_checks.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

constexpr int kStripRows = kStrip * kGroup;
constexpr int kChunk = 64;        // tokens of a task
constexpr int kAhead = 2048;      // bytes to prefetch before the weights of one token: their stream is all its cost

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Strip {
  const byte* group[kStrip];  // a missing last group repeats the one before and is not stored
  int64_t blocks;
  int rows;
};

template <typename L, int T>
void multiply_tile(const Strip& strip, const Tokens& x, float* y, int64_t y_stride) {
  Rows sums[T] = {};
  const byte* w[kStrip];
  for (int g = 0; g < kStrip; ++g) w[g] = strip.group[g];
  for (int64_t b = 0; b < strip.blocks; ++b) {
    if constexpr (T == 1)
      for (int g = 0; g < kStrip; ++g)
        for (int line = 0; line < L::packed.bytes; line += 64) __builtin_prefetch(w[g] + kAhead + line);
    L::add(w, b, x, sums);
    for (int g = 0; g < kStrip; ++g) w[g] += L::packed.bytes;
  }
  for (int t = 0; t < T; ++t) {
    if (strip.rows == kStripRows) {
      store_rows(sums[t], y + t * y_stride);
    } else {
      float rows[kStripRows];
      store_rows(sums[t], rows);
      std::memcpy(y + t * y_stride, rows, size_t(strip.rows) * sizeof(float));
    }
  }
}

template <typename L, int T>
void multiply_tokens(const Strip& strip, Tokens x, int64_t tokens, float* y, int64_t y_stride) {
  for (; tokens >= T; tokens -= T) {
    multiply_tile<L, T>(strip, x, y, y_stride);
    x.codes += T * x.stride;
    y += T * y_stride;
  }
  if constexpr (T > 1) multiply_tokens<L, T / 2>(strip, x, tokens, y, y_stride);
}

template <typename L>
std::string validate(const Args& a) {
  if (std::string problem = check_counts(a, 2, 1, 2); !problem.empty()) return problem;
  const int64_t n = a.ints[0], k = a.ints[1], tokens = a.in[0].dims[0];
  if (std::string problem = check_bytes("packed", a.in[1], L::packed, n, k); !problem.empty()) return problem;
  if (std::string problem = check_rows("x", a.in[0], DType::UInt8, tokens, quantized_row_bytes(k), false); !problem.empty())
    return problem;
  return check_rows("y", a.out[0], DType::Float, tokens, n, true);
}

int64_t tasks(const Args& a) { return ceil_div(a.ints[0], kStripRows) * ceil_div(a.in[0].dims[0], kChunk); }

template <typename L>
void run(const Args& a, int64_t begin, int64_t end) {
  const Tensor &x = a.in[0], &y = a.out[0];
  const int64_t n = a.ints[0], k = a.ints[1], groups = ceil_div(n, kGroup), strips = ceil_div(n, kStripRows);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first = task % strips * kStripRows, token = task / strips * kChunk;
    Strip strip{{}, k / kBlock, int(n - first < kStripRows ? n - first : kStripRows)};
    for (int g = 0; g < kStrip; ++g) {
      const int64_t group = first / kGroup + g;
      strip.group[g] = a.in[1].data + (group < groups ? group : groups - 1) * strip.blocks * L::packed.bytes;
    }
    const int64_t left = x.dims[0] - token;
    multiply_tokens<L, kTile>(strip, {x.data + token * x.strides[0], x.strides[0], k}, left < kChunk ? left : kChunk,
                              y.as<float>() + token * y.strides[0] + first, y.strides[0]);
  }
}

}  // namespace

KernelTable matmul_table() {
  // in: x UINT8 [M, K + K / 4] from quantize_rows, packed UINT8 [bytes]; out: y FLOAT [M, N]; ints: N, K
  static const Kernel kernels[] = {{"matmul_q4", validate<DotQ4>, tasks, run<DotQ4>}, {"matmul_q8", validate<DotQ8>, tasks, run<DotQ8>}};
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

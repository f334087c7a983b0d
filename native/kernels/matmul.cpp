// Quantized activations times packed weights:
//
//   y[t] = sum over blocks of scale[t] * (d * dot(codes, x[t]) + m * sum(x[t]))
//
// A dot product of codes is a whole number and exact, and floats are combined in this one order, so that a token's result
// is the same bits alone and in any batch. One task is one strip of rows of the weights times one chunk of tokens;
// consecutive tasks share the chunk, which stays in the second-level cache while the weights pass by.
#include <cstddef>

#include "kernels/lanes.hpp"
#include "kernels/matrix_checks.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

constexpr int kStripRows = Wide::groups * kGroup;
constexpr int kChunk = 64;    // tokens of a task
constexpr int kAhead = 6144;  // bytes to prefetch before the weights of one token: their stream is all its cost

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of quantized activations, as `packed.hpp` describes them.
struct Tokens {
  const byte* codes;
  int64_t stride, k;

  const byte* at(int t, int64_t column) const { return codes + t * stride + column; }
  float scale(int t, int64_t b) const { return load_as<float>(at(t, k + 4 * b)); }
  float sum(int t, int64_t b) const { return load_as<float>(at(t, k + k / 8 + 4 * b)); }
};

// One block of T tokens. The loops over its vectors stay loops: unrolled, the compiler reorders the sums of integers and
// spills them.
struct Q4 {
  static constexpr Format packed = kPackedQ4;
  template <typename V, int T>
  static void add_block(const byte* const (&w)[V::groups], int64_t b, const Tokens& x, typename V::Rows (&y)[T]) {
    typename V::UnsignedSum dot[T] = {};
#pragma GCC unroll kUnroll
    for (int i = 0; i < 4; ++i) {
      const auto codes = V::load(w, int(offsetof(BlockQ4, codes)) + 32 * i);
      const auto low = V::low(codes), high = V::high(codes);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        V::add_unsigned(dot[t], low, x.at(t, b * kBlock + 4 * i));
        V::add_unsigned(dot[t], high, x.at(t, b * kBlock + 4 * i + 16));
      }
    }
    const auto d = V::load_halves(w, 0), m = V::load_halves(w, int(offsetof(BlockQ4, m)));
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const auto value = V::multiply_add(d, V::total_unsigned(dot[t]), V::multiply(m, V::all(x.sum(t, b))));
      y[t] = V::multiply_add(V::all(x.scale(t, b)), value, y[t]);
    }
  }
};

struct Q8 {
  static constexpr Format packed = kPackedQ8;
  template <typename V, int T>
  static void add_block(const byte* const (&w)[V::groups], int64_t b, const Tokens& x, typename V::Rows (&y)[T]) {
    typename V::SignedSum dot[T] = {};
#pragma GCC unroll kUnroll
    for (int i = 0; i < 8; ++i) {
      const auto codes = V::make_signed(V::load(w, int(offsetof(BlockQ8, codes)) + 32 * i));
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) V::add_signed(dot[t], codes, x.at(t, b * kBlock + 4 * i));
    }
    const auto d = V::load_halves(w, 0);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const auto value = V::multiply(d, V::total_signed(dot[t], x.sum(t, b)));
      y[t] = V::multiply_add(V::all(x.scale(t, b)), value, y[t]);
    }
  }
};

struct Output {
  float* y;
  int64_t stride, rows;  // rows from y on; a store never passes them
};

template <typename L, typename V, int T>
void multiply_tile(const byte* group, int64_t blocks, const Tokens& x, const Output& out) {
  typename V::Rows sums[T] = {};
  // A missing last group of the strip repeats the one before and is not stored.
  const byte* w[V::groups] = {group};
  if constexpr (V::groups == 2) w[1] = out.rows > kGroup ? group + blocks * L::packed.bytes : group;
  for (int64_t b = 0; b < blocks; ++b) {
    if constexpr (T == 1)
      for (int line = 0; line < L::packed.bytes; line += 64) __builtin_prefetch(w[0] + kAhead + line);
    L::template add_block<V, T>(w, b, x, sums);
    for (const byte*& at : w) at += L::packed.bytes;
  }
  constexpr int rows = V::groups * kGroup;
  for (int t = 0; t < T; ++t) {
    float* y = out.y + t * out.stride;
    if (out.rows >= rows) {
      V::store(sums[t], y);
    } else {
      float whole[rows];
      V::store(sums[t], whole);
      std::memcpy(y, whole, size_t(out.rows) * sizeof(float));
    }
  }
}

template <typename L, int T>
void multiply_tokens(const byte* group, int64_t blocks, Tokens x, int64_t tokens, Output out) {
  for (; tokens >= T; tokens -= T) {
    if constexpr (T > 1) {
      multiply_tile<L, Wide, T>(group, blocks, x, out);
    } else {
      Output part = out;
      for (int g = 0; g < Wide::groups && part.rows > 0; ++g, part.y += kGroup, part.rows -= kGroup)
        multiply_tile<L, Narrow, 1>(group + g * blocks * L::packed.bytes, blocks, x, part);
    }
    x.codes += T * x.stride;
    out.y += T * out.stride;
  }
  if constexpr (T > 1) multiply_tokens<L, T / 2>(group, blocks, x, tokens, out);
}

template <typename L>
std::string validate(const Args& a) {
  std::string problem = check_counts(a, 2, 1, 2);
  if (!problem.empty()) return problem;
  const int64_t n = a.ints[0], k = a.ints[1], tokens = a.in[0].dims[0];
  problem = check_bytes("packed", a.in[1], L::packed, n, k);
  if (problem.empty()) problem = check_rows("x", a.in[0], DType::UInt8, tokens, quantized_row_bytes(k), false);
  if (!problem.empty()) return problem;
  return check_rows("y", a.out[0], DType::Float, tokens, n, true);
}

int64_t tasks(const Args& a) { return ceil_div(a.ints[0], kStripRows) * ceil_div(a.in[0].dims[0], kChunk); }

template <typename L>
void run(const Args& a, int64_t begin, int64_t end) {
  const Tensor &x = a.in[0], &y = a.out[0];
  const int64_t n = a.ints[0], k = a.ints[1], blocks = k / kBlock, strips = ceil_div(n, kStripRows);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t strip = task % strips, row = strip * kStripRows, token = task / strips * kChunk;
    const int64_t left = x.dims[0] - token;
    multiply_tokens<L, kTile>(a.in[1].data + strip * Wide::groups * blocks * L::packed.bytes, blocks,
                              {x.data + token * x.strides[0], x.strides[0], k}, left < kChunk ? left : kChunk,
                              {y.as<float>() + token * y.strides[0] + row, y.strides[0], n - row});
  }
}

}  // namespace

KernelTable matmul_table() {
  // in: x UINT8 [M, K + K / 4] from quantize_rows, packed UINT8 [bytes]; out: y FLOAT [M, N]; ints: N, K
  static const Kernel kernels[] = {{"matmul_q4", validate<Q4>, tasks, run<Q4>}, {"matmul_q8", validate<Q8>, tasks, run<Q8>}};
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

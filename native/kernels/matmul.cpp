// Quantized activations times packed weights:
//
//   y[t] = sum over blocks of scale[t] * (d * dot(codes, x[t]) + m * sum(x[t]))
//
// or what else a layout's scales make of these sums. A dot product of codes is a whole number and exact, and floats are
// combined in this one order, so that a token's result is the same bits alone and in any batch.
#include <cstddef>
#include <type_traits>

#include "kernels/compute.hpp"
#include "kernels/projection.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

constexpr int kStripRows = Wide::groups * kGroup;
constexpr int kAhead = 6144;  // bytes to prefetch before the weights of one token: their stream is all its cost

// Rows of quantized activations, as `packed.hpp` describes them.
struct Tokens {
  const byte* codes;
  int64_t stride, k;

  const byte* at(int t, int64_t column) const { return codes + t * stride + column; }
  float scale(int t, int64_t b) const { return load_as<float>(at(t, k + 4 * b)); }
  // Of columns 0..31, or of one half.
  template <int Half, int Halves>
  float sum(int t, int64_t b) const {
    return load_as<float>(Halves == 2 ? at(t, k + k / 8 + 4 * b) : at(t, k + k / 4 + 8 * b + 4 * Half));
  }
};

template <typename Codes, typename V>
constexpr bool fits_short(int halves) {
  return !Codes::is_signed && Codes::largest * 4 * halves <= V::kShort;
}

// Products of 4 columns of every half. Each step is a function of its own: an unrolled loop has its sums of integers
// reordered, and spilled.
template <typename Codes, typename V, int T, int Half, int Halves, int I, typename Sum>
[[gnu::always_inline]] inline void add_columns(const typename V::Source& w, int at, int64_t b, const Tokens& x, Sum (&sums)[T]) {
  const auto codes = Codes::template get<V, Half, I>(w, at);
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) V::add(sums[t], codes, x.at(t, b * kBlock + 16 * Half + 4 * I));
  if constexpr (Halves == 2) add_columns<Codes, V, T, 1, 1, I>(w, at, b, x, sums);
}

// Dot products of codes and x over columns 0..31, or over one half.
template <typename Codes, typename V, int T, int Half, int Halves>
[[gnu::always_inline]] inline void dot(const typename V::Source& w, int at, int64_t b, const Tokens& x, typename V::Rows (&dots)[T]) {
  std::conditional_t<fits_short<Codes, V>(Halves), typename V::ShortSum, typename V::WideSum> sums[T] = {};
  add_columns<Codes, V, T, Half, Halves, 0>(w, at, b, x, sums);
  add_columns<Codes, V, T, Half, Halves, 1>(w, at, b, x, sums);
  add_columns<Codes, V, T, Half, Halves, 2>(w, at, b, x, sums);
  add_columns<Codes, V, T, Half, Halves, 3>(w, at, b, x, sums);
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    dots[t] = V::total(sums[t]);
    if constexpr (Codes::is_signed && V::kBias != 0)
      dots[t] = V::multiply_subtract(V::all(float(V::kBias)), V::all(x.sum<Half, Halves>(t, b)), dots[t]);
  }
}

template <typename Codes, typename V, int T, int Half, int Halves, typename Scales>
[[gnu::always_inline]] inline void add_part(const typename V::Source& w, int at, int64_t b, const Tokens& x, const Scales& scales,
                     typename V::Rows (&values)[T]) {
  typename V::Rows dots[T];
  if constexpr (Halves == 2 && !fits_short<Codes, V>(2) && fits_short<Codes, V>(1)) {
    typename V::Rows others[T];
    dot<Codes, V, T, 0, 1>(w, at, b, x, dots);
    dot<Codes, V, T, 1, 1>(w, at, b, x, others);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) dots[t] = V::plus(dots[t], others[t]);
  } else {
    dot<Codes, V, T, Half, Halves>(w, at, b, x, dots);
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) values[t] = scales.add(Half, dots[t], V::all(x.sum<Half, Halves>(t, b)), values[t]);
}

// One sub-block, at byte `at` of its block, of T tokens.
template <typename L, typename V, int T>
[[gnu::always_inline]] inline void add_block(const typename V::Source& w, int at, int64_t b, const Tokens& x, typename V::Rows (&y)[T]) {
  using Codes = typename L::Codes;
  constexpr int parts = L::Scales::parts, codes = L::Scales::bytes;
  const auto scales = L::Scales::template load<V>(w, at);
  typename V::Rows values[T] = {};
  add_part<Codes, V, T, 0, 3 - parts>(w, at + codes, b, x, scales, values);
  if constexpr (parts == 2) add_part<Codes, V, T, 1, 1>(w, at + codes, b, x, scales, values);
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) y[t] = V::multiply_add(V::all(x.scale(t, b)), values[t], y[t]);
}

struct Output {
  float* y;
  int64_t stride, rows;  // rows from y on; a store never passes them
};

template <typename L, typename V, int T>
void multiply_tile(const byte* group, int64_t blocks, const Tokens& x, const Output& out) {
  constexpr int subs = L::Scales::blocks, sub_bytes = L::sub_bytes;
  typename V::Rows sums[T] = {};
  // A missing last group of the strip repeats the one before and is not stored.
  typename V::Source w{{group}};
  if constexpr (V::groups == 2) w.group[1] = out.rows > kGroup ? group + blocks * L::packed.bytes : group;
  for (int64_t b = 0; b < blocks; ++b) {
    for (int sub = 0; sub < subs; ++sub) {
      const int at = L::Scales::head + sub * sub_bytes;
      if constexpr (T == 1)
        for (int line = 0; line < sub_bytes; line += 64) __builtin_prefetch(w.group[0] + at + kAhead + line);
      add_block<L, V, T>(w, at, b * subs + sub, x, sums);
    }
    w.advance(L::packed.bytes);
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
  const auto weight = [&a](const Tensor& packed, int64_t n) { return check_bytes("packed", packed, L::packed, n, a.ints[1]); };
  return check_projection(a, 0, DType::UInt8, weight, quantized_row_bytes);
}

int64_t tasks(const Args& a) { return projection_tasks<kStripRows>(a, 0); }

template <typename L>
void run(const Args& a, int64_t begin, int64_t end) {
  const Tensor& x = a.in[0];
  const int64_t k = a.ints[1], blocks = k / L::packed.columns;
  run_projection<kStripRows>(a, 0, begin, end, [&](const Tensor& packed, int64_t row, int64_t rows, int64_t token,
                                                   int64_t tokens, float* y, int64_t stride) {
    multiply_tokens<L, kTile>(packed.data + row / kGroup * blocks * L::packed.bytes, blocks,
                              {x.data + token * x.strides[0], x.strides[0], k}, tokens, {y, stride, rows});
  });
}

template <typename L>
constexpr Kernel matmul(const char* name) {
  return {name, validate<L>, tasks, run<L>};
}

}  // namespace

KernelTable matmul_table() {
  // As `projection.hpp` has it, with x UINT8 [M, K + K / 2] from quantize_rows.
  static const Kernel kernels[] = {
      matmul<Q4>("matmul_q4"),   matmul<Q4M>("matmul_q4m"),   matmul<Q5>("matmul_q5"),     matmul<Q5M>("matmul_q5m"),
      matmul<Q8>("matmul_q8"),   matmul<IQ4>("matmul_iq4"),  matmul<FP4>("matmul_fp4"),   matmul<FP4H>("matmul_fp4h"),
      matmul<Q2K>("matmul_q2k"), matmul<Q3K>("matmul_q3k"),
      matmul<Q4K>("matmul_q4k"), matmul<Q5K>("matmul_q5k"),   matmul<Q6K>("matmul_q6k"),   matmul<IQ4K>("matmul_iq4k"),
      matmul<G4<32>>("matmul_g4_32"), matmul<G4<64>>("matmul_g4_64"), matmul<G4<128>>("matmul_g4_128"),
      matmul<G8<32>>("matmul_g8_32"), matmul<G8<64>>("matmul_g8_64"), matmul<G8<128>>("matmul_g8_128"),
  };
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

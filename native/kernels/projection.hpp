// What all matrix products share: the weights that one step multiplies the same activations by, and what becomes of the sums.
//
//   in      x [M, K]; packed weights; perhaps, for each weight, an addend FLOAT [M, N] or absent
//   out     y FLOAT [M, N] for each weight: its sums, and its addend's elements on top
//   ints    N and K of the first weight, what the layout adds, N of each other weight
//   floats  none; or alpha, of two weights of one N: the only y is swish(sums of the first) times the sums of the second
//
// One task is one strip of rows of one weight (of both, where gated) times one chunk of tokens; consecutive tasks share the
// chunk, which stays in the second-level cache while the weights pass by.
#pragma once
#include <cstring>

#include "kernels/matrix_checks.hpp"

namespace tenonnx::TENONNX_ISA_NS {

constexpr int kChunk = 64;  // tokens of a task
constexpr int kPiece = 32;  // tokens whose sums wait on the stack for what is made of them: a whole number of tiles

// Compiled once, for all layouts: the bits are those of the step swish_mul.
void swish_mul_rows(const float* gate, const float* up, float* y, int64_t n, float alpha);

struct Projection {
  const Args& a;
  int weights;

  Projection(const Args& args, int arguments) : a(args), weights(args.n_ints - 1 - arguments) {}

  bool gated() const { return a.n_floats == 1; }
  int64_t rows(int weight) const { return a.ints[weight == 0 ? 0 : a.n_ints - weights + weight]; }
  const Tensor* addend(int weight) const { return a.has(1 + weights + weight) ? &a.in[1 + weights + weight] : nullptr; }
};

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// check_weight(packed, n) looks at one weight, K and the layout's own arguments; row_size(k) are the elements of a row of x.
template <typename CheckWeight, typename RowSize>
std::string check_projection(const Args& a, int arguments, DType x_type, CheckWeight check_weight, RowSize row_size) {
  const Projection p(a, arguments);
  const int outputs = p.gated() ? 1 : p.weights;
  if (p.weights < 1 || a.n_floats > 1 || a.n_out != outputs || (a.n_in != 1 + p.weights && a.n_in != 1 + 2 * p.weights))
    return text("expects x, weights and perhaps as many addends, an output and N for each weight, found %d inputs, %d outputs "
                "and %d ints", a.n_in, a.n_out, a.n_ints);
  if (p.gated() && (p.weights != 2 || p.rows(0) != p.rows(1) || a.n_in != 3))
    return text("a gate takes two weights of one N and no addend, found %d weights and %d inputs", p.weights, a.n_in);
  for (int w = 0; w < p.weights; ++w) {
    const std::string problem = check_weight(a.in[1 + w], p.rows(w));
    if (!problem.empty()) return problem;
  }
  const int64_t tokens = a.in[0].dims[0];
  std::string problem = check_rows("x", a.in[0], x_type, tokens, row_size(a.ints[1]), false);
  for (int w = 0; w < outputs && problem.empty(); ++w) {
    problem = check_rows("y", a.out[w], DType::Float, tokens, p.rows(w), true);
    if (problem.empty() && p.addend(w) != nullptr) problem = check_rows("addend", *p.addend(w), DType::Float, tokens, p.rows(w), false);
  }
  return problem;
}

template <int StripRows>
int64_t projection_tasks(const Args& a, int arguments) {
  const Projection p(a, arguments);
  int64_t strips = 0;
  for (int w = 0; w < a.n_out; ++w) strips += ceil_div(p.rows(w), StripRows);
  return strips * ceil_div(a.in[0].dims[0], kChunk);
}

// multiply(packed, row, rows, token, tokens, y, stride): sums of a strip's rows from `row` on, of which `rows` exist, for
// some tokens, written to y.
template <int StripRows, typename Multiply>
void run_projection(const Args& a, int arguments, int64_t begin, int64_t end, Multiply multiply) {
  const Projection p(a, arguments);
  const int64_t count = a.in[0].dims[0], chunks = ceil_div(count, kChunk);
  if (chunks == 0) return;
  const int64_t strips = projection_tasks<StripRows>(a, arguments) / chunks;
  for (int64_t task = begin; task < end; ++task) {
    int64_t strip = task % strips;
    int w = 0;
    for (; strip >= ceil_div(p.rows(w), StripRows); ++w) strip -= ceil_div(p.rows(w), StripRows);
    const int64_t row = strip * StripRows, rows = p.rows(w) - row, exist = rows < StripRows ? rows : StripRows;
    const int64_t token = task / strips * kChunk, last = count - token < kChunk ? count : token + kChunk;
    const Tensor &y = a.out[w], *addend = p.addend(w);
    float* out = y.as<float>() + row;
    if (!p.gated() && addend == nullptr) {
      multiply(a.in[1 + w], row, rows, token, last - token, out + token * y.strides[0], y.strides[0]);
      continue;
    }
    for (int64_t t = token; t < last; t += kPiece) {
      const int64_t tokens = last - t < kPiece ? last - t : kPiece;
      float sums[kPiece * StripRows], others[kPiece * StripRows];
      multiply(a.in[1 + w], row, rows, t, tokens, sums, int64_t(StripRows));
      if (p.gated()) {
        multiply(a.in[2], row, rows, t, tokens, others, int64_t(StripRows));
        for (int64_t i = 0; i < tokens && exist < StripRows; ++i)  // columns that do not exist are not there to be gated
          std::memset(sums + i * StripRows + exist, 0, size_t(StripRows - exist) * sizeof(float));
        swish_mul_rows(sums, others, sums, tokens * StripRows, float(a.floats[0]));
      }
      for (int64_t i = 0; i < tokens; ++i) {
        const float* from = addend != nullptr ? addend->as<const float>() + (t + i) * addend->strides[0] + row : nullptr;
        const float* mine = sums + i * StripRows;
        float* to = out + (t + i) * y.strides[0];
        for (int64_t r = 0; r < exist; ++r) to[r] = from != nullptr ? from[r] + mine[r] : mine[r];
      }
    }
  }
}

}  // namespace tenonnx::TENONNX_ISA_NS

// Kernels over rows of the last axis: rms_norm, with its result as it is or as 8-bit codes, and softmax. Rows are FLOAT of unit stride; the other axes may have any
// strides. A row's result is the same bits however many rows there are.
#include "kernels/check.hpp"
#include "kernels/packed.hpp"
#include "kernels/quantize.hpp"
#include "kernels/vecmath.hpp"
#include "kernels/walk.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

int64_t rows_of(const Tensor& t) { return size_of_dims(t, 0, t.rank - 1); }
int64_t rows_per_task(int64_t width) { return width > 0 && width < kTaskElements ? kTaskElements / width : 1; }

int64_t row_tasks(const Args& a) {
  const Tensor& t = a.in[0];
  const int64_t width = t.dims[t.rank - 1], group = rows_per_task(width);
  return width == 0 ? 0 : (rows_of(t) + group - 1) / group;
}

template <typename Body>
void for_rows(const Tensor& t, int64_t begin, int64_t end, Body body) {
  const int64_t group = rows_per_task(t.dims[t.rank - 1]), rows = rows_of(t);
  const int64_t last = end * group < rows ? end * group : rows;
  for (int64_t row = begin * group; row < last; ++row) body(row);
}

float* row_of(const Tensor& t, int64_t row) { return t.as<float>() + offset_of(t, row, t.rank - 1); }

// Four running sums hide the latency of one; they are added in a fixed order.
float sum_of_squares(const float* x, int64_t n) {
  Vec total[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int k = 0; k < 4; ++k) {
      const Vec v = load(x + i + k * kLanes);
      total[k] = fma(v, v, total[k]);
    }
  for (; i < n; i += kLanes) {
    const Vec v = i + kLanes <= n ? load(x + i) : load_some(x + i, n - i);
    total[0] = fma(v, v, total[0]);
  }
  return sum((total[0] + total[1]) + (total[2] + total[3]));
}

// ---- rms_norm: in [x, scale [D], (residual)], out [y, (sum)]; floats [epsilon]. With a residual, x + residual is what is
// normalized, and is written to sum. rms_norm_rows: y is UINT8 [rows, bytes], as quantize_rows makes it.

std::string validate_operands(const Args& a) {
  REQUIRE_OK(check_call(a, {2, 3, 1, 2, 0, 1}));
  const Tensor &x = a.in[0], &scale = a.in[1];
  REQUIRE(float_rows(x) && x.rank > 0, "x is %s, expected FLOAT of unit stride on the last axis", describe(x));
  REQUIRE(float_rows(scale) && scale.rank == 1 && scale.dims[0] == x.dims[x.rank - 1],
          "scale is %s, expected FLOAT[%lld] of unit stride", describe(scale), static_cast<long long>(x.dims[x.rank - 1]));
  REQUIRE(a.has(2) == (a.n_out == 2), "a residual and an output for the sum go together");
  REQUIRE(!a.has(2) || (float_rows(a.in[2]) && float_rows(a.out[1]) && same_dims(a.in[2], x) && same_dims(a.out[1], x)),
          "residual %s or sum %s: FLOAT of the dims of x expected, unit stride on the last axis", describe(a.in[2]),
          describe(a.out[1]));
  return {};
}

std::string validate_rms_norm(const Args& a) {
  REQUIRE_OK(validate_operands(a));
  REQUIRE(float_rows(a.out[0]) && same_dims(a.in[0], a.out[0]),
          "x is %s, the output %s: FLOAT of the same dims expected, unit stride on the last axis", describe(a.in[0]),
          describe(a.out[0]));
  return {};
}

std::string validate_rms_norm_rows(const Args& a) {
  REQUIRE_OK(validate_operands(a));
  const Tensor &x = a.in[0], &y = a.out[0];
  const int64_t k = x.dims[x.rank - 1];
  REQUIRE(k % kBlock == 0 && k <= kMaxDim, "x has rows of %lld: a multiple of %d expected", static_cast<long long>(k), kBlock);
  REQUIRE(y.dtype == DType::UInt8 && y.rank == 2 && unit_last(y) && y.dims[0] == rows_of(x) &&
          y.dims[1] == quantized_row_bytes(k) && (y.dims[0] < 2 || y.strides[0] >= y.dims[1]),
          "the output is %s, expected UINT8[%lld,%lld]", describe(y), static_cast<long long>(rows_of(x)),
          static_cast<long long>(quantized_row_bytes(k)));
  return {};
}

// put(row, x, factor): what becomes of a row and of the factor that normalizes it.
template <typename Put>
void normalize_rows(const Args& a, int64_t begin, int64_t end, Put put) {
  const int64_t n = a.in[1].dims[0];
  for_rows(a.in[0], begin, end, [&](int64_t row) {
    const float* x = row_of(a.in[0], row);
    if (a.has(2)) {
      float* total = row_of(a.out[1], row);
      map(total, n, [](Vec v, Vec r) { return v + r; }, x, row_of(a.in[2], row));
      x = total;
    }
    put(row, x, splat(1.0f / __builtin_sqrtf(sum_of_squares(x, n) / float(n) + float(a.floats[0]))));
  });
}

TENONNX_INLINE void scale_row(float* y, int64_t n, const float* x, const float* scale, Vec factor) {
  map(y, n, [factor](Vec v, Vec s) { return v * factor * s; }, x, scale);
}

void run_rms_norm(const Args& a, int64_t begin, int64_t end) {
  normalize_rows(a, begin, end, [&](int64_t row, const float* x, Vec factor) {
    scale_row(row_of(a.out[0], row), a.in[1].dims[0], x, a.in[1].as<const float>(), factor);
  });
}

void run_rms_norm_rows(const Args& a, int64_t begin, int64_t end) {
  constexpr int64_t kPart = 8 * kBlock;  // columns that wait on the stack
  const int64_t k = a.in[1].dims[0];
  normalize_rows(a, begin, end, [&](int64_t row, const float* x, Vec factor) {
    for (int64_t i = 0; i < k; i += kPart) {
      const int64_t n = k - i < kPart ? k - i : kPart;
      float part[kPart];
      scale_row(part, n, x + i, a.in[1].as<const float>() + i, factor);
      quantize_columns(part, i / kBlock, n / kBlock, a.out[0].data + row * a.out[0].strides[0], k);
    }
  });
}

// ---- softmax: in [x], out [y] over the last axis. As in numpy's formula, a row of -inf alone gives NaN.

std::string validate_softmax(const Args& a) {
  REQUIRE_OK(check_call(a, {1, 1, 1, 1, 0, 0}));
  REQUIRE(float_rows(a.in[0]) && float_rows(a.out[0]) && same_dims(a.in[0], a.out[0]),
          "x is %s, the output %s: FLOAT of the same dims expected, unit stride on the last axis", describe(a.in[0]),
          describe(a.out[0]));
  return {};
}

void run_softmax(const Args& a, int64_t begin, int64_t end) {
  const int64_t n = a.in[0].dims[a.in[0].rank - 1], whole = n - n % kLanes;
  for_rows(a.in[0], begin, end, [&](int64_t row) {
    const float* x = row_of(a.in[0], row);
    float* y = row_of(a.out[0], row);
    Vec highest = splat(x[0]);
    for (int64_t i = 0; i < whole; i += kLanes) highest = max(highest, load(x + i));
    float peak = largest(highest);
    for (int64_t i = whole; i < n; ++i) peak = x[i] > peak ? x[i] : peak;
    map(y, n, [peak](Vec v) { return exp(v - peak); }, x);
    Vec total = {};
    for (int64_t i = 0; i < whole; i += kLanes) total += load(y + i);
    if (whole < n) total += load_some(y + whole, n - whole);
    map(y, n, [divisor = sum(total)](Vec v) { return v / divisor; }, y);
  });
}

constexpr Kernel kernels[] = {
    {"rms_norm", validate_rms_norm, row_tasks, run_rms_norm},
    {"rms_norm_rows", validate_rms_norm_rows, row_tasks, run_rms_norm_rows},
    {"softmax", validate_softmax, row_tasks, run_softmax},
};

}  // namespace

KernelTable normalize_table() { return {kernels, int(sizeof kernels / sizeof kernels[0])}; }

}  // namespace tenonnx::TENONNX_ISA_NS

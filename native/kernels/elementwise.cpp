// Elementwise kernels of one operand, in [x], out [y] of the same dims; and swish_mul, a gated unit in one pass.
// FLOAT unless said otherwise; every element goes through vector lanes, whatever its place or stride.
#include "kernels/check.hpp"
#include "kernels/projection.hpp"
#include "kernels/vecmath.hpp"
#include "kernels/walk.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

Walk<2> walk_unary(const Args& a) {
  const int64_t* const steps[2] = {a.in[0].strides, a.out[0].strides};
  return {a.out[0].dims, a.out[0].rank, steps};
}

int64_t tasks_unary(const Args& a) { return walk_unary(a).tasks(); }

std::string check_unary(const Args& a, int floats) {
  REQUIRE_OK(check_call(a, {1, 1, 1, 1, 0, floats}));
  REQUIRE(a.in[0].dtype == a.out[0].dtype, "output is %s for an input of %s", describe(a.out[0]), describe(a.in[0]));
  return check_same_dims(a);
}

std::string check_float(const Args& a, int floats) {
  REQUIRE_OK(check_unary(a, floats));
  REQUIRE(a.in[0].dtype == DType::Float, "no kernel for %s, only for FLOAT", dtype_name(a.in[0].dtype));
  return {};
}

std::string validate_float(const Args& a) { return check_float(a, 0); }
std::string validate_alpha(const Args& a) { return check_float(a, 1); }

std::string validate_signed(const Args& a) {
  REQUIRE_OK(check_unary(a, 0));
  REQUIRE(a.in[0].dtype == DType::Float || a.in[0].dtype == DType::Int64, "no kernel for %s, only for FLOAT and INT64",
          dtype_name(a.in[0].dtype));
  return {};
}

std::string validate_not(const Args& a) {
  REQUIRE_OK(check_unary(a, 0));
  REQUIRE(a.in[0].dtype == DType::Bool, "no kernel for %s, only for BOOL", dtype_name(a.in[0].dtype));
  return {};
}

// Strided rows are gathered into a vector's lanes and scattered from them.
template <typename F>
void vector_row(const float* x, int64_t sx, float* y, int64_t sy, int64_t n, F f) {
  if (sx == 1 && sy == 1) return map(y, n, f, x);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t count = n - i < kLanes ? n - i : kLanes;
    Vec lanes = {};
    for (int64_t k = 0; k < count; ++k) lanes[k] = x[(i + k) * sx];
    lanes = f(lanes);
    for (int64_t k = 0; k < count; ++k) y[(i + k) * sy] = lanes[k];
  }
}

template <typename F>
void run_float(const Args& a, int64_t begin, int64_t end, F f) {
  const Walk<2> walk = walk_unary(a);
  const float* x = a.in[0].as<const float>();
  float* y = a.out[0].as<float>();
  walk.run(begin, end, [&](const int64_t* at, int64_t n) {
    vector_row(x + at[0], walk.stride(0), y + at[1], walk.stride(1), n, f);
  });
}

template <typename T, typename F>
void run_each(const Args& a, int64_t begin, int64_t end, F f) {
  const Walk<2> walk = walk_unary(a);
  walk.run(begin, end, [&](const int64_t* at, int64_t n) {
    const T* x = a.in[0].as<const T>() + at[0];
    T* y = a.out[0].as<T>() + at[1];
    for (int64_t i = 0; i < n; ++i) y[i * walk.stride(1)] = f(x[i * walk.stride(0)]);
  });
}

#define TENONNX_UNARY(name, expression) \
  void name(const Args& a, int64_t begin, int64_t end) { run_float(a, begin, end, [](Vec x) -> Vec { return expression; }); }
#define TENONNX_LIBM(name, expression) TENONNX_UNARY(name, each(x, [](float v) -> float { return expression; }))

TENONNX_LIBM(run_sqrt, __builtin_sqrtf(v))
TENONNX_UNARY(run_reciprocal, 1.0f / x)
TENONNX_UNARY(run_exp, exp(x))
TENONNX_LIBM(run_log, __builtin_logf(v))
TENONNX_LIBM(run_sin, __builtin_sinf(v))
TENONNX_LIBM(run_cos, __builtin_cosf(v))
TENONNX_UNARY(run_tanh, tanh(x))
TENONNX_UNARY(run_sigmoid, sigmoid(x))
TENONNX_UNARY(run_gelu_tanh, gelu_tanh(x))
TENONNX_LIBM(run_gelu_erf, 0.5f * v * __builtin_erfcf(-0.70710678118654752f * v))
TENONNX_UNARY(run_relu, x > 0.0f ? x : (x != x ? x : Vec{}))
TENONNX_LIBM(run_softplus, (v > 0 ? v : 0.0f) + __builtin_log1pf(__builtin_expf(-__builtin_fabsf(v))))
TENONNX_LIBM(run_erf, __builtin_erff(v))

void run_swish(const Args& a, int64_t begin, int64_t end) {
  const Vec alpha = splat(float(a.floats[0]));
  run_float(a, begin, end, [alpha](Vec x) { return swish(x, alpha); });
}

void run_neg(const Args& a, int64_t begin, int64_t end) {
  if (a.in[0].dtype == DType::Float) return run_float(a, begin, end, [](Vec x) { return -x; });
  run_each<int64_t>(a, begin, end, [](int64_t v) { return int64_t(0 - uint64_t(v)); });
}

void run_abs(const Args& a, int64_t begin, int64_t end) {
  if (a.in[0].dtype == DType::Float) return run_float(a, begin, end, [](Vec x) { return as_float(as_int(x) & 0x7fffffff); });
  run_each<int64_t>(a, begin, end, [](int64_t v) { return v < 0 ? int64_t(0 - uint64_t(v)) : v; });
}

void run_not(const Args& a, int64_t begin, int64_t end) {
  run_each<uint8_t>(a, begin, end, [](uint8_t v) { return uint8_t(v == 0); });
}

// ---- swish_mul: in [gate, up], out = gate · sigmoid(alpha · gate) · up; floats [alpha]; unit stride on the last axis.

std::string validate_swish_mul(const Args& a) {
  REQUIRE_OK(check_call(a, {2, 2, 1, 1, 0, 1}));
  REQUIRE(float_rows(a.in[0]) && float_rows(a.in[1]) && float_rows(a.out[0]),
          "gate %s, up %s, output %s: FLOAT of unit stride on the last axis expected", describe(a.in[0]), describe(a.in[1]),
          describe(a.out[0]));
  return check_same_dims(a);
}

Walk<3> walk_swish_mul(const Args& a) {
  const int64_t* const steps[3] = {a.in[0].strides, a.in[1].strides, a.out[0].strides};
  return {a.out[0].dims, a.out[0].rank, steps};
}

int64_t tasks_swish_mul(const Args& a) { return walk_swish_mul(a).tasks(); }

void run_swish_mul(const Args& a, int64_t begin, int64_t end) {
  const Vec alpha = splat(float(a.floats[0]));
  const float *gate = a.in[0].as<const float>(), *up = a.in[1].as<const float>();
  float* y = a.out[0].as<float>();
  const Walk<3> walk = walk_swish_mul(a);
  walk.run(begin, end, [&](const int64_t* at, int64_t n) {
    if (walk.stride(0) == 1 && walk.stride(1) == 1 && walk.stride(2) == 1)
      return swish_mul_rows(gate + at[0], up + at[1], y + at[2], n, float(a.floats[0]));
    for (int64_t i = 0; i < n; ++i)  // the last axis has one element, another one is walked
      y[at[2] + i * walk.stride(2)] = swish(splat(gate[at[0] + i * walk.stride(0)]), alpha)[0] * up[at[1] + i * walk.stride(1)];
  });
}

constexpr Kernel kernels[] = {
    {"neg", validate_signed, tasks_unary, run_neg},
    {"abs", validate_signed, tasks_unary, run_abs},
    {"not", validate_not, tasks_unary, run_not},
    {"sqrt", validate_float, tasks_unary, run_sqrt},
    {"reciprocal", validate_float, tasks_unary, run_reciprocal},
    {"exp", validate_float, tasks_unary, run_exp},
    {"log", validate_float, tasks_unary, run_log},
    {"sin", validate_float, tasks_unary, run_sin},
    {"cos", validate_float, tasks_unary, run_cos},
    {"tanh", validate_float, tasks_unary, run_tanh},
    {"sigmoid", validate_float, tasks_unary, run_sigmoid},
    {"swish", validate_alpha, tasks_unary, run_swish},
    {"gelu_tanh", validate_float, tasks_unary, run_gelu_tanh},
    {"gelu_erf", validate_float, tasks_unary, run_gelu_erf},
    {"relu", validate_float, tasks_unary, run_relu},
    {"softplus", validate_float, tasks_unary, run_softplus},
    {"erf", validate_float, tasks_unary, run_erf},
    {"swish_mul", validate_swish_mul, tasks_swish_mul, run_swish_mul},
};

}  // namespace

void swish_mul_rows(const float* gate, const float* up, float* y, int64_t n, float alpha) {
  map(y, n, [alpha = splat(alpha)](Vec g, Vec u) { return swish(g, alpha) * u; }, gate, up);
}

KernelTable elementwise_table() { return {kernels, int(sizeof kernels / sizeof kernels[0])}; }

}  // namespace tenonnx::TENONNX_ISA_NS

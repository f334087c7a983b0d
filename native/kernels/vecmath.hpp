// Elementary functions on vectors of floats. Polynomials were fitted to the functions' own definitions (weighted least
// squares in float64, iterated towards equal ripple).
#pragma once
#include <cmath>

#include "kernels/vec.hpp"

namespace tenonnx::TENONNX_ISA_NS {

// e^x within 2 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, e^r by a polynomial, 2^n in two factors so that results that
// are subnormal or near the largest float are reached without an intermediate overflow. NaN stays NaN.
TENONNX_INLINE Vec exp(Vec x) {
  x = x < -110.0f ? splat(-110.0f) : x;
  x = x > 90.0f ? splat(90.0f) : x;
  const Vec shift = splat(0x1.8p23f);  // adding it rounds to an integer, held in the low bits
  const Vec shifted = fma(x, splat(0x1.715476p+0f), shift);
  const Vec n = shifted - shift;
  Vec r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(0.00021219444f), r);
  Vec p = splat(0x1.6a23cep-10f);
  p = fma(p, r, splat(0x1.123a2p-7f));
  p = fma(p, r, splat(0x1.5558f2p-5f));
  p = fma(p, r, splat(0x1.555492p-3f));
  p = fma(p, r, splat(0x1.fffffcp-2f));
  p = fma(p, r * r, r) + 1.0f;
  const VecInt power = as_int(shifted) - as_int(shift);
  const VecInt half = power >> 1;
  return p * as_float((half + 127) << 23) * as_float((power - half + 127) << 23);
}

TENONNX_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }
TENONNX_INLINE Vec swish(Vec x, Vec alpha) { return x / (1.0f + exp(-(alpha * x))); }

// An odd polynomial near zero, where the exponential would cancel.
TENONNX_INLINE Vec tanh(Vec x) {
  const Vec magnitude = as_float(as_int(x) & 0x7fffffff), z = x * x;
  Vec p = splat(-0.005697307f);
  p = fma(p, z, splat(0.020632481f));
  p = fma(p, z, splat(-0.05373778f));
  p = fma(p, z, splat(0.1333142f));
  p = fma(p, z, splat(-0.3333328f));
  const Vec small = fma(p * z, x, x);
  const Vec large = 1.0f - 2.0f / (exp(magnitude + magnitude) + 1.0f);
  const Vec signed_large = as_float(as_int(large) | (as_int(x) & int32_t(0x80000000)));
  return magnitude < 0.625f ? small : signed_large;
}

// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) with (1 + tanh u) / 2 = 1 / (1 + e^-2u).
TENONNX_INLINE Vec gelu_tanh(Vec x) {
  const Vec inner = fma(x * x * x, splat(0.044715f), x) * 1.5957691216057308f;
  const Vec y = x / (1.0f + exp(-inner));
  return x < -20.0f ? splat(-0.0f) : y;  // also where x^3 overflowed or x is -inf
}

// For functions left to the C library: lane by lane.
template <typename F>
TENONNX_INLINE Vec each(Vec x, F f) {
  for (int i = 0; i < kLanes; ++i) x[i] = f(x[i]);
  return x;
}

}  // namespace tenonnx::TENONNX_ISA_NS

// Scales of a compute layout's sub-block, loaded as one number for each row. `parts` is 2 where columns 0..15 and 16..31
// have their own. `add` adds to `value` what a part's codes sum to: `dot` is that of code * x, `x_sum` that of x. A single
// code is decoded as the dot product with one x of 1: all its products are exact.
#pragma once
#include "kernels/lanes.hpp"

namespace tenonnx::TENONNX_ISA_NS {

// scale * (dot - zero * x_sum): the difference is a whole number, exact.
template <typename V, int Parts>
struct Offset {
  typename V::Rows scale[Parts], zero;

  inline typename V::Rows add(int part, typename V::Rows dot, typename V::Rows x_sum, typename V::Rows value) const {
    return V::multiply_add(scale[part], V::multiply_subtract(zero, x_sum, dot), value);
  }
};

template <typename V, int Parts>
struct Centered {
  typename V::Rows scale[Parts];

  inline typename V::Rows add(int part, typename V::Rows dot, typename V::Rows, typename V::Rows value) const {
    return V::multiply_add(scale[part], dot, value);
  }
};

template <typename V, int Parts>
struct Affine {
  typename V::Rows scale[Parts], minimum[Parts];

  inline typename V::Rows add(int part, typename V::Rows dot, typename V::Rows x_sum, typename V::Rows value) const {
    return V::multiply_add(scale[part], dot, V::multiply_add(minimum[part], x_sum, value));
  }
};

// Each of these says the bytes of the head and of a sub-block's scales; load() takes a block and the offset in it of the
// sub-block.
struct OneLevel {
  static constexpr int blocks = 1, head = 0, parts = 1;
};
struct TwoLevels {
  static constexpr int blocks = 8;
};

template <int Zero>
struct Half : OneLevel {
  static constexpr int bytes = 2 * kGroup;
  template <typename V>
  static inline auto load(const typename V::Source& w, int at) {
    if constexpr (Zero == 0) return Centered<V, 1>{{V::load_halves(w, at)}};
    else return Offset<V, 1>{{V::load_halves(w, at)}, V::all(float(Zero))};
  }
};

struct HalfMinimum : OneLevel {
  static constexpr int bytes = 4 * kGroup;
  template <typename V>
  static inline auto load(const typename V::Source& w, int at) {
    return Affine<V, 1>{{V::load_halves(w, at)}, {V::load_halves(w, at + 2 * kGroup)}};
  }
};

template <int Zero>
struct HalfTwice {
  static constexpr int blocks = 1, head = 0, parts = 2, bytes = 4 * kGroup;
  template <typename V>
  static inline auto load(const typename V::Source& w, int at) {
    return Offset<V, 2>{{V::load_halves(w, at), V::load_halves(w, at + 2 * kGroup)}, V::all(float(Zero))};
  }
};

template <int Zero>
struct Exponent : OneLevel {
  static constexpr int bytes = kGroup;
  template <typename V>
  static inline auto load(const typename V::Source& w, int at) {
    return Offset<V, 1>{{V::load_half_powers(w, at)}, V::all(float(Zero))};
  }
};

// One FLOAT scale and one whole zero for all sub-blocks of a block.
template <int Blocks, bool SignedZero>
struct FloatZero {
  static constexpr int blocks = Blocks, head = 5 * kGroup, parts = 1, bytes = 0;
  template <typename V>
  static inline auto load(const typename V::Source& w, int) {
    if constexpr (SignedZero) return Offset<V, 1>{{V::load_floats(w, 0)}, V::load_signed(w, 4 * kGroup)};
    else return Offset<V, 1>{{V::load_floats(w, 0)}, V::template load_fields<0, 8>(w, 4 * kGroup)};
  }
};

struct SmallMinimum : TwoLevels {
  static constexpr int head = 4 * kGroup, parts = 1, bytes = 2 * kGroup;
  template <typename V>
  static inline auto load(const typename V::Source& w, int at) {
    const auto scale = V::multiply(V::load_halves(w, 0), V::template load_fields<0, 8>(w, at));
    const auto minimum = V::multiply(V::load_halves(w, 2 * kGroup), V::template load_fields<0, 8>(w, at + kGroup));
    return Affine<V, 1>{{scale}, {V::negate(minimum)}};
  }
};

struct SmallMinimumTwice : TwoLevels {
  static constexpr int head = 4 * kGroup, parts = 2, bytes = 2 * kGroup;
  template <typename V>
  static inline auto load(const typename V::Source& w, int at) {
    const auto d = V::load_halves(w, 0), e = V::negate(V::load_halves(w, 2 * kGroup));
    return Affine<V, 2>{{V::multiply(d, V::template load_fields<0, 4>(w, at)),
                         V::multiply(d, V::template load_fields<0, 4>(w, at + kGroup))},
                        {V::multiply(e, V::template load_fields<4, 4>(w, at)),
                         V::multiply(e, V::template load_fields<4, 4>(w, at + kGroup))}};
  }
};

struct Small : TwoLevels {
  static constexpr int head = 2 * kGroup, parts = 1, bytes = kGroup;
  template <typename V>
  static inline auto load(const typename V::Source& w, int at) {
    return Centered<V, 1>{{V::multiply(V::load_halves(w, 0), V::load_signed(w, at))}};
  }
};

template <int Zero>
struct SmallTwice : TwoLevels {
  static constexpr int head = 2 * kGroup, parts = 2, bytes = 2 * kGroup;
  template <typename V>
  static inline auto load(const typename V::Source& w, int at) {
    const auto d = V::load_halves(w, 0);
    return Offset<V, 2>{{V::multiply(d, V::load_signed(w, at)), V::multiply(d, V::load_signed(w, at + kGroup))},
                        V::all(float(Zero))};
  }
};

}  // namespace tenonnx::TENONNX_ISA_NS

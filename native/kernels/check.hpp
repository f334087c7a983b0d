// What every kernel refuses before it runs, in the words of the caller's arguments.
#pragma once
#include "core/kernel.hpp"
#include "core/problem.hpp"

#define REQUIRE(condition, ...) \
  if (!(condition)) return problem(__VA_ARGS__)
#define REQUIRE_OK(check)                                 \
  if (std::string refused = check; !refused.empty()) return refused

namespace tenonnx::TENONNX_ISA_NS {

struct Arity {
  int min_in, max_in, min_out, max_out, ints, floats;
};

static inline bool same_dims(const Tensor& a, const Tensor& b) {
  if (a.rank != b.rank) return false;
  for (int i = 0; i < a.rank; ++i)
    if (a.dims[i] != b.dims[i]) return false;
  return true;
}

static inline bool unit_last(const Tensor& t) {
  return t.rank > 0 && (t.dims[t.rank - 1] <= 1 || t.strides[t.rank - 1] == 1 || t.empty());
}

static inline bool float_rows(const Tensor& t) { return t.dtype == DType::Float && unit_last(t); }

static inline bool scalar_or_vector(const Tensor& t, DType type) { return t.dtype == type && t.rank <= 1; }

static inline std::string check_view(const char* side, int index, const Tensor& t, bool written) {
  REQUIRE(size_of(t.dtype) > 0, "%s %d has type %s, which kernels do not address", side, index, dtype_name(t.dtype));
  REQUIRE(t.rank >= 0 && t.rank <= kMaxRank, "%s %d has rank %d, over %d", side, index, t.rank, kMaxRank);
  int64_t elements = 1, extent = 1, bytes;
  for (int i = 0; i < t.rank; ++i) {
    REQUIRE(t.dims[i] >= 0, "%s %d is %s: a dim is negative", side, index, describe(t));
    REQUIRE(t.strides[i] >= 0, "%s %d has the negative stride %lld on axis %d", side, index,
            static_cast<long long>(t.strides[i]), i);
    REQUIRE(!written || t.dims[i] <= 1 || t.strides[i] > 0 || t.empty(),
            "output %d repeats elements: its stride on axis %d is 0", index, i);
    int64_t reach;
    const int64_t last = t.dims[i] > 0 ? t.dims[i] - 1 : 0;
    const bool fits = !__builtin_mul_overflow(elements, t.dims[i] > 0 ? t.dims[i] : 1, &elements) &&
                      !__builtin_mul_overflow(last, t.strides[i], &reach) && !__builtin_add_overflow(extent, reach, &extent);
    REQUIRE(fits, "%s %d is %s: larger than an address space", side, index, describe(t));
  }
  REQUIRE(!__builtin_mul_overflow(extent, int64_t(8), &bytes) && !__builtin_mul_overflow(elements, int64_t(8), &bytes),
          "%s %d is %s: larger than an address space", side, index, describe(t));
  return {};
}

// Counts of arguments, and views that can be walked: addressable types, no negative dim or stride, outputs without repeats.
static inline std::string check_call(const Args& a, const Arity& n) {
  REQUIRE(a.n_in >= n.min_in && a.n_in <= n.max_in, "%d inputs, expected %d to %d", a.n_in, n.min_in, n.max_in);
  REQUIRE(a.n_out >= n.min_out && a.n_out <= n.max_out, "%d outputs, expected %d to %d", a.n_out, n.min_out, n.max_out);
  REQUIRE(a.n_ints == n.ints, "%d integer arguments, expected %d", a.n_ints, n.ints);
  REQUIRE(a.n_floats == n.floats, "%d real arguments, expected %d", a.n_floats, n.floats);
  for (int i = 0; i < a.n_in; ++i) {
    if (i >= n.min_in && !a.in[i].present()) continue;
    REQUIRE_OK(check_view("input", i, a.in[i], false));
  }
  for (int i = 0; i < a.n_out; ++i) REQUIRE_OK(check_view("output", i, a.out[i], true));
  return {};
}

static inline std::string check_same_dims(const Args& a) {
  for (int i = 0; i < a.n_in; ++i)
    REQUIRE(!a.in[i].present() || same_dims(a.in[i], a.out[0]), "input %d is %s, expected the output's dims %s", i,
            describe(a.in[i]), describe(a.out[0]));
  return {};
}

}  // namespace tenonnx::TENONNX_ISA_NS

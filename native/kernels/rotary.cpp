// Rotary position embedding: a table of cosines and sines, and the rotation (ONNX RotaryEmbedding, opset 23), into a tensor or
// straight into a cache.
#include <cmath>

#include "kernels/cache.hpp"
#include "kernels/cast.hpp"
#include "kernels/check.hpp"
#include "kernels/vec.hpp"
#include "kernels/walk.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

constexpr int64_t kTableRows = 32, kRotaryRows = 64;  // per task
constexpr int64_t kMaxHead = 512;                      // elements of a row that waits on the stack

// ---- rope_table: in [position_ids INT64 contiguous, inv_freq FLOAT [h]], out [cos, sin FLOAT [..., h] contiguous];
// floats [scale]. The angle is float(position) · inv_freq[j] in float32, as Cast, Mul, Cos and Sin compute it.

std::string validate_table(const Args& a) {
  REQUIRE_OK(check_call(a, {2, 2, 2, 2, 0, 1}));
  const Tensor &ids = a.in[0], &frequencies = a.in[1];
  REQUIRE(ids.dtype == DType::Int64 && ids.contiguous(), "position_ids are %s, expected contiguous INT64", describe(ids));
  REQUIRE(float_rows(frequencies) && frequencies.rank == 1, "inv_freq is %s, expected FLOAT[h] of unit stride",
          describe(frequencies));
  for (int k = 0; k < 2; ++k) {
    const Tensor& out = a.out[k];
    bool fits = out.dtype == DType::Float && out.contiguous() && out.rank == ids.rank + 1 &&
        out.dims[ids.rank] == frequencies.dims[0];
    for (int i = 0; fits && i < ids.rank; ++i) fits = out.dims[i] == ids.dims[i];
    REQUIRE(fits, "output %d is %s, expected contiguous FLOAT of the dims of position_ids %s and %lld", k, describe(out),
            describe(ids), static_cast<long long>(frequencies.dims[0]));
  }
  return {};
}

int64_t tasks_table(const Args& a) { return (a.in[0].size() + kTableRows - 1) / kTableRows; }

void run_table(const Args& a, int64_t begin, int64_t end) {
  const int64_t *ids = a.in[0].as<const int64_t>(), rows = a.in[0].size(), width = a.in[1].dims[0];
  const float *frequencies = a.in[1].as<const float>(), scale = float(a.floats[0]);
  const int64_t last = end * kTableRows < rows ? end * kTableRows : rows;
  for (int64_t row = begin * kTableRows; row < last; ++row) {
    float *cosines = a.out[0].as<float>() + row * width, *sines = a.out[1].as<float>() + row * width;
    for (int64_t j = 0; j < width; ++j) {
      const float angle = float(ids[row]) * frequencies[j];
      cosines[j] = __builtin_cosf(angle) * scale;
      sines[j] = __builtin_sinf(angle) * scale;
    }
  }
}

// ---- rotary: in [x, cos [b, n, r/2], sin [b, n, r/2]], out of the dims of x; FLOAT of unit stride on the last axis; ints
// [interleaved, num_heads, rotary_dim (0: the whole head)]. x is [b, n, heads · head] or [b, heads, n, head]. The output
// may be x itself; elements of a head past rotary_dim are copied.

struct Shape {
  int64_t batch, heads, tokens, head, rotated;

  Shape(const Tensor& x, int64_t num_heads, int64_t rotary_dim) {
    batch = x.dims[0];
    heads = x.rank == 4 ? x.dims[1] : num_heads;
    tokens = x.dims[x.rank - 2];
    head = x.rank == 4 ? x.dims[3] : x.dims[2] / heads;
    rotated = rotary_dim > 0 ? rotary_dim : head;
  }
};

Shape shape_rotary(const Args& a) { return {a.in[0], a.ints[1], a.ints[2]}; }

std::string check_angles(const Shape& shape, int64_t rotary_dim, const Tensor& cosine, const Tensor& sine) {
  REQUIRE(rotary_dim >= 0 && shape.rotated <= shape.head && shape.rotated % 2 == 0,
          "rotary_dim %lld: an even number up to the head size %lld expected", static_cast<long long>(shape.rotated),
          static_cast<long long>(shape.head));
  for (const Tensor* t : {&cosine, &sine}) {
    REQUIRE(float_rows(*t) && t->rank == 3 && t->dims[0] == shape.batch && t->dims[1] == shape.tokens &&
            t->dims[2] == shape.rotated / 2,
            "cosines or sines are %s, expected FLOAT[%lld,%lld,%lld] of unit stride on the last axis", describe(*t),
            static_cast<long long>(shape.batch), static_cast<long long>(shape.tokens), static_cast<long long>(shape.rotated / 2));
  }
  return {};
}

std::string validate_rotary(const Args& a) {
  REQUIRE_OK(check_call(a, {3, 3, 1, 1, 3, 0}));
  const Tensor &x = a.in[0], &out = a.out[0];
  REQUIRE((x.rank == 3 || x.rank == 4) && float_rows(x) && float_rows(out) && same_dims(x, out),
          "x is %s, the output %s: FLOAT of the same 3 or 4 dims expected, unit stride on the last axis", describe(x),
          describe(out));
  REQUIRE(x.rank == 4 || (a.ints[1] > 0 && x.dims[2] % a.ints[1] == 0), "%lld heads do not divide the last dim of %s",
          static_cast<long long>(a.ints[1]), describe(x));
  return check_angles(shape_rotary(a), a.ints[2], a.in[1], a.in[2]);
}

int64_t tasks_of(const Shape& s) {
  return s.head == 0 ? 0 : (s.batch * s.tokens * s.heads + kRotaryRows - 1) / kRotaryRows;
}

int64_t tasks_rotary(const Args& a) { return tasks_of(shape_rotary(a)); }

int64_t head_offset(const Tensor& t, const Shape& s, int64_t b, int64_t token, int64_t h) {
  if (t.rank == 4) return b * t.strides[0] + h * t.strides[1] + token * t.strides[2];
  return b * t.strides[0] + token * t.strides[1] + h * s.head;
}

// x and y may be the same storage: both members of a pair are read before either is written.
void rotate_halves(const float* x, const float* c, const float* s, float* y, int64_t half) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = half - i < kLanes ? half - i : kLanes;
    const auto take = [n](const float* p) { return n == kLanes ? load(p) : load_some(p, n); };
    const auto put = [n](float* p, Vec v) { n == kLanes ? store(p, v) : store_some(p, v, n); };
    const Vec real = take(x + i), imaginary = take(x + half + i), cosine = take(c + i), sine = take(s + i);
    put(y + i, fma(cosine, real, -(sine * imaginary)));
    put(y + half + i, fma(sine, real, cosine * imaginary));
  }
}

void rotate_pairs(const float* x, const float* c, const float* s, float* y, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float real = x[2 * i], imaginary = x[2 * i + 1];
    y[2 * i] = c[i] * real - s[i] * imaginary;
    y[2 * i + 1] = s[i] * real + c[i] * imaginary;
  }
}

// Rotates the rows of some tasks: to(b, h, token) is where the rotated row goes, done(b, h, token) follows it.
template <typename To, typename Done>
void rotate_rows(const Shape& s, bool interleaved, const Tensor& x, const Tensor& cosine, const Tensor& sine, int64_t begin,
                 int64_t end, To to, Done done) {
  const int64_t rows = s.batch * s.tokens * s.heads, last = end * kRotaryRows < rows ? end * kRotaryRows : rows;
  for (int64_t row = begin * kRotaryRows; row < last; ++row) {
    const int64_t h = row % s.heads, token = row / s.heads % s.tokens, b = row / s.heads / s.tokens;
    const float* from = x.as<const float>() + head_offset(x, s, b, token, h);
    const float* c = cosine.as<const float>() + b * cosine.strides[0] + token * cosine.strides[1];
    const float* sn = sine.as<const float>() + b * sine.strides[0] + token * sine.strides[1];
    float* y = to(b, h, token);
    (interleaved ? rotate_pairs : rotate_halves)(from, c, sn, y, s.rotated / 2);
    if (s.rotated < s.head) std::memmove(y + s.rotated, from + s.rotated, size_t(s.head - s.rotated) * sizeof(float));
    done(b, h, token);
  }
}

void run_rotary(const Args& a, int64_t begin, int64_t end) {
  const Shape s = shape_rotary(a);
  const auto to = [&](int64_t b, int64_t h, int64_t token) {
    return a.out[0].as<float>() + head_offset(a.out[0], s, b, token, h);
  };
  rotate_rows(s, a.ints[0] != 0, a.in[0], a.in[1], a.in[2], begin, end, to, [](int64_t, int64_t, int64_t) {});
}

// ---- rotary_update: rotary, and cache_update with its result. In [cache [b, heads, positions, head], x [b, heads, n, head],
// position, cos, sin], out [updated: the cache's own storage]; ints [2, 0: axes as of cache_update, interleaved, rotary_dim].

Shape shape_update(const Args& a) { return {a.in[1], 0, a.ints[3]}; }

std::string validate_rotary_update(const Args& a) {
  REQUIRE_OK(check_call(a, {5, 5, 1, 1, 4, 0}));
  REQUIRE_OK(check_update(a));
  const Tensor &cache = a.in[0], &x = a.in[1];
  REQUIRE(cache.rank == 4 && a.ints[0] == 2 && a.ints[1] == 0 && unit_last(cache) &&
          (cache.dtype == DType::Float || cache.dtype == DType::Float16 || cache.dtype == DType::BFloat16),
          "the cache is %s, expected [batch, heads, positions, head] of FLOAT, FLOAT16 or BFLOAT16", describe(cache));
  REQUIRE(float_rows(x) && x.dims[3] <= kMaxHead, "x is %s, expected FLOAT of unit stride on the last axis and heads of at most "
          "%lld", describe(x), static_cast<long long>(kMaxHead));
  return check_angles(shape_update(a), a.ints[3], a.in[3], a.in[4]);
}

int64_t tasks_rotary_update(const Args& a) { return tasks_of(shape_update(a)); }

void run_rotary_update(const Args& a, int64_t begin, int64_t end) {
  const Shape s = shape_update(a);
  const Tensor& cache = a.out[0];
  const RowCopy copy(DType::Float, cache.dtype);
  float rotated[kMaxHead];
  const auto put = [&](int64_t b, int64_t h, int64_t token) {
    const int64_t at = position_of(a.in[2], b);
    if (at < 0 || at > cache.dims[2] - s.tokens) return;
    const int64_t place = b * cache.strides[0] + h * cache.strides[1] + (at + token) * cache.strides[2];
    copy(reinterpret_cast<const std::byte*>(rotated), 1, cache.data + place * copy.to_size(), 1, s.head);
  };
  rotate_rows(s, a.ints[2] != 0, a.in[1], a.in[3], a.in[4], begin, end,
              [&](int64_t, int64_t, int64_t) { return rotated; }, put);
}

constexpr Kernel kernels[] = {
    {"rope_table", validate_table, tasks_table, run_table},
    {"rotary", validate_rotary, tasks_rotary, run_rotary},
    {"rotary_update", validate_rotary_update, tasks_rotary_update, run_rotary_update},
};

}  // namespace

KernelTable rotary_table() { return {kernels, int(sizeof kernels / sizeof kernels[0])}; }

}  // namespace tenonnx::TENONNX_ISA_NS

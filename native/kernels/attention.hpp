// What the attention kernels share: ONNX Attention (opset 23 and 24) over 4-D views, heads grouped over fewer K/V heads.
//
//   in   q [b, H, n, head] FLOAT; k [b, KV, capacity, head] and v [b, KV, capacity, value] FLOAT, FLOAT16 or BFLOAT16;
//        mask, optional: FLOAT (added) or BOOL (true takes part), a view [b, H, n, total], total <= capacity (keys
//        past it take no part); lengths, optional: INT64 [b], the valid keys, clamped to 0..capacity
//   ints [is_causal, left_window (-1: none)]; floats [scale, softcap (0: none)]
//
// Query i stands at i + offset, offset = valid - n with lengths and 0 without. Causal: it sees keys j <= i + offset; with a
// window, keys j >= i + offset - left_window. A query that sees no key gives zeros. Keys past the valid ones are not read.
#pragma once
#include "kernels/check.hpp"
#include "kernels/vecmath.hpp"

namespace tenonnx::TENONNX_ISA_NS {

constexpr int64_t kMaxHead = 512;
constexpr float kMinusInfinity = -__builtin_inff();

struct KeyRange {
  int64_t begin, end;
};

// How many of `capacity` keys are valid in row b of the batch, whatever the value found.
static inline int64_t valid_length(const Tensor* lengths, int64_t b, int64_t capacity) {
  if (lengths == nullptr) return capacity;
  const int64_t length = lengths->as<const int64_t>()[b * lengths->strides[0]];
  return length < 0 ? 0 : length > capacity ? capacity : length;
}

struct AttentionShape {
  const Tensor& q;
  const Tensor *mask, *lengths;  // null when absent
  int64_t batch, heads, kv_heads, group, n, capacity, head, value;
  bool causal;
  int64_t window;
  float scale, softcap;

  AttentionShape(const Args& a, int64_t kv_heads, int64_t capacity, int64_t value, const Tensor* mask, const Tensor* lengths)
      : q(a.in[0]), mask(mask), lengths(lengths), batch(q.dims[0]), heads(q.dims[1]), kv_heads(kv_heads), group(heads / kv_heads),
        n(q.dims[2]), capacity(capacity), head(q.dims[3]), value(value), causal(a.ints[0] != 0), window(a.ints[1]),
        scale(float(a.floats[0])), softcap(float(a.floats[1])) {}

  int64_t valid(int64_t b) const { return valid_length(lengths, b, capacity); }

  // The keys that query i sees when `valid` are valid; empty ranges have end <= begin.
  KeyRange range(int64_t i, int64_t valid) const {
    const int64_t place = i + (lengths != nullptr ? valid - n : 0);
    KeyRange keys{0, valid};
    if (mask != nullptr && mask->dims[3] < keys.end) keys.end = mask->dims[3];
    if (causal && place + 1 < keys.end) keys.end = place + 1;
    if (window >= 0 && place > window) keys.begin = place - window;
    return keys;
  }

  const float* query(int64_t b, int64_t h, int64_t i) const {
    return q.as<const float>() + b * q.strides[0] + h * q.strides[1] + i * q.strides[2];
  }
};

// f(const T* data) for the type of a K or V view.
template <typename F>
TENONNX_INLINE void with_elements(const Tensor& t, F f) {
  switch (t.dtype) {
    case DType::Float16: return f(t.as<const Half>());
    case DType::BFloat16: return f(t.as<const Bfloat>());
    default: return f(t.as<const float>());
  }
}

constexpr int64_t kAheadRows = 8;  // of one step
constexpr int64_t kLine = 64;      // bytes that memory delivers together

// Rows that will be read soon, brought near step by step as others are read: where the stream of keys turns to values, and
// where pages end, processors have to find out anew what follows.
struct RowsAhead {
  const std::byte *at = nullptr, *wanted = nullptr, *end = nullptr;
  int64_t row = 0;  // bytes

  void step(int64_t rows) {
    wanted = end - wanted > rows * row ? wanted + rows * row : end;
    for (; at < wanted; at += kLine) __builtin_prefetch(at);
  }
};

// Dense K and V, as the attention kernels over tensors have them.
struct DenseKeys {
  static constexpr bool kHeadsOutside = true;  // all keys of a head, then those of the next
  const Tensor &k, &v;

  explicit DenseKeys(const Args& a) : k(a.in[1]), v(a.in[2]) {}

  static AttentionShape shape(const Args& a) {
    const Tensor &k = a.in[1], &v = a.in[2];
    return {a, k.dims[1], k.dims[2], v.dims[3], a.has(3) ? &a.in[3] : nullptr, a.has(4) ? &a.in[4] : nullptr};
  }

  // f(data, elements between rows, offset, rows, Ahead): `count` keys of one head from `first` on, as one run of rows. While K
  // is read, V of the same keys is brought near, and while V is read, K of the keys that follow.
  template <typename F>
  void keys(int64_t b, int64_t kv, int64_t first, int64_t count, F f) const {
    rows(k, b, kv, first, count, ahead(v, b, kv, first, count), f);
  }
  template <typename F>
  void values(int64_t b, int64_t kv, int64_t first, int64_t count, F f) const {
    rows(v, b, kv, first, count, ahead(k, b, kv, first + count, count), f);
  }

 private:
  static int64_t place(const Tensor& t, int64_t b, int64_t kv, int64_t row) {
    return b * t.strides[0] + kv * t.strides[1] + row * t.strides[2];
  }

  static RowsAhead ahead(const Tensor& t, int64_t b, int64_t kv, int64_t first, int64_t count) {
    const int64_t left = t.dims[2] - first, rows = count < left ? count : left, row = t.dims[3] * size_of(t.dtype);
    if (rows <= 0 || t.strides[2] != t.dims[3]) return {};  // other heads' rows between these
    const std::byte* data = t.data + place(t, b, kv, first) * size_of(t.dtype);
    return {data, data, data + rows * row, row};
  }

  template <typename F>
  static void rows(const Tensor& t, int64_t b, int64_t kv, int64_t first, int64_t count, RowsAhead ahead, F f) {
    with_elements(t, [&](auto* data) { f(data + place(t, b, kv, first), t.strides[2], int64_t(0), count, ahead); });
  }
};

static inline bool cache_type(DType t) { return t == DType::Float || t == DType::Float16 || t == DType::BFloat16; }

static inline std::string check_attention(const Args& a, int outputs) {
  REQUIRE_OK(check_call(a, {3, 5, outputs, outputs, 2, 2}));
  const Tensor &q = a.in[0], &k = a.in[1], &v = a.in[2];
  REQUIRE(q.rank == 4 && float_rows(q), "q is %s, expected FLOAT[b,heads,n,head] of unit stride on the last axis", describe(q));
  REQUIRE(k.rank == 4 && cache_type(k.dtype) && unit_last(k) && k.dims[0] == q.dims[0] && k.dims[3] == q.dims[3],
          "k is %s for q %s: FLOAT, FLOAT16 or BFLOAT16 of the same batch and head size expected", describe(k), describe(q));
  REQUIRE(v.rank == 4 && cache_type(v.dtype) && unit_last(v) && v.dims[0] == k.dims[0] && v.dims[1] == k.dims[1] &&
          v.dims[2] == k.dims[2],
          "v is %s for k %s: FLOAT, FLOAT16 or BFLOAT16 of the same batch, heads and length expected", describe(v), describe(k));
  REQUIRE(k.dims[1] > 0 && q.dims[1] % k.dims[1] == 0, "%lld heads of k do not divide the %lld of q",
          static_cast<long long>(k.dims[1]), static_cast<long long>(q.dims[1]));
  REQUIRE(q.dims[3] <= kMaxHead && v.dims[3] <= kMaxHead, "head sizes %lld and %lld, expected up to %lld",
          static_cast<long long>(q.dims[3]), static_cast<long long>(v.dims[3]), static_cast<long long>(kMaxHead));
  if (a.has(3)) {
    const Tensor& mask = a.in[3];
    bool fits = mask.rank == 4 && (mask.dtype == DType::Float || mask.dtype == DType::Bool) && mask.dims[3] <= k.dims[2];
    for (int i = 0; fits && i < 3; ++i) fits = mask.dims[i] == q.dims[i];
    REQUIRE(fits, "mask is %s for q %s and k %s: a FLOAT or BOOL view [b,heads,n,total] expected", describe(mask), describe(q),
            describe(k));
  }
  REQUIRE(!a.has(4) || (a.in[4].dtype == DType::Int64 && a.in[4].rank == 1 && a.in[4].dims[0] == q.dims[0]),
          "lengths are %s, expected INT64[%lld]", describe(a.in[4]), static_cast<long long>(q.dims[0]));
  return {};
}

static inline std::string check_attended(const Args& a, const Tensor& y) {
  const Tensor &q = a.in[0], &v = a.in[2];
  REQUIRE(y.rank == 4 && float_rows(y) && y.dims[0] == q.dims[0] && y.dims[1] == q.dims[1] && y.dims[2] == q.dims[2] &&
          y.dims[3] == v.dims[3],
          "output is %s for q %s and v %s: FLOAT[b,heads,n,value] of unit stride on the last axis expected", describe(y),
          describe(q), describe(v));
  return {};
}

// The mask's row for one query over keys [begin, end), applied to their scores. What a mask excludes stays out even when its
// score is NaN.
static inline void apply_mask(const Tensor& mask, int64_t b, int64_t h, int64_t i, KeyRange keys, float* scores) {
  const int64_t stride = mask.strides[3];
  const int64_t row = b * mask.strides[0] + h * mask.strides[1] + i * mask.strides[2] + keys.begin * stride;
  if (mask.dtype == DType::Bool) {
    const uint8_t* m = mask.as<const uint8_t>() + row;
    for (int64_t j = 0; j < keys.end - keys.begin; ++j) scores[j] = m[j * stride] ? scores[j] : kMinusInfinity;
  } else {
    const float* m = mask.as<const float>() + row;
    for (int64_t j = 0; j < keys.end - keys.begin; ++j)
      scores[j] = m[j * stride] == kMinusInfinity ? kMinusInfinity : scores[j] + m[j * stride];
  }
}

// scores of one query with keys [first, first + count) become softmax logits, -inf where a key takes no part and up to Keys.
// Returns the largest. `seen` is what the query sees.
template <int64_t Keys>
static inline float finish_scores(const AttentionShape& s, int64_t b, int64_t h, int64_t i, KeyRange seen, int64_t first,
    int64_t count, float* scores) {
  if (s.softcap > 0) {
    for (int64_t j = 0; j < Keys; j += kLanes) store(scores + j, tanh(load(scores + j) / s.softcap) * s.softcap);
  }
  const int64_t begin = seen.begin > first ? seen.begin - first : 0;
  const int64_t end = seen.end - first < count ? seen.end - first : count;
  for (int64_t j = 0; j < begin && j < Keys; ++j) scores[j] = kMinusInfinity;
  for (int64_t j = end < 0 ? 0 : end; j < Keys; ++j) scores[j] = kMinusInfinity;
  if (s.mask != nullptr && begin < end) apply_mask(*s.mask, b, h, i, {first + begin, first + end}, scores + begin);
  Vec highest = load(scores);
  for (int64_t j = kLanes; j < Keys; j += kLanes) highest = max(highest, load(scores + j));
  return largest(highest);
}

// A maximum to subtract: of a row that sees nothing, 0, so that its exponentials are 0 and not NaN.
TENONNX_INLINE float finite_peak(float peak) { return peak == kMinusInfinity ? 0.0f : peak; }
TENONNX_INLINE float exp_one(float x) { return exp(splat(x))[0]; }

// Logits become exp(logit - peak); returns their sum.
template <int64_t Keys>
static inline float exponentiate(float* logits, float peak) {
  Vec total = {};
  for (int64_t j = 0; j < Keys; j += kLanes) {
    const Vec p = exp(load(logits + j) - peak);
    store(logits + j, p);
    total += p;
  }
  return sum(total);
}

}  // namespace tenonnx::TENONNX_ISA_NS

// Attention for many queries, over any source of keys and values. A task is a tile of kRows queries of one K/V head (all query
// heads that share it), which walks tiles of kKeys keys with a running softmax: a tile of K and V is converted once for all
// its queries, and both products are small matrix products with their sums in registers. Tiles that no query sees are skipped.
#pragma once
#include "kernels/attention.hpp"

namespace tenonnx::TENONNX_ISA_NS {

constexpr int64_t kKeys = 64;
constexpr int kBlockRows = 6;                     // rows of a product held in registers
constexpr int kBlockVectors = kLanes == 16 ? 4 : 2;
constexpr int64_t kRows = 16 * kBlockRows;        // whole vectors, too

static constexpr int64_t rounded(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// c += a [kBlockRows, depth] · b [depth, N vectors]; rows lie lda, ldb and ldc elements apart.
template <int N>
TENONNX_INLINE void multiply_block(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
    int64_t depth) {
  Vec total[kBlockRows][N];
  for (int r = 0; r < kBlockRows; ++r)
    for (int v = 0; v < N; ++v) total[r][v] = load(c + r * ldc + v * kLanes);
  for (int64_t k = 0; k < depth; ++k) {
    Vec row[N];
    for (int v = 0; v < N; ++v) row[v] = load(b + k * ldb + v * kLanes);
    for (int r = 0; r < kBlockRows; ++r) {
      const Vec left = splat(a[r * lda + k]);
      for (int v = 0; v < N; ++v) total[r][v] = fma(left, row[v], total[r][v]);
    }
  }
  for (int r = 0; r < kBlockRows; ++r)
    for (int v = 0; v < N; ++v) store(c + r * ldc + v * kLanes, total[r][v]);
}

// rows is a multiple of kBlockRows, columns of kLanes.
static inline void multiply(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t rows, int64_t columns,
    int64_t depth) {
  int64_t column = 0;
  for (; column + kBlockVectors * kLanes <= columns; column += kBlockVectors * kLanes)
    for (int64_t r = 0; r < rows; r += kBlockRows)
      multiply_block<kBlockVectors>(a + r * lda, lda, b + column, ldb, c + r * ldc + column, ldc, depth);
  for (; column < columns; column += kLanes)
    for (int64_t r = 0; r < rows; r += kBlockRows)
      multiply_block<1>(a + r * lda, lda, b + column, ldb, c + r * ldc + column, ldc, depth);
}

// Rows of K or V as floats, zeros up to `padded` columns.
template <typename T>
static inline void convert(const T* from, int64_t stride, int64_t rows, int64_t width, float* to, int64_t padded) {
  for (int64_t r = 0; r < rows; ++r) {
    int64_t c = 0;
    for (; c + kLanes <= width; c += kLanes) store(to + r * padded + c, load(from + r * stride + c));
    for (; c < padded; c += kLanes) store(to + r * padded + c, load_some(from + r * stride + c, width > c ? width - c : 0));
  }
}

static inline void transpose8(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
#if defined(__AVX2__)
  __m256 row[8], pair[8];
  for (int i = 0; i < 8; ++i) row[i] = _mm256_loadu_ps(from + i * from_stride);
  for (int i = 0; i < 8; i += 2) {
    pair[i] = _mm256_unpacklo_ps(row[i], row[i + 1]);
    pair[i + 1] = _mm256_unpackhi_ps(row[i], row[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int k = 0; k < 2; ++k) {
      row[i + 2 * k] = _mm256_shuffle_ps(pair[i + k], pair[i + k + 2], 0x44);
      row[i + 2 * k + 1] = _mm256_shuffle_ps(pair[i + k], pair[i + k + 2], 0xee);
    }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(row[i], row[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(row[i], row[i + 4], 0x31));
  }
#else
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < 8; ++j) to[j * to_stride + i] = from[i * from_stride + j];
#endif
}

constexpr int64_t kMaxPadded = rounded(kMaxHead, 16);

struct Tile {
  alignas(64) float q[kRows * kMaxHead];         // scaled; [rows, head]
  alignas(64) float values[kKeys * kMaxPadded];  // a tile of V, and K on its way to be transposed; [keys, padded]
  alignas(64) float keys[kMaxPadded * kKeys];    // [head, keys]
  alignas(64) float scores[kRows * kKeys];
  alignas(64) float sums[kRows * kMaxPadded];    // of values, not yet divided; [rows, padded]
  alignas(64) float found[kRows], peak[kRows], shift[kRows], total[kRows];  // shift: the peak, 0 instead of -inf
};

// The rows of a task: row r is query r / group and the r % group-th head of its K/V head.
struct Rows {
  const AttentionShape& s;
  int64_t b, kv, first, count, valid;

  int64_t head(int64_t r) const { return kv * s.group + (first + r) % s.group; }
  int64_t query(int64_t r) const { return (first + r) / s.group; }
  KeyRange seen(int64_t r) const { return s.range(query(r), valid); }
};

static inline void load_queries(const Rows& rows, Tile& t) {
  const AttentionShape& s = rows.s;
  const int64_t padded_rows = rounded(rows.count, kBlockRows);
  for (int64_t r = 0; r < rows.count; ++r)
    map(t.q + r * s.head, s.head, [scale = s.scale](Vec v) { return v * scale; }, s.query(rows.b, rows.head(r), rows.query(r)));
  std::memset(t.q + rows.count * s.head, 0, size_t((padded_rows - rows.count) * s.head) * sizeof(float));
}

// scores = q · k over `count` keys from `first` on; columns past them are left as they come.
template <typename Source>
static void score_tile(const Source& source, const Rows& rows, Tile& t, int64_t first, int64_t count) {
  const AttentionShape& s = rows.s;
  const int64_t padded = rounded(s.head, 16), padded_rows = rounded(rows.count, kBlockRows);
  source.keys(rows.b, rows.kv, first, count, [&](auto* k, int64_t stride, int64_t at, int64_t n, auto) {
    convert(k, stride, n, s.head, t.values + at * padded, padded);
  });
  for (int64_t j = 0; j < count; j += 8)
    for (int64_t d = 0; d < s.head; d += 8) transpose8(t.values + j * padded + d, padded, t.keys + d * kKeys + j, kKeys);
  std::memset(t.scores, 0, size_t(padded_rows * kKeys) * sizeof(float));
  multiply(t.q, s.head, t.keys, kKeys, t.scores, kKeys, padded_rows, rounded(count, kLanes), s.head);
}

// Scores become exponentials over a running maximum; sums made under an older maximum are scaled to the new one.
static inline void soften_tile(const Rows& rows, Tile& t, int64_t first, int64_t padded) {
  alignas(64) float correction[kRows];
  for (int64_t r = 0; r < rows.count; ++r)
    t.found[r] = finish_scores<kKeys>(rows.s, rows.b, rows.head(r), rows.query(r), rows.seen(r), first, kKeys,
                                      t.scores + r * kKeys);
  for (int64_t r = 0; r < rows.count; r += kLanes) {
    const Vec found = load(t.found + r), before = load(t.peak + r);
    const Vec peak = before > found ? before : found;
    store(t.peak + r, peak);
    store(t.shift + r, peak == kMinusInfinity ? Vec{} : peak);
    store(correction + r, exp(before - load(t.shift + r)));
  }
  for (int64_t r = 0; r < rows.count; ++r) {
    t.total[r] = t.total[r] * correction[r] + exponentiate<kKeys>(t.scores + r * kKeys, t.shift[r]);
    if (correction[r] != 1.0f)
      map(t.sums + r * padded, padded, [factor = correction[r]](Vec v) { return v * factor; }, t.sums + r * padded);
  }
}

template <typename Source>
static void run_tile(const Source& source, const Rows& rows, const Tensor& y, Tile& t) {
  const AttentionShape& s = rows.s;
  const int64_t padded = rounded(s.value, 16), padded_rows = rounded(rows.count, kBlockRows);
  load_queries(rows, t);
  std::memset(t.sums, 0, size_t(padded_rows * padded) * sizeof(float));
  for (int64_t r = 0; r < kRows; ++r) t.found[r] = t.peak[r] = kMinusInfinity, t.total[r] = 0;
  // Rows are ordered by query, and so are the ends of what they see.
  const int64_t end = rows.seen(rows.count - 1).end, begin = rows.seen(0).begin / kKeys * kKeys;
  for (int64_t first = begin; first < end; first += kKeys) {
    const int64_t count = end - first < kKeys ? end - first : kKeys;
    score_tile(source, rows, t, first, count);
    soften_tile(rows, t, first, padded);
    source.values(rows.b, rows.kv, first, count, [&](auto* v, int64_t stride, int64_t at, int64_t n, auto) {
      convert(v, stride, n, s.value, t.values + at * padded, padded);
    });
    multiply(t.scores, kKeys, t.values, padded, t.sums, padded, padded_rows, padded, count);
  }
  for (int64_t r = 0; r < rows.count; ++r) {
    const float factor = t.total[r] == 0 ? 0.0f : 1.0f / t.total[r];
    float* out = y.as<float>() + rows.b * y.strides[0] + rows.head(r) * y.strides[1] + rows.query(r) * y.strides[2];
    map(out, s.value, [factor](Vec v) { return v * factor; }, t.sums + r * padded);
  }
}

static inline int64_t tiles_of(const AttentionShape& s) { return rounded(s.n * s.group, kRows) / kRows; }

static inline int64_t tile_tasks(const AttentionShape& s) { return s.batch * s.kv_heads * tiles_of(s); }

template <typename Source>
static void run_tiles(const Source& source, const AttentionShape& s, const Tensor& y, int64_t begin, int64_t end) {
  const int64_t tiles = tiles_of(s), all = s.n * s.group, heads = s.batch * s.kv_heads;
  Tile tile;
  for (int64_t task = begin; task < end; ++task) {
    // Under a causal mask the last queries have most to do: they come first, so that threads end together.
    const int64_t first = (tiles - 1 - task / heads) * kRows, b = task % heads / s.kv_heads, kv = task % s.kv_heads;
    run_tile(source, {s, b, kv, first, all - first < kRows ? all - first : kRows, s.valid(b)}, y, tile);
  }
}

}  // namespace tenonnx::TENONNX_ISA_NS

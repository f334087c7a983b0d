// Attention for few queries, over any source of keys and values, split along the keys. A task treats one chunk of keys of one
// K/V head for all queries that share it, so that K and V are read once, and leaves per query its weighted sum of values, the
// largest logit and the sum of exponentials; the chunks are joined in their order. Chunks do not depend on threads.
//
// The workspace holds records [b, H, n, chunk] of FLOAT [value + 2]; those past the valid length stay unwritten.
#pragma once
#include "kernels/attention.hpp"
#include "kernels/walk.hpp"

namespace tenonnx::TENONNX_ISA_NS {

constexpr int kRowBlock = 4;  // queries whose sums are held in registers together
constexpr int64_t kSlack = 16;  // scores are stored four at a time, from any key on

static inline int64_t chunks_of(int64_t keys, int64_t chunk) { return keys / chunk + (keys % chunk != 0); }

// False when the workspace is not one row of enough bytes for `rows` queries.
static inline bool workspace_fits(const Tensor& t, int64_t rows, int64_t capacity, int64_t chunk, int64_t value) {
  int64_t bytes;
  const bool counted = !__builtin_mul_overflow(rows, chunks_of(capacity, chunk), &bytes) &&
                       !__builtin_mul_overflow(bytes, 4 * (value + 2), &bytes);
  return counted && t.dtype == DType::UInt8 && t.rank == 1 && t.contiguous() && t.dims[0] >= bytes;
}

// Sums of the lanes of each vector. The order of additions is the same for every vector.
template <int N>
TENONNX_INLINE void store_sums(const Vec (&v)[N], float* out) {
#if defined(__AVX2__)
  __m256 half[N];
  for (int i = 0; i < N; ++i) {
#if defined(__AVX512F__)
    half[i] = _mm256_add_ps(_mm512_castps512_ps256(v[i]), _mm512_extractf32x8_ps(v[i], 1));
#else
    half[i] = v[i];
#endif
  }
  const __m256 low = _mm256_hadd_ps(half[0], half[1]);
  const __m256 high = N == 4 ? _mm256_hadd_ps(half[N - 2], half[N - 1]) : low;
  const __m256 pairs = _mm256_hadd_ps(low, high);
  const __m128 sums = _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1));
  if constexpr (N == 4) _mm_storeu_ps(out, sums);
  else _mm_storel_pi(reinterpret_cast<__m64*>(out), sums);
#else
  for (int i = 0; i < N; ++i) out[i] = sum(v[i]);
#endif
}

// scores[r][j] = q[r] · k[j] for R queries (padded with zeros to whole vectors) and `keys` keys; rows of scores lie Room apart.
template <int R, int64_t Room, typename T, typename Ahead>
static inline void score(const float* q, int64_t padded, const T* k, int64_t stride, int64_t head, int64_t keys, float* scores,
    Ahead ahead) {
  constexpr int B = kLanes == 16 || R <= 2 ? 4 : 2;  // keys at once, as registers allow
  const int64_t whole = head - head % kLanes;
  for (int64_t j = 0; j < keys; j += B) {
    if (j % kAheadRows == 0) ahead.step(kAheadRows);
    const T* row[B];
    for (int t = 0; t < B; ++t) row[t] = k + (j + t < keys ? j + t : keys - 1) * stride;
    Vec total[R][B] = {};
    const auto step = [&](int64_t d, const Vec (&key)[B]) {
      for (int r = 0; r < R; ++r) {
        const Vec query = load(q + r * padded + d);
        for (int t = 0; t < B; ++t) total[r][t] = fma(query, key[t], total[r][t]);
      }
    };
    Vec key[B];
    for (int64_t d = 0; d < whole; d += kLanes) {
      for (int t = 0; t < B; ++t) key[t] = load(row[t] + d);
      step(d, key);
    }
    if (whole < head) {
      for (int t = 0; t < B; ++t) key[t] = load_some(row[t] + whole, head - whole);
      step(whole, key);
    }
    for (int r = 0; r < R; ++r) store_sums(total[r], scores + r * Room + j);
  }
}

// out[r] += sum over j of weights[r][j] · v[j], columns [column, column + N vectors); the last vector may be a short one.
template <int R, int N, bool Short, int64_t Room, typename T, typename Ahead>
TENONNX_INLINE void weigh_columns(const float* weights, const T* v, int64_t stride, int64_t keys, float* const (&out)[R],
    int64_t column, int64_t width, Ahead& ahead) {
  Vec total[R][N];
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < N; ++c)
      total[r][c] = Short ? load_some(out[r] + column, width) : load(out[r] + column + c * kLanes);
  for (int64_t j = 0; j < keys; ++j) {
    if (j % kAheadRows == 0) ahead.step(kAheadRows);
    Vec value[N];
    for (int c = 0; c < N; ++c) {
      const T* p = v + j * stride + column + c * kLanes;
      value[c] = Short ? load_some(p, width) : load(p);
    }
    for (int r = 0; r < R; ++r) {
      const Vec weight = splat(weights[r * Room + j]);
      for (int c = 0; c < N; ++c) total[r][c] = fma(weight, value[c], total[r][c]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int c = 0; c < N; ++c) {
      if (Short) store_some(out[r] + column, total[r][c], width);
      else store(out[r] + column + c * kLanes, total[r][c]);
    }
}

template <int R, int64_t Room, typename T, typename Ahead>
static inline void weigh(const float* weights, const T* v, int64_t stride, int64_t width, int64_t keys, float* const (&out)[R],
    Ahead ahead) {
  constexpr int N = kLanes == 16 ? 4 : 2;
  int64_t c = 0;
  for (; c + N * kLanes <= width; c += N * kLanes) weigh_columns<R, N, false, Room>(weights, v, stride, keys, out, c, 0, ahead);
  for (; c + kLanes <= width; c += kLanes) weigh_columns<R, 1, false, Room>(weights, v, stride, keys, out, c, 0, ahead);
  if (c < width) weigh_columns<R, 1, true, Room>(weights, v, stride, keys, out, c, width - c, ahead);
}

// One K/V head's chunk of up to Keys keys for R of its queries, from row `first_row` of [n, group] on.
template <int R, int64_t Keys, typename Source>
static void attend(const Source& source, const AttentionShape& s, float* workspace, int64_t b, int64_t kv, int64_t chunk,
    int64_t chunk_keys, int64_t valid, int64_t first_row) {
  constexpr int64_t kRoom = Keys + kSlack;
  const int64_t first = chunk * chunk_keys, padded = (s.head + kLanes - 1) / kLanes * kLanes;
  alignas(64) float q[R * kMaxHead], scores[R * kRoom];
  float* records[R];
  int64_t head[R], query[R];
  KeyRange seen[R], keys{chunk_keys, 0};  // relative to the chunk
  for (int r = 0; r < R; ++r) {
    head[r] = kv * s.group + (first_row + r) % s.group;
    query[r] = (first_row + r) / s.group;
    const int64_t row = (b * s.heads + head[r]) * s.n + query[r];
    records[r] = workspace + (row * chunks_of(s.capacity, chunk_keys) + chunk) * (s.value + 2);
    std::memset(records[r], 0, size_t(s.value) * sizeof(float));
    seen[r] = s.range(query[r], valid);
    if (seen[r].begin - first < keys.begin) keys.begin = seen[r].begin - first;
    if (seen[r].end - first > keys.end) keys.end = seen[r].end - first;
    const float* from = s.query(b, head[r], query[r]);
    for (int64_t d = 0; d < padded; ++d) q[r * padded + d] = d < s.head ? from[d] * s.scale : 0;
  }
  keys.begin = keys.begin < 0 ? 0 : keys.begin;
  keys.end = keys.end > chunk_keys ? chunk_keys : keys.end;
  const int64_t count = keys.end > keys.begin ? keys.end - keys.begin : 0;
  source.keys(b, kv, first + keys.begin, count, [&](auto* k, int64_t stride, int64_t at, int64_t n, auto ahead) {
    score<R, kRoom>(q, padded, k, stride, s.head, n, scores + keys.begin + at, ahead);
  });
  for (int r = 0; r < R; ++r) {
    const float peak = finish_scores<Keys>(s, b, head[r], query[r], seen[r], first, chunk_keys, scores + r * kRoom);
    records[r][s.value] = peak;
    records[r][s.value + 1] = exponentiate<Keys>(scores + r * kRoom, finite_peak(peak));
  }
  source.values(b, kv, first + keys.begin, count, [&](auto* v, int64_t stride, int64_t at, int64_t n, auto ahead) {
    weigh<R, kRoom>(scores + keys.begin + at, v, stride, s.value, n, records, ahead);
  });
}

template <int64_t Keys, typename Source>
static void run_chunks(const Source& source, const AttentionShape& s, int64_t chunk_keys, float* workspace, int64_t begin,
    int64_t end) {
  const int64_t chunks = chunks_of(s.capacity, chunk_keys), rows = s.n * s.group;
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  for (int64_t task = begin; task < end; ++task) {
    // In the order in which the source has them in memory.
    const int64_t inner = task % (chunks * s.kv_heads), b = task / (chunks * s.kv_heads);
    const int64_t chunk = Source::kHeadsOutside ? inner % chunks : inner / s.kv_heads;
    const int64_t kv = Source::kHeadsOutside ? inner / chunks : inner % s.kv_heads;
    const int64_t valid = s.valid(b);
    if (chunk * chunk_keys >= valid) continue;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t row = block * rows / blocks;
      switch ((block + 1) * rows / blocks - row) {
        case 1: attend<1, Keys>(source, s, workspace, b, kv, chunk, chunk_keys, valid, row); break;
        case 2: attend<2, Keys>(source, s, workspace, b, kv, chunk, chunk_keys, valid, row); break;
        case 3: attend<3, Keys>(source, s, workspace, b, kv, chunk, chunk_keys, valid, row); break;
        default: attend<kRowBlock, Keys>(source, s, workspace, b, kv, chunk, chunk_keys, valid, row);
      }
    }
  }
}

static inline int64_t chunk_tasks(const AttentionShape& s, int64_t chunk_keys) {
  return s.n == 0 || s.heads == 0 ? 0 : s.batch * s.kv_heads * chunks_of(s.capacity, chunk_keys);
}

// ---- Joining the chunks: in [workspace, lengths (optional)], out [y], over `capacity` keys.

static inline std::string check_combine(const Args& a, int64_t capacity, int64_t chunk) {
  const Tensor& y = a.out[0];
  REQUIRE(y.rank == 4 && float_rows(y), "output is %s, expected FLOAT[b,heads,n,value] of unit stride on the last axis",
          describe(y));
  REQUIRE(capacity >= 0 && chunk >= 1 && workspace_fits(a.in[0], size_of_dims(y, 0, 3), capacity, chunk, y.dims[3]),
          "workspace is %s, too small for %s over %lld keys", describe(a.in[0]), describe(y), static_cast<long long>(capacity));
  REQUIRE(!a.has(1) || (a.in[1].dtype == DType::Int64 && a.in[1].rank == 1 && a.in[1].dims[0] == y.dims[0]),
          "lengths are %s, expected INT64[%lld]", describe(a.in[1]), static_cast<long long>(y.dims[0]));
  return {};
}

static inline int64_t tasks_combine(const Args& a) {
  return a.out[0].dims[3] == 0 ? 0 : a.out[0].dims[0] * a.out[0].dims[1];
}

static inline void join(const float* records, int64_t chunks, int64_t value, float* y) {
  float peak = kMinusInfinity, total = 0;
  for (int64_t c = 0; c < chunks; ++c) peak = __builtin_fmaxf(peak, records[c * (value + 2) + value]);
  std::memset(y, 0, size_t(value) * sizeof(float));
  for (int64_t c = 0; c < chunks; ++c) {
    const float* record = records + c * (value + 2);
    const float weight = exp_one(record[value] - finite_peak(peak));
    total += weight * record[value + 1];
    map(y, value, [weight](Vec sum, Vec part) { return fma(splat(weight), part, sum); }, y, record);
  }
  const float factor = total == 0 ? 0.0f : 1.0f / total;
  map(y, value, [factor](Vec sum) { return sum * factor; }, y);
}

static inline void combine_chunks(const Args& a, int64_t capacity, int64_t chunk, int64_t begin, int64_t end) {
  const Tensor &workspace = a.in[0], &y = a.out[0];
  const int64_t heads = y.dims[1], n = y.dims[2], value = y.dims[3], chunks = chunks_of(capacity, chunk);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t b = task / heads, h = task % heads;
    const int64_t used = chunks_of(valid_length(a.has(1) ? &a.in[1] : nullptr, b, capacity), chunk);
    for (int64_t i = 0; i < n; ++i)
      join(workspace.as<const float>() + (task * n + i) * chunks * (value + 2), used, value,
           y.as<float>() + b * y.strides[0] + h * y.strides[1] + i * y.strides[2]);
  }
}

}  // namespace tenonnx::TENONNX_ISA_NS

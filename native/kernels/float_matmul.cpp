// FLOAT activations times packed FLOAT16, BFLOAT16 and FLOAT weights, summed in FLOAT. Each result is one chain of
// multiply-adds along K, whatever the number of tokens: the same bits for a row alone and in a batch. Parallel chains
// come from several groups of rows (one token) or several tokens.
#include <cstddef>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/half.hpp"
#include "kernels/projection.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

using std::byte;

constexpr int kStripGroups = 4, kStripRows = kStripGroups * kGroup;
constexpr int kAhead = 1024;  // bytes to prefetch in each group for one token

// Rows holds one float for each row of kVectorGroups groups; kTile tokens by kTileVectors of them stay in registers.
#if defined(__AVX512F__)
using Rows = __m512;
constexpr int kVectorGroups = 2, kTile = 8, kTileVectors = 2;
inline void multiply_add(Rows& sum, const Rows& w, float x) { sum = _mm512_fmadd_ps(w, _mm512_set1_ps(x), sum); }
inline void store_rows(const Rows& rows, float* out) { _mm512_storeu_ps(out, rows); }
inline __m256i load_16(const byte* const* at, int64_t offset) {
  const __m128i first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at[0] + offset));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(first),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(at[1] + offset)), 1);
}
inline Rows from_halves(__m256i halves) { return _mm512_cvtph_ps(halves); }
inline Rows from_bfloats(__m256i values) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16)); }
inline Rows load_32(const byte* const* at, int64_t offset) {
  const __m256 first = _mm256_loadu_ps(reinterpret_cast<const float*>(at[0] + offset));
  return _mm512_insertf32x8(_mm512_castps256_ps512(first), _mm256_loadu_ps(reinterpret_cast<const float*>(at[1] + offset)), 1);
}
#elif defined(__AVX2__)
using Rows = __m256;
constexpr int kVectorGroups = 1, kTile = 4, kTileVectors = 2;
inline void multiply_add(Rows& sum, const Rows& w, float x) { sum = _mm256_fmadd_ps(w, _mm256_set1_ps(x), sum); }
inline void store_rows(const Rows& rows, float* out) { _mm256_storeu_ps(out, rows); }
inline __m128i load_16(const byte* const* at, int64_t offset) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at[0] + offset));
}
inline Rows from_halves(__m128i halves) { return _mm256_cvtph_ps(halves); }
inline Rows from_bfloats(__m128i values) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(values), 16)); }
inline Rows load_32(const byte* const* at, int64_t offset) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(at[0] + offset));
}
#else
constexpr int kVectorGroups = 1, kTile = 4, kTileVectors = 2;
struct Rows {
  float of[kGroup];
};
struct Halves {
  uint16_t of[kGroup];
};
inline void multiply_add(Rows& sum, const Rows& w, float x) {
  for (int row = 0; row < kGroup; ++row) sum.of[row] += w.of[row] * x;
}
inline void store_rows(const Rows& rows, float* out) { std::memcpy(out, &rows, sizeof rows); }
inline Halves load_16(const byte* const* at, int64_t offset) {
  Halves halves;
  std::memcpy(&halves, at[0] + offset, sizeof halves);
  return halves;
}
template <float (*Decode)(uint16_t)>
inline Rows decode_16(const Halves& halves) {
  Rows rows;
  for (int row = 0; row < kGroup; ++row) rows.of[row] = Decode(halves.of[row]);
  return rows;
}
inline Rows from_halves(const Halves& halves) { return decode_16<half_to_float>(halves); }
inline Rows from_bfloats(const Halves& halves) { return decode_16<bfloat_to_float>(halves); }
inline Rows load_32(const byte* const* at, int64_t offset) {
  Rows rows;
  std::memcpy(&rows, at[0] + offset, sizeof rows);
  return rows;
}
#endif

// load() decodes one column of the rows of consecutive groups.
struct F16 {
  static constexpr Format packed = kPacked16;
  static inline Rows load(const byte* const* groups, int64_t offset) { return from_halves(load_16(groups, offset)); }
};

struct BF16 {
  static constexpr Format packed = kPacked16;
  static inline Rows load(const byte* const* groups, int64_t offset) { return from_bfloats(load_16(groups, offset)); }
};

struct F32 {
  static constexpr Format packed = kPackedF32;
  static inline Rows load(const byte* const* groups, int64_t offset) { return load_32(groups, offset); }
};

struct Matrix {
  const float* x;
  float* y;
  int64_t k, x_stride, y_stride;
};

// T tokens times V vectors; `rows` of them exist.
template <typename L, int T, int V>
void multiply_tile(const byte* const* groups, int64_t rows, const Matrix& m) {
  constexpr int vector_rows = kVectorGroups * kGroup;
  Rows sums[T][V] = {};
  for (int64_t column = 0; column < m.k; ++column) {
    const int64_t offset = column * L::packed.bytes;
    if constexpr (T == 1)
      for (int g = 0; g < V * kVectorGroups; ++g) __builtin_prefetch(groups[g] + offset + kAhead);
    Rows w[V];
    for (int v = 0; v < V; ++v) w[v] = L::load(groups + v * kVectorGroups, offset);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t)
      for (int v = 0; v < V; ++v) multiply_add(sums[t][v], w[v], m.x[t * m.x_stride + column]);
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    float out[V * vector_rows];
    for (int v = 0; v < V; ++v) store_rows(sums[t][v], out + v * vector_rows);
    std::memcpy(m.y + t * m.y_stride, out, size_t(rows < V * vector_rows ? rows : V * vector_rows) * sizeof(float));
  }
}

template <typename L, int T, int V>
void multiply_tokens(const byte* const (&groups)[kStripGroups], int64_t rows, Matrix m, int64_t tokens) {
  constexpr int tile_groups = V * kVectorGroups;
  for (; tokens >= T; tokens -= T) {
    for (int g = 0; g < kStripGroups && g * kGroup < rows; g += tile_groups) {
      Matrix part = m;
      part.y += g * kGroup;
      multiply_tile<L, T, V>(groups + g, rows - g * kGroup, part);
    }
    m.x += T * m.x_stride;
    m.y += T * m.y_stride;
  }
  if constexpr (T > 1) multiply_tokens<L, 1, kStripGroups / kVectorGroups>(groups, rows, m, tokens);
}

template <typename L>
std::string validate(const Args& a) {
  const auto weight = [&a](const Tensor& packed, int64_t n) { return check_bytes("packed", packed, L::packed, n, a.ints[1]); };
  return check_projection(a, 0, DType::Float, weight, [](int64_t k) { return k; });
}

int64_t tasks(const Args& a) { return projection_tasks<kStripRows>(a, 0); }

template <typename L>
void run(const Args& a, int64_t begin, int64_t end) {
  const Tensor& x = a.in[0];
  const int64_t k = a.ints[1];
  run_projection<kStripRows>(a, 0, begin, end, [&](const Tensor& packed, int64_t row, int64_t rows, int64_t token,
                                                   int64_t tokens, float* y, int64_t stride) {
    const byte* groups[kStripGroups];  // a missing group of the last strip repeats the last one and is not stored
    const int64_t left = (rows - 1) / kGroup;
    for (int g = 0; g < kStripGroups; ++g)
      groups[g] = packed.data + (row / kGroup + (g < left ? g : left)) * k * L::packed.bytes;
    multiply_tokens<L, kTile, kTileVectors>(groups, rows, {x.as<float>() + token * x.strides[0], y, k, x.strides[0], stride},
                                            tokens);
  });
}

template <typename L>
constexpr Kernel matmul(const char* name) {
  return {name, validate<L>, tasks, run<L>};
}

}  // namespace

KernelTable float_matmul_table() {
  // As `projection.hpp` has it, with x FLOAT [M, K].
  static const Kernel kernels[] = {matmul<F16>("matmul_f16"), matmul<BF16>("matmul_bf16"), matmul<F32>("matmul_f32")};
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

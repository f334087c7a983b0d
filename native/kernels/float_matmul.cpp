// FLOAT activations times packed FLOAT16, BFLOAT16 and FLOAT weights, summed in FLOAT. Each result is one chain of
// multiply-adds along K, whatever the number of tokens: the same bits for a row alone and in a batch. Parallel chains
// come from several groups of rows (one token) or several tokens.
#include <cstddef>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/half.hpp"
#include "kernels/matrix_checks.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

using std::byte;

constexpr int kStripGroups = 4, kStripRows = kStripGroups * kGroup;
constexpr int kChunk = 64;  // tokens of a task

#if defined(__AVX2__)
using Rows = __m256;  // one float for each row of a group
inline void multiply_add(Rows& sum, const Rows& w, float x) { sum = _mm256_fmadd_ps(w, _mm256_set1_ps(x), sum); }
inline void store_rows(const Rows& rows, float* out) { _mm256_storeu_ps(out, rows); }
inline __m128i load_16(const byte* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }
#else
struct Rows {
  float of[kGroup];
};
inline void multiply_add(Rows& sum, const Rows& w, float x) {
  for (int row = 0; row < kGroup; ++row) sum.of[row] += w.of[row] * x;
}
inline void store_rows(const Rows& rows, float* out) { std::memcpy(out, &rows, sizeof rows); }
template <float (*Decode)(uint16_t)>
inline Rows decode_16(const byte* at) {
  Rows rows;
  for (int row = 0; row < kGroup; ++row) {
    uint16_t value;
    std::memcpy(&value, at + 2 * row, 2);
    rows.of[row] = Decode(value);
  }
  return rows;
}
#endif

// load() decodes one column of 8 rows.
struct F16 {
  static constexpr Format packed = kPacked16;
#if defined(__AVX2__)
  static inline Rows load(const byte* at) { return _mm256_cvtph_ps(load_16(at)); }
#else
  static inline Rows load(const byte* at) { return decode_16<half_to_float>(at); }
#endif
};

struct BF16 {
  static constexpr Format packed = kPacked16;
#if defined(__AVX2__)
  static inline Rows load(const byte* at) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(at)), 16));
  }
#else
  static inline Rows load(const byte* at) { return decode_16<bfloat_to_float>(at); }
#endif
};

struct F32 {
  static constexpr Format packed = kPackedF32;
  static inline Rows load(const byte* at) {
    Rows rows;
    std::memcpy(&rows, at, sizeof rows);
    return rows;
  }
};

struct Matrix {
  const float* x;
  float* y;
  int64_t k, x_stride, y_stride;
};

// T tokens times G groups; `rows` of them exist.
template <typename L, int T, int G>
void multiply_tile(const byte* const* groups, int64_t rows, const Matrix& m) {
  Rows sums[T][G] = {};
  for (int64_t column = 0; column < m.k; ++column) {
    Rows w[G];
    for (int g = 0; g < G; ++g) w[g] = L::load(groups[g] + column * L::packed.bytes);
    for (int t = 0; t < T; ++t)
      for (int g = 0; g < G; ++g) multiply_add(sums[t][g], w[g], m.x[t * m.x_stride + column]);
  }
  for (int t = 0; t < T; ++t) {
    float out[G * kGroup];
    for (int g = 0; g < G; ++g) store_rows(sums[t][g], out + g * kGroup);
    std::memcpy(m.y + t * m.y_stride, out, size_t(rows < G * kGroup ? rows : G * kGroup) * sizeof(float));
  }
}

template <typename L, int T, int G>
void multiply_tokens(const byte* const (&groups)[kStripGroups], int64_t rows, Matrix m, int64_t tokens) {
  for (; tokens >= T; tokens -= T) {
    for (int g = 0; g < kStripGroups && g * kGroup < rows; g += G) {
      Matrix part = m;
      part.y += g * kGroup;
      multiply_tile<L, T, G>(groups + g, rows - g * kGroup, part);
    }
    m.x += T * m.x_stride;
    m.y += T * m.y_stride;
  }
  if constexpr (T > 1) multiply_tokens<L, 1, kStripGroups>(groups, rows, m, tokens);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <typename L>
std::string validate(const Args& a) {
  std::string problem = check_counts(a, 2, 1, 2);
  if (!problem.empty()) return problem;
  const int64_t n = a.ints[0], k = a.ints[1], tokens = a.in[0].dims[0];
  problem = check_bytes("packed", a.in[1], L::packed, n, k);
  if (problem.empty()) problem = check_rows("x", a.in[0], DType::Float, tokens, k, false);
  if (!problem.empty()) return problem;
  return check_rows("y", a.out[0], DType::Float, tokens, n, true);
}

int64_t tasks(const Args& a) { return ceil_div(a.ints[0], kStripRows) * ceil_div(a.in[0].dims[0], kChunk); }

template <typename L>
void run(const Args& a, int64_t begin, int64_t end) {
  const Tensor &x = a.in[0], &y = a.out[0];
  const int64_t n = a.ints[0], k = a.ints[1], last = ceil_div(n, kGroup) - 1, strips = ceil_div(n, kStripRows);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t first = task % strips * kStripRows, token = task / strips * kChunk;
    const byte* groups[kStripGroups];  // a missing group of the last strip repeats the last one and is not stored
    for (int g = 0; g < kStripGroups; ++g) {
      const int64_t group = first / kGroup + g;
      groups[g] = a.in[1].data + (group < last ? group : last) * k * L::packed.bytes;
    }
    const Matrix m{x.as<float>() + token * x.strides[0], y.as<float>() + token * y.strides[0] + first, k,
                   x.strides[0], y.strides[0]};
    const int64_t left = x.dims[0] - token;
    multiply_tokens<L, 4, 2>(groups, n - first, m, left < kChunk ? left : kChunk);
  }
}

template <typename L>
constexpr Kernel matmul(const char* name) {
  return {name, validate<L>, tasks, run<L>};
}

}  // namespace

KernelTable float_matmul_table() {
  // in: x FLOAT [M, K], packed UINT8 [bytes]; out: y FLOAT [M, N]; ints: N, K
  static const Kernel kernels[] = {matmul<F16>("matmul_f16"), matmul<BF16>("matmul_bf16"), matmul<F32>("matmul_f32")};
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

// Products with rows of codes, for attention that reads pages where they lie: codes become floats in registers, so that a page
// of 8-bit codes costs the memory traffic of its own bytes and little more arithmetic than one of FLOAT16.
//
// These overload what attention_chunks.hpp and attention_tiles.hpp do with rows of elements; strides count blocks.
#pragma once
#include "kernels/attention_chunks.hpp"
#include "kernels/attention_tiles.hpp"
#include "kernels/page_formats.hpp"

namespace tenonnx::TENONNX_ISA_NS {

// A block of AffineRow where it lies: element i is scale · code(i) + minimum.
template <int Width, int Block>
struct AffineBlock {
  using Row = AffineRow<Width, Block>;
  static constexpr int kElements = Block;
  static_assert(Row::kBytes % kLanes == 0, "a vector of codes would lie in two places of its bytes");

  byte scale[2], minimum[2];
  uint8_t codes[Row::kBytes];

  // kLanes codes from element `at` on.
  [[gnu::always_inline]] inline Vec load_codes(int at) const {
    const uint8_t* from = codes + at % Row::kBytes;
#if defined(__AVX512F__)
    VecInt found = VecInt(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
    VecInt found = VecInt(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
    VecInt found = {from[0], from[1], from[2], from[3]};
#endif
    if constexpr (Width < 8) found = found >> at / Row::kBytes * Width & Row::kLargest;
    return to_floats(found);
  }
};

struct AffineScale {
  Vec scale, minimum;
};

// Both numbers of a block, each in all lanes.
template <typename Codes>
TENONNX_INLINE AffineScale splat_scale(const Codes& block) {
#if defined(__AVX512F__)
  const __m512 pairs = _mm512_cvtph_ps(_mm256_set1_epi32(load_from<int32_t>(block.scale)));
  return {_mm512_moveldup_ps(pairs), _mm512_movehdup_ps(pairs)};
#elif defined(__AVX2__)
  const __m256 pairs = _mm256_cvtph_ps(_mm_set1_epi32(load_from<int32_t>(block.scale)));
  return {_mm256_moveldup_ps(pairs), _mm256_movehdup_ps(pairs)};
#else
  return {splat(half_at(block.scale)), splat(half_at(block.minimum))};
#endif
}

template <int R, int64_t Room, int Width, int Block, typename Ahead>
static inline void score(const float* q, int64_t padded, const AffineBlock<Width, Block>* k, int64_t stride, int64_t head,
    int64_t keys, float* scores, Ahead ahead) {
  constexpr int B = kLanes == 16 || R <= 2 ? 4 : 2;  // keys at once, as registers allow
  for (int64_t j = 0; j < keys; j += B) {
    if (j % kAheadRows == 0) ahead.step(kAheadRows);
    Vec total[R][B] = {};
    for (int64_t d = 0; d < head; d += Block)
      for (int t = 0; t < B; ++t) {
        const AffineBlock<Width, Block>& block = k[(j + t < keys ? j + t : keys - 1) * stride + d / Block];
        const AffineScale of = splat_scale(block);
        for (int i = 0; i < Block; i += kLanes) {
          const Vec key = fma(of.scale, block.load_codes(i), of.minimum);
          for (int r = 0; r < R; ++r) total[r][t] = fma(load(q + r * padded + d + i), key, total[r][t]);
        }
      }
    for (int r = 0; r < R; ++r) store_sums(total[r], scores + r * Room + j);
  }
}

// Both numbers of kLanes blocks, a block in each lane, from pairs of halves as blocks begin with them.
TENONNX_INLINE AffineScale split_scales(const uint32_t* pairs) {
#if defined(__AVX512F__)
  const __m512i both = _mm512_load_si512(pairs);
  return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(both)), _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)))};
#elif defined(__AVX2__)
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
                                         0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const __m256i grouped = _mm256_shuffle_epi8(_mm256_load_si256(reinterpret_cast<const __m256i*>(pairs)), order);
  const __m256i halves = _mm256_permute4x64_epi64(grouped, 0xd8);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
#else
  AffineScale found;
  for (int i = 0; i < kLanes; ++i) {
    found.scale[i] = half_to_float(uint16_t(pairs[i]));
    found.minimum[i] = half_to_float(uint16_t(pairs[i] >> 16));
  }
  return found;
#endif
}

// The weights of `keys` keys times the scales of their blocks, and the sums of weights times minima.
template <int R, int64_t Room, int64_t kKeys, typename Codes>
TENONNX_INLINE void weigh_scales(const float* weights, const Codes* v, int64_t stride, int64_t keys, float (&scaled)[R][kKeys],
    float (&minimum)[R]) {
  alignas(64) uint32_t pairs[kKeys] = {};
  for (int64_t j = 0; j < keys; ++j) pairs[j] = load_from<uint32_t>(v[j * stride].scale);
  Vec sums[R] = {};
  VecInt place;
  for (int i = 0; i < kLanes; ++i) place[i] = i;
  for (int64_t j = 0; j < keys; j += kLanes, place += kLanes) {
    const AffineScale of = split_scales(pairs + j);
    for (int r = 0; r < R; ++r) {
      const Vec weight = place < int32_t(keys) ? load(weights + r * Room + j) : Vec{};
      store(scaled[r] + j, weight * of.scale);
      sums[r] = fma(weight, of.minimum, sums[r]);
    }
  }
  for (int r = 0; r < R; ++r) minimum[r] = sum(sums[r]);
}

// out[r] += sum over j of weights[r][j] · v[j] for G blocks of each row, from the row's block `at` on.
template <int R, int G, int64_t Room, int Width, int Block, typename Ahead>
TENONNX_INLINE void weigh_blocks(const float* weights, const AffineBlock<Width, Block>* v, int64_t stride, int64_t keys,
    float* const (&out)[R], int64_t at, Ahead& ahead) {
  constexpr int64_t kKeys = 64;
  constexpr int N = Block / kLanes;
  for (int64_t first = 0; first < keys; first += kKeys) {
    const int64_t n = keys - first < kKeys ? keys - first : kKeys;
    const AffineBlock<Width, Block>* from = v + first * stride + at;
    alignas(64) float scaled[G][R][kKeys], minimum[G][R];
    for (int g = 0; g < G; ++g) weigh_scales<R, Room>(weights + first, from + g, stride, n, scaled[g], minimum[g]);
    Vec total[R][G * N];
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < G * N; ++c) total[r][c] = load(out[r] + at * Block + c * kLanes) + minimum[c / N][r];
    for (int64_t j = 0; j < n; ++j) {
      if (j % kAheadRows == 0) ahead.step(kAheadRows);
      for (int c = 0; c < G * N; ++c) {
        const Vec codes = from[j * stride + c / N].load_codes(c % N * kLanes);
        for (int r = 0; r < R; ++r) total[r][c] = fma(splat(scaled[c / N][r][j]), codes, total[r][c]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int c = 0; c < G * N; ++c) store(out[r] + at * Block + c * kLanes, total[r][c]);
  }
}

template <int R, int64_t Room, int Width, int Block, typename Ahead>
static inline void weigh(const float* weights, const AffineBlock<Width, Block>* v, int64_t stride, int64_t width, int64_t keys,
    float* const (&out)[R], Ahead ahead) {
  constexpr int G = kLanes == 16 ? 2 : 1;  // as many sums at once as hide the latency of an addition
  int64_t b = 0;
  for (; b + G <= width / Block; b += G) weigh_blocks<R, G, Room>(weights, v, stride, keys, out, b, ahead);
  for (; b < width / Block; ++b) weigh_blocks<R, 1, Room>(weights, v, stride, keys, out, b, ahead);
}

template <int Width, int Block>
static inline void convert(const AffineBlock<Width, Block>* from, int64_t stride, int64_t rows, int64_t width, float* to,
    int64_t padded) {
  for (int64_t r = 0; r < rows; ++r) {
    AffineRow<Width, Block>::decode(from[r * stride].scale, width, to + r * padded);
    std::memset(to + r * padded + width, 0, size_t(padded - width) * sizeof(float));
  }
}

}  // namespace tenonnx::TENONNX_ISA_NS

// The generic layouts: codes of up to 4 bits as places in a table of 16 floats, for formats that come as data.
//
//   layout  head             a group of G columns of one row, in order                                     bytes
//   LUT     FLOAT table[16]  FLOAT scale, minimum; UINT4 codes[G]                                          8 + G / 2
//   LUT16   -                FLOAT scale, minimum; FLOAT16 table[16]; UINT4 codes[G]                      40 + G / 2
//   LUT32   -                FLOAT scale, minimum; FLOAT table[16]; UINT4 codes[G]                        72 + G / 2
//
// Rows follow one another, groups along K; G is a multiple of 32, and K one of G. Of every 32 columns, column i has the low
// half of byte i, column i + 16 the high one. value = scale * table[code] + minimum, in FLOAT, each step rounded: once for
// every entry of the table, not for every column.
#pragma once
#include <cstddef>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/half.hpp"
#include "kernels/matrix_checks.hpp"

namespace tenonnx::TENONNX_ISA_NS {

using std::byte;

constexpr int kEntries = 16;

template <int EntryBytes, int HeadBytes>
struct Lut {
  static constexpr int entry_bytes = EntryBytes, head = HeadBytes;  // entry_bytes 0: the head has the table
  static constexpr int codes = 8 + kEntries * entry_bytes;          // where a group's codes begin
  static constexpr Format format(int64_t group) { return {1, group, codes + group / 2}; }
};
using LUT = Lut<0, 64>;
using LUT16 = Lut<2, 0>;
using LUT32 = Lut<4, 0>;

constexpr int64_t kMaxColumns = 1 << 20;  // of a group

// Bytes of a packed matrix, or -1.
template <typename L>
constexpr int64_t lut_bytes(int64_t n, int64_t k, int64_t group) {
  if (group <= 0 || group > kMaxColumns || group % kBlock != 0) return -1;
  const int64_t bytes = matrix_bytes(L::format(group), n, k);
  return bytes < 0 || bytes > INT64_MAX - L::head ? -1 : bytes + L::head;
}

// Vectors of one row: a table scaled, 32 columns decoded, and sums of products along K in kSums chains. Registers hold the
// sums of kTile tokens by kRows rows, or of one token by kRowsAlone.
#if defined(__AVX512F__)
struct Lanes {
  using Sum = __m512;
  using Table = __m512;
  static constexpr int kSums = 2, kTile = 4, kRows = 2, kRowsAlone = 4, kLanes = 16;
  struct Values {
    __m512 of[2];
  };

  static inline Table load(const float* entries) { return _mm512_loadu_ps(entries); }
  static inline Table load_halves(const byte* at) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))); }
  static inline Table scaled(Table table, float scale, float minimum) {
    return _mm512_add_ps(_mm512_mul_ps(table, _mm512_set1_ps(scale)), _mm512_set1_ps(minimum));
  }
  static inline Values decode(Table table, const byte* codes) {
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    return {{_mm512_permutexvar_ps(both, table), _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), table)}};  // 4 bits count
  }
  static inline void add(Sum (&sums)[kSums], const Values& values, const float* x) {
    for (int i = 0; i < 2; ++i) sums[i] = _mm512_fmadd_ps(values.of[i], _mm512_loadu_ps(x + kLanes * i), sums[i]);
  }
  static inline void store(const Values& values, float* out) {
    for (int i = 0; i < 2; ++i) _mm512_storeu_ps(out + kLanes * i, values.of[i]);
  }
  static inline float total(const Sum (&sums)[kSums]) { return _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1])); }
};
#elif defined(__AVX2__)
struct Lanes {
  using Sum = __m256;
  static constexpr int kSums = 2, kTile = 4, kRows = 1, kRowsAlone = 2, kLanes = 8;
  struct Table {
    __m256 low, high;
  };
  struct Values {
    __m256 of[4];
  };

  static inline Table load(const float* entries) { return {_mm256_loadu_ps(entries), _mm256_loadu_ps(entries + 8)}; }
  static inline Table load_halves(const byte* at) {
    const __m128i* halves = reinterpret_cast<const __m128i*>(at);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
  }
  static inline Table scaled(const Table& table, float scale, float minimum) {
    const __m256 s = _mm256_set1_ps(scale), m = _mm256_set1_ps(minimum);
    return {_mm256_add_ps(_mm256_mul_ps(table.low, s), m), _mm256_add_ps(_mm256_mul_ps(table.high, s), m)};
  }
  static inline __m256 entries(const Table& table, __m256i places, __m256i bit_3) {
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, places), _mm256_permutevar8x32_ps(table.high, places),
                            _mm256_castsi256_ps(bit_3));
  }
  static inline Values decode(const Table& table, const byte* codes) {
    Values values;
    for (int i = 0; i < 2; ++i) {
      const __m256i both = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8 * i)));
      values.of[i] = entries(table, both, _mm256_slli_epi32(both, 28));  // 3 bits count
      values.of[i + 2] = entries(table, _mm256_srli_epi32(both, 4), _mm256_slli_epi32(both, 24));
    }
    return values;
  }
  static inline void add(Sum (&sums)[kSums], const Values& values, const float* x) {
    for (int i = 0; i < 4; ++i) sums[i % 2] = _mm256_fmadd_ps(values.of[i], _mm256_loadu_ps(x + kLanes * i), sums[i % 2]);
  }
  static inline void store(const Values& values, float* out) {
    for (int i = 0; i < 4; ++i) _mm256_storeu_ps(out + kLanes * i, values.of[i]);
  }
  static inline float total(const Sum (&sums)[kSums]) {
    const __m256 eight = _mm256_add_ps(sums[0], sums[1]);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
};
#else
struct Lanes {
  static constexpr int kSums = 1, kTile = 4, kRows = 1, kRowsAlone = 1, kLanes = 8;
  struct Sum {
    float of[kLanes];
  };
  struct Table {
    float of[kEntries];
  };
  struct Values {
    float of[kBlock];
  };

  static inline Table load(const float* entries) {
    Table table;
    std::memcpy(&table, entries, sizeof table);
    return table;
  }
  static inline Table load_halves(const byte* at) {
    Table table;
    for (int i = 0; i < kEntries; ++i) {
      uint16_t half;
      std::memcpy(&half, at + 2 * i, 2);
      table.of[i] = half_to_float(half);
    }
    return table;
  }
  static inline Table scaled(Table table, float scale, float minimum) {
    for (float& entry : table.of) entry = entry * scale + minimum;
    return table;
  }
  static inline Values decode(const Table& table, const byte* codes) {
    Values values;
    for (int i = 0; i < kBlock / 2; ++i) {
      values.of[i] = table.of[int(codes[i]) & 15];
      values.of[i + kBlock / 2] = table.of[int(codes[i]) >> 4];
    }
    return values;
  }
  static inline void add(Sum (&sums)[kSums], const Values& values, const float* x) {
    for (int i = 0; i < kBlock; i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane) sums[0].of[lane] += values.of[i + lane] * x[i + lane];
  }
  static inline void store(const Values& values, float* out) { std::memcpy(out, &values, sizeof values); }
  static inline float total(const Sum (&sums)[kSums]) {
    float sum = 0.0f;
    for (float lane : sums[0].of) sum += lane;
    return sum;
  }
};
#endif

// The table of the group at `group`, scaled; `shared` is that of the tensor, where it has one.
template <typename L>
static inline Lanes::Table group_table(const byte* group, const Lanes::Table& shared) {
  float numbers[2];
  std::memcpy(numbers, group, sizeof numbers);
  if constexpr (L::entry_bytes == 0) return Lanes::scaled(shared, numbers[0], numbers[1]);
  if constexpr (L::entry_bytes == 2) return Lanes::scaled(Lanes::load_halves(group + 8), numbers[0], numbers[1]);
  float entries[kEntries];
  if constexpr (L::entry_bytes == 4) std::memcpy(entries, group + 8, sizeof entries);
  return Lanes::scaled(Lanes::load(entries), numbers[0], numbers[1]);
}

template <typename L>
static inline Lanes::Table shared_table(const byte* packed) {
  float entries[kEntries] = {};
  if constexpr (L::head != 0) std::memcpy(entries, packed, sizeof entries);
  return Lanes::load(entries);
}

template <typename L>
std::string check_lut(const Tensor& packed, long long n, long long k, long long group) {
  const long long bytes = lut_bytes<L>(n, k, group), found = packed.dims[0];
  if (bytes < 0)
    return text("packed: no such layout of a matrix [%lld, %lld] in groups of %lld: K must be a multiple of the group, the "
                "group one of 32 and at most 2^20, N and K from 0 to 2^40, and the size below 2^63", n, k, group);
  if (packed.dtype == DType::UInt8 && packed.rank == 1 && packed.contiguous() && found == bytes) return {};
  return text("packed: expected contiguous UINT8 [%lld] for a matrix [%lld, %lld] in groups of %lld", bytes, n, k, group);
}

}  // namespace tenonnx::TENONNX_ISA_NS

// Compute layouts: weights [N rows, K columns] as matrix kernels stream them. Rows stand in groups of 8 (missing rows of
// the last group are zeros); a group is a run of blocks along K, and groups follow one another without a gap.
//
//   layout  columns  bytes  a block of 8 rows, in order
//   Q4         32     160   FLOAT16 d[8], FLOAT16 m[8], UINT4 codes   value = d * code + m
//   Q8         32     272   FLOAT16 d[8], INT8 codes[8][8][4]         value = d * code
//   F16         1      16   FLOAT16[8]
//   BF16        1      16   BFLOAT16[8]
//   F32         1      32   FLOAT[8]
//
// Codes stand so that one 256-bit vector holds 4 consecutive columns of 8 rows: vector j has the code of row r, column
// 4j + c at its byte 4r + c. Q8 keeps vectors 0..7 in order. Byte i of the 128 of Q4 has vector i / 32 in its low nibble
// and vector i / 32 + 4 in its high one: a mask and a shift unpack it, and a row of Q4_0 or Q4_1 is copied by words.
//
// packed bytes = ceil(N / 8) * (K / columns) * bytes; K is a multiple of columns.
#pragma once
#include <cstdint>

namespace tenonnx {

constexpr int kGroup = 8;   // rows of a group
constexpr int kBlock = 32;  // columns of a quantized block

struct [[gnu::packed]] BlockQ4 {
  uint16_t d[kGroup], m[kGroup];
  uint8_t codes[kBlock * kGroup / 2];
};
static_assert(sizeof(BlockQ4) == 160);

struct [[gnu::packed]] BlockQ8 {
  uint16_t d[kGroup];
  int8_t codes[kBlock * kGroup];
};
static_assert(sizeof(BlockQ8) == 272);

// A matrix format by the bytes of its block: of 8 rows in a compute layout, of one row in a row-major source.
struct Format {
  int64_t rows, columns, bytes;
};
constexpr Format kPackedQ4{kGroup, kBlock, sizeof(BlockQ4)}, kPackedQ8{kGroup, kBlock, sizeof(BlockQ8)};
constexpr Format kPacked16{kGroup, 1, 16}, kPackedF32{kGroup, 1, 32};
constexpr Format kSourceQ4_0{1, kBlock, 18}, kSourceQ4_1{1, kBlock, 20}, kSourceQ8_0{1, kBlock, 34};
constexpr Format kSource16{1, 1, 2}, kSourceF32{1, 1, 4};

constexpr int64_t kMaxDim = int64_t(1) << 40;  // of one dimension: sums and roundings of dims never overflow

// Bytes of an [n, k] matrix, or -1 where the format does not hold it.
constexpr int64_t matrix_bytes(const Format& format, int64_t n, int64_t k) {
  if (n < 0 || k < 0 || n > kMaxDim || k > kMaxDim || k % format.columns != 0) return -1;
  int64_t bytes = (n + format.rows - 1) / format.rows;
  if (__builtin_mul_overflow(bytes, k / format.columns, &bytes)) return -1;
  return __builtin_mul_overflow(bytes, format.bytes, &bytes) ? -1 : bytes;
}

// One row of activations after quantize_rows: INT8 codes[K], FLOAT scale[K / 32], FLOAT sums[K / 32], the sums being
// those of the block's codes (whole numbers, exact): with them a minimum, or an offset of the codes, costs one product.
constexpr int64_t quantized_row_bytes(int64_t k) { return k + k / kBlock * 8; }

}  // namespace tenonnx

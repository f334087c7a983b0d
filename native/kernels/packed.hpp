// Compute layouts: weights [N rows, K columns] as matrix kernels stream them.
//
// Rows stand in groups of 8 (missing rows of the last group are zeros). A group is a run of blocks along K, and groups
// follow one another without a gap. A block is a head and then 1, 2, 4 or 8 sub-blocks of 32 columns, each of them scales
// and then codes. Whatever is said of one row stands there 8 times, once for each row of the group.
//
//   layout  columns  bytes  head            scales of 32 columns         codes     value
//   Q4         32     144   -               FLOAT16 d                    4 bits    d * (code - 8)
//   Q4M        32     160   -               FLOAT16 d, m                 4 bits    d * code + m
//   Q5         32     176   -               FLOAT16 d                    5 bits    d * (code - 16)
//   Q5M        32     192   -               FLOAT16 d, m                 5 bits    d * code + m
//   Q8         32     272   -               FLOAT16 d                    INT8      d * code
//   IQ4        32     144   -               FLOAT16 d                    4 bits    d * IQ4[code]
//   FP4        32     136   -               FLOAT8E8M0 d                 4 bits    d * E2M1[code]
//   FP4H       32     160   -               FLOAT16 d, d' (halved)       4 bits    d * 2 * E2M1[code]      (16 columns each)
//   G4          G 40 + 4G   FLOAT d; UINT8 z  -                          4 bits    d * (code - z)          (G is 32, 64, 128)
//   G8          G 40 + 8G   FLOAT d; INT8 z   -                          INT8      d * (code - z)          (G is 32, 64, 128)
//   Q2K       256     672   FLOAT16 d, e    UINT4 s, t, s', t'           2 bits    d * s * code - e * t    (16 columns each)
//   Q3K       256     912   FLOAT16 d       INT8 s, s'                   3 bits    d * s * (code - 4)      (16 columns each)
//   Q4K       256    1184   FLOAT16 d, e    UINT8 s, t                   4 bits    d * s * code - e * t
//   Q5K       256    1440   FLOAT16 d, e    UINT8 s, t                   5 bits    d * s * code - e * t
//   Q6K       256    1680   FLOAT16 d       INT8 s, s'                   6 bits    d * s * (code - 32)     (16 columns each)
//   IQ4K      256    1104   FLOAT16 d       INT8 s                       4 bits    d * s * IQ4[code]
//   F16         1      16   FLOAT16[8]
//   BF16        1      16   BFLOAT16[8]
//   F32         1      32   FLOAT[8]
//
// Codes stand so that one 256-bit vector holds 4 consecutive columns of 8 rows: vector j has the code of row r, column
// 4j + c at its byte 4r + c. Codes of 8 bits keep vectors 0..7 in order. Others stand as planes of 4, 2 or 1 bits of every
// code (5 bits: a plane of the low 4, then one of the high bit; 3 and 6: a plane of 2 more). A plane of b bits has b
// vectors; the low half of every byte belongs to columns 0..15, the high half to columns 16..31: the bits of vector
// 4h + i stand in vector i * b / 4 of the plane, at bit 4h + i * b % 4 of their byte. So one shift and one mask unpack a
// vector, and a row of Q4_0 is copied by words.
//
// packed bytes = ceil(N / 8) * (K / columns) * bytes; K is a multiple of columns.
#pragma once
#include <cstdint>

namespace tenonnx {

constexpr int kGroup = 8;   // rows of a group
constexpr int kBlock = 32;  // columns of a quantized block, or of a sub-block

// A matrix format by the bytes of its block: of 8 rows in a compute layout, of one row in a row-major source.
struct Format {
  int64_t rows, columns, bytes;
};
constexpr Format kPacked16{kGroup, 1, 16}, kPackedF32{kGroup, 1, 32};

constexpr int64_t kMaxDim = int64_t(1) << 40;  // of one dimension: sums and roundings of dims never overflow

// Bytes of an [n, k] matrix, or -1 where the format does not hold it.
constexpr int64_t matrix_bytes(const Format& format, int64_t n, int64_t k) {
  if (n < 0 || k < 0 || n > kMaxDim || k > kMaxDim || k % format.columns != 0) return -1;
  int64_t bytes = (n + format.rows - 1) / format.rows;
  if (__builtin_mul_overflow(bytes, k / format.columns, &bytes)) return -1;
  return __builtin_mul_overflow(bytes, format.bytes, &bytes) ? -1 : bytes;
}

// One row of activations after quantize_rows: INT8 codes[K], FLOAT scale[K / 32], FLOAT sums[K / 32], FLOAT halves[K / 16];
// the sums are those of the codes of 32 and of 16 columns (whole numbers, exact): with them a minimum, or an offset of the
// codes, costs one product.
constexpr int64_t quantized_row_bytes(int64_t k) { return k + k / kBlock * 16; }

}  // namespace tenonnx

// Pages of rows, each in a format of its own, and the tables that name them. A page is rows of `size` elements, row after row.
//
// A table is INT64[pages, 4]: address, kind, elements of a block, bytes of the payload; address 0: no such page.
#pragma once
#include "kernels/page_formats.hpp"

namespace tenonnx::TENONNX_ISA_NS {

enum PageKind : int64_t { kF32, kF16, kBF16, kFp8, kInt8, kInt4, kInt2, kQ8_0, kQ4_0, kMxfp4, kPageKinds };

constexpr int64_t kDescriptor = 4;  // numbers for each page of a table
constexpr int64_t kMaxRow = 512;    // elements

// f(row format) for a kind and its block; false for one that kernels do not know.
template <typename F>
TENONNX_INLINE bool with_rows(int64_t kind, int64_t block, F f) {
  switch (kind) {
    case kF32: f(F32Row()); return true;
    case kF16: f(F16Row()); return true;
    case kBF16: f(BF16Row()); return true;
    case kFp8: f(Fp8Row()); return true;
    case kInt8:
      if (block == 32) f(AffineRow<8, 32>());
      else if (block == 16) f(AffineRow<8, 16>());
      else if (block == 8) f(AffineRow<8, 8>());
      else return false;
      return true;
    case kInt4:
      if (block == 32) f(AffineRow<4, 32>());
      else if (block == 16) f(AffineRow<4, 16>());
      else if (block == 8) f(AffineRow<4, 8>());
      else return false;
      return true;
    case kInt2:
      if (block == 32) f(AffineRow<2, 32>());
      else if (block == 16) f(AffineRow<2, 16>());
      else if (block == 8) f(AffineRow<2, 8>());
      else return false;
      return true;
    case kQ8_0: f(BlockRow<Q8_0Block>()); return true;
    case kQ4_0: f(BlockRow<Q4_0Block>()); return true;
    case kMxfp4: f(BlockRow<Mxfp4Block>()); return true;
    default: return false;
  }
}

// Bytes of a row of `size` elements, -1 for a kind that kernels do not know or that does not divide the row.
static inline int64_t row_bytes(int64_t kind, int64_t block, int64_t size) {
  int64_t bytes = -1;
  with_rows(kind, block, [&](auto rows) { bytes = rows.bytes(size); });
  return bytes;
}

static inline void decode_row(int64_t kind, int64_t block, const byte* row, int64_t size, float* to) {
  with_rows(kind, block, [&](auto rows) { rows.decode(row, size, to); });
}

static inline void encode_row(int64_t kind, int64_t block, const float* values, int64_t size, byte* to) {
  with_rows(kind, block, [&](auto rows) { rows.encode(values, size, to); });
}

// One page of a table as kernels see it, `data` null where the id, the kind or the payload does not allow reading.
struct PageView {
  byte* data = nullptr;
  int64_t kind = 0, block = 0, row = 0;  // row: bytes of one
};

// Read anew at each use: what a check found may have been changed by another thread.
static inline PageView page_of(const Tensor& table, int64_t id, int64_t rows, int64_t size) {
  PageView page;
  if (id < 0 || id >= table.dims[0]) return page;
  const int64_t* descriptor = table.as<const int64_t>() + id * kDescriptor;
  page.kind = descriptor[1];
  page.block = descriptor[2];
  page.row = row_bytes(page.kind, page.block, size);
  int64_t bytes;
  if (page.row < 0 || __builtin_mul_overflow(page.row, rows, &bytes) || bytes != descriptor[3]) return page;
  page.data = reinterpret_cast<byte*>(descriptor[0]);
  return page;
}

static inline bool is_table(const Tensor& t) {
  return t.dtype == DType::Int64 && t.rank == 2 && t.dims[1] == kDescriptor && t.contiguous();
}

}  // namespace tenonnx::TENONNX_ISA_NS

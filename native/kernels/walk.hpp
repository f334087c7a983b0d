// Walks N views of the same dims row by row. Adjacent dims that every view steps through evenly are merged, so that
// contiguous views become one row; rows are grouped, and long ones cut, into tasks of about kTaskElements elements.
#pragma once
#include "core/kernel.hpp"

namespace tenonnx::TENONNX_ISA_NS {

constexpr int64_t kTaskElements = 8192;

template <int N>
struct Walk {
  int rank = 0;
  int64_t dims[kMaxRank + 1], strides[N][kMaxRank + 1];
  int64_t row = 1, rows = 1, rows_per_task = 1, pieces = 1;

  Walk(const int64_t* extents, int n, const int64_t* const (&steps)[N]) {
    for (int i = 0; i < n; ++i) {
      if (extents[i] == 1) continue;
      if (!merge(extents[i], steps, i)) append(extents[i], steps, i);
    }
    if (rank == 0) {
      dims[0] = 1;
      for (int k = 0; k < N; ++k) strides[k][0] = 1;
      rank = 1;
    }
    row = dims[rank - 1];
    for (int i = 0; i < rank - 1; ++i) rows *= dims[i];
    if (row > kTaskElements) pieces = (row + kTaskElements - 1) / kTaskElements;
    else if (row > 0) rows_per_task = kTaskElements / row;
  }

  int64_t stride(int view) const { return strides[view][rank - 1]; }
  int64_t tasks() const { return row == 0 || rows == 0 ? 0 : (rows + rows_per_task - 1) / rows_per_task * pieces; }

  // body(offsets of a row's first elements in each view, elements), offsets counted in elements.
  template <typename Body>
  void run(int64_t begin, int64_t end, Body body) const {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task / pieces * rows_per_task, skip = task % pieces * kTaskElements;
      const int64_t last = first + rows_per_task < rows ? first + rows_per_task : rows;
      const int64_t n = pieces == 1 ? row : row - skip < kTaskElements ? row - skip : kTaskElements;
      int64_t at[kMaxRank + 1], offsets[N];
      locate(first, at);
      for (int64_t r = first; r < last; ++r) {
        for (int k = 0; k < N; ++k) {
          offsets[k] = skip * stride(k);
          for (int i = 0; i < rank - 1; ++i) offsets[k] += at[i] * strides[k][i];
        }
        body(offsets, n);
        for (int i = rank - 2; i >= 0 && ++at[i] == dims[i]; --i) at[i] = 0;
      }
    }
  }

 private:
  bool merge(int64_t extent, const int64_t* const (&steps)[N], int axis) {
    if (rank == 0) return false;
    for (int k = 0; k < N; ++k)
      if (strides[k][rank - 1] != extent * steps[k][axis]) return false;
    dims[rank - 1] *= extent;
    for (int k = 0; k < N; ++k) strides[k][rank - 1] = steps[k][axis];
    return true;
  }

  void append(int64_t extent, const int64_t* const (&steps)[N], int axis) {
    dims[rank] = extent;
    for (int k = 0; k < N; ++k) strides[k][rank] = steps[k][axis];
    ++rank;
  }

  void locate(int64_t flat, int64_t* at) const {
    for (int i = rank - 2; i >= 0; --i) {
      at[i] = flat % dims[i];
      flat /= dims[i];
    }
  }
};

// Offset of the flat-th element (row-major over the first `rank` dims) of a view.
static inline int64_t offset_of(const Tensor& t, int64_t flat, int rank) {
  int64_t offset = 0;
  for (int i = rank - 1; i >= 0; --i) {
    offset += flat % t.dims[i] * t.strides[i];
    flat /= t.dims[i];
  }
  return offset;
}

static inline int64_t size_of_dims(const Tensor& t, int begin, int end) {
  int64_t n = 1;
  for (int i = begin; i < end; ++i) n *= t.dims[i];
  return n;
}

}  // namespace tenonnx::TENONNX_ISA_NS

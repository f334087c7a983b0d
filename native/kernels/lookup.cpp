// FLOAT activations times weights in a generic layout, rows of such weights, and their packing from codes and tables that
// the caller unpacked. Compiled without contraction of products and sums: scale * entry and + minimum round as two steps.
#include "kernels/lookup.hpp"
#include "kernels/projection.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

constexpr int kStripRows = 16;
constexpr int kAhead = 2048;  // bytes to prefetch in each row for one token

struct Rows {
  const byte* first;
  int64_t stride, groups, group, group_bytes;  // group: columns
};

struct Activations {
  const float* x;
  float* y;
  int64_t x_stride, y_stride;
};

// T tokens times R rows. A result's order of sums does not depend on either.
template <typename L, int T, int R>
void multiply_tile(const Rows& rows, const Lanes::Table& shared, const Activations& m) {
  Lanes::Sum sums[T][R][Lanes::kSums] = {};
  const float* x = m.x;
  for (int64_t g = 0; g < rows.groups; ++g) {
    Lanes::Table tables[R];
    const byte* codes[R];
    for (int r = 0; r < R; ++r) {
      const byte* group = rows.first + r * rows.stride + g * rows.group_bytes;
      tables[r] = group_table<L>(group, shared);
      codes[r] = group + L::codes;
    }
    for (int64_t column = 0; column < rows.group; column += kBlock, x += kBlock)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        if (T == 1 && column % (4 * kBlock) == 0) __builtin_prefetch(codes[r] + kAhead + column / 2);
        const auto values = Lanes::decode(tables[r], codes[r] + column / 2);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) Lanes::add(sums[t][r], values, x + t * m.x_stride);
      }
  }
  for (int t = 0; t < T; ++t)
    for (int r = 0; r < R; ++r) m.y[t * m.y_stride + r] = Lanes::total(sums[t][r]);
}

template <typename L, int T, int R>
void multiply_rows(Rows rows, int64_t count, const Lanes::Table& shared, Activations m) {
  for (; count >= R; count -= R) {
    multiply_tile<L, T, R>(rows, shared, m);
    rows.first += R * rows.stride;
    m.y += R;
  }
  if constexpr (R > 1) multiply_rows<L, T, 1>(rows, count, shared, m);
}

template <typename L>
std::string validate_matmul(const Args& a) {
  if (a.n_ints < 3) return text("expects N, K and the columns of a group, found %d ints", a.n_ints);
  const auto weight = [&a](const Tensor& packed, int64_t n) { return check_lut<L>(packed, n, a.ints[1], a.ints[2]); };
  return check_projection(a, 1, DType::Float, weight, [](int64_t k) { return k; });
}

int64_t matmul_tasks(const Args& a) { return projection_tasks<kStripRows>(a, 1); }

Rows rows_of(const Args& a, const byte* packed, const Format& format, int head) {
  const int64_t groups = a.ints[1] / format.columns;
  return {packed + head, groups * format.bytes, groups, format.columns, format.bytes};
}

template <typename L>
void run_matmul(const Args& a, int64_t begin, int64_t end) {
  const Tensor& x = a.in[0];
  run_projection<kStripRows>(a, 1, begin, end, [&](const Tensor& packed, int64_t row, int64_t exist, int64_t token,
                                                   int64_t tokens, float* y, int64_t stride) {
    const Lanes::Table shared = shared_table<L>(packed.data);
    Rows rows = rows_of(a, packed.data, L::format(a.ints[2]), L::head);
    rows.first += row * rows.stride;
    Activations m{x.as<float>() + token * x.strides[0], y, x.strides[0], stride};
    const int64_t count = exist < kStripRows ? exist : kStripRows;
    for (; tokens >= Lanes::kTile; tokens -= Lanes::kTile, m.x += Lanes::kTile * m.x_stride, m.y += Lanes::kTile * m.y_stride)
      multiply_rows<L, Lanes::kTile, Lanes::kRows>(rows, count, shared, m);
    for (; tokens > 0; --tokens, m.x += m.x_stride, m.y += m.y_stride)
      multiply_rows<L, 1, Lanes::kRowsAlone>(rows, count, shared, m);
  });
}

template <typename L>
std::string validate_gather(const Args& a) {
  std::string problem = check_counts(a, 2, 1, 3);
  if (problem.empty()) problem = check_lut<L>(a.in[0], a.ints[0], a.ints[1], a.ints[2]);
  return problem.empty() ? check_gathered(a) : problem;
}

template <typename L>
void run_gather(const Args& a, int64_t begin, int64_t end) {
  const int64_t n = a.ints[0], k = a.ints[1];
  const Lanes::Table shared = shared_table<L>(a.in[0].data);
  const Rows rows = rows_of(a, a.in[0].data, L::format(a.ints[2]), L::head);
  for (int64_t i = begin; i < end; ++i) {
    float* out = a.out[0].as<float>() + i * k;
    const int64_t id = a.in[1].as<int64_t>()[i], row = id < 0 ? id + n : id;
    if (row < 0 || row >= n) {
      std::memset(out, 0, size_t(k) * sizeof(float));
      continue;
    }
    const byte* group = rows.first + row * rows.stride;
    for (int64_t g = 0; g < rows.groups; ++g, group += rows.group_bytes) {
      const auto table = group_table<L>(group, shared);
      for (int64_t column = 0; column < rows.group; column += kBlock, out += kBlock)
        Lanes::store(Lanes::decode(table, group + L::codes + column / 2), out);
    }
  }
}

bool holds(const Tensor& t, DType dtype, int rank, const int64_t* dims) {
  bool same = t.dtype == dtype && t.rank == rank && t.contiguous();
  for (int i = 0; i < rank && same; ++i) same = t.dims[i] == dims[i];
  return same;
}

template <typename L>
std::string validate_pack(const Args& a) {
  std::string problem = check_counts(a, 4, 1, 3);
  if (problem.empty()) problem = check_lut<L>(a.out[0], a.ints[0], a.ints[1], a.ints[2]);
  if (!problem.empty()) return problem;
  const long long n = a.ints[0], k = a.ints[1], groups = k / a.ints[2];
  const int64_t codes[] = {n, k}, entries[] = {n, groups, kEntries};
  const bool tables = L::head != 0 ? holds(a.in[1], DType::Float, 1, entries + 2) : holds(a.in[1], DType::Float, 3, entries);
  if (!holds(a.in[0], DType::UInt8, 2, codes)) return text("codes: expected contiguous UINT8 [%lld, %lld]", n, k);
  if (!tables)
    return L::head != 0 ? text("table: expected contiguous FLOAT [16]")
                        : text("table: expected contiguous FLOAT [%lld, %lld, 16]", n, groups);
  for (int i = 2; i < 4; ++i)
    if (a.in[i].present() && !holds(a.in[i], DType::Float, 2, entries))
      return text("%s: expected contiguous FLOAT [%lld, %lld]", i == 2 ? "scale" : "minimum", n, groups);
  return {};
}

int64_t pack_tasks(const Args& a) { return a.ints[0] == 0 ? 1 : a.ints[0]; }

// Task 0 also writes the head, which stands even before no rows.
template <typename L>
void run_pack(const Args& a, int64_t begin, int64_t end) {
  const Rows rows = rows_of(a, a.out[0].data, L::format(a.ints[2]), L::head);
  if (begin == 0 && L::head != 0) std::memcpy(a.out[0].data, a.in[1].data, L::head);
  for (int64_t row = begin; row < end && row < a.ints[0]; ++row) {
    byte* out = a.out[0].data + L::head + row * rows.stride;
    const uint8_t* codes = a.in[0].as<uint8_t>() + row * a.ints[1];
    for (int64_t g = 0; g < rows.groups; ++g) {
      const int64_t at = row * rows.groups + g;
      const float numbers[2] = {a.in[2].present() ? a.in[2].as<float>()[at] : 1.0f,
                                a.in[3].present() ? a.in[3].as<float>()[at] : 0.0f};
      std::memcpy(out, numbers, sizeof numbers);
      out += sizeof numbers;
      for (int i = 0; i < kEntries && L::entry_bytes != 0; ++i, out += L::entry_bytes) {
        const float entry = a.in[1].as<float>()[at * kEntries + i];
        const uint16_t half = float_to_half(entry);
        if constexpr (L::entry_bytes == 2) std::memcpy(out, &half, 2);
        if constexpr (L::entry_bytes == 4) std::memcpy(out, &entry, 4);
      }
      for (int64_t column = 0; column < rows.group; column += kBlock, codes += kBlock)
        for (int i = 0; i < kBlock / 2; ++i) *out++ = byte((codes[i] & 15) | codes[i + kBlock / 2] << 4);
    }
  }
}

int64_t gather_tasks(const Args& a) { return a.in[1].size(); }

}  // namespace

KernelTable lookup_table() {
  // ints: N, K, columns of a group.
  // pack: in: codes UINT8 [N, K], table FLOAT [16] (LUT) or [N, K / G, 16], scale and minimum FLOAT [N, K / G] or absent (1 and
  // 0); out: packed UINT8 [bytes]. matmul: as `projection.hpp`, with x FLOAT [M, K]. gather: as `gather_packed.cpp`.
  static const Kernel kernels[] = {
      {"pack_lut", validate_pack<LUT>, pack_tasks, run_pack<LUT>},
      {"pack_lut16", validate_pack<LUT16>, pack_tasks, run_pack<LUT16>},
      {"pack_lut32", validate_pack<LUT32>, pack_tasks, run_pack<LUT32>},
      {"gather_lut", validate_gather<LUT>, gather_tasks, run_gather<LUT>},
      {"gather_lut16", validate_gather<LUT16>, gather_tasks, run_gather<LUT16>},
      {"gather_lut32", validate_gather<LUT32>, gather_tasks, run_gather<LUT32>},
      {"matmul_lut", validate_matmul<LUT>, matmul_tasks, run_matmul<LUT>},
      {"matmul_lut16", validate_matmul<LUT16>, matmul_tasks, run_matmul<LUT16>},
      {"matmul_lut32", validate_matmul<LUT32>, matmul_tasks, run_matmul<LUT32>},
  };
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

// What writes cache pages, and the checks that run before: rows of new tokens straight into their pages' own formats, and a
// whole page from one format to another.
#include "kernels/page_rows.hpp"
#include "kernels/walk.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

constexpr int64_t kTaskRows = 16;

// Rows of a page beside the tokens: all dims of values but the last two.
int64_t lead_of(const Tensor& values) { return size_of_dims(values, 0, values.rank - 2); }
int64_t tokens_of(const Tensor& values) { return values.dims[values.rank - 2]; }
int64_t size_of_rows(const Tensor& values) { return values.dims[values.rank - 1]; }
int64_t at(const Tensor& t, int64_t i) { return t.as<const int64_t>()[t.rank == 0 ? 0 : i * t.strides[0]]; }
int64_t count_of(const Tensor& t) { return t.rank == 0 ? 1 : t.dims[0]; }

// ---- paged_update: in [table, page_id INT64 scalar or [p], values [..., n, size], position INT64 scalar], out [table: the
// same]; ints [tokens of a page]. Token i of n goes to place position + i of the pages named, in their order; what does not
// fit, or has no page, is skipped.

std::string validate_update(const Args& a) {
  REQUIRE_OK(check_call(a, {4, 4, 1, 1, 1, 0}));
  const Tensor &table = a.in[0], &ids = a.in[1], &values = a.in[2], &position = a.in[3], &updated = a.out[0];
  REQUIRE(is_table(table) && is_table(updated) && same_dims(table, updated), "tables are %s and %s, expected INT64[pages,4] twice",
          describe(table), describe(updated));
  REQUIRE(scalar_or_vector(ids, DType::Int64), "page_id is %s, expected INT64 of rank 0 or 1", describe(ids));
  REQUIRE(position.dtype == DType::Int64 && position.size() == 1 && position.rank <= 1, "position is %s, expected an INT64 scalar",
          describe(position));
  REQUIRE(values.dtype == DType::Float || values.dtype == DType::Float16 || values.dtype == DType::BFloat16,
          "values are %s, expected FLOAT, FLOAT16 or BFLOAT16", describe(values));
  REQUIRE(values.rank >= 2 && unit_last(values) && size_of_rows(values) <= kMaxRow,
          "values are %s, expected [..., tokens, size] with a unit stride and up to %lld elements in a row", describe(values),
          (long long)kMaxRow);
  REQUIRE(a.ints[0] >= 1, "pages of %lld tokens, expected 1 or more", (long long)a.ints[0]);
  return {};
}

int64_t tasks_update(const Args& a) { return (lead_of(a.in[2]) * tokens_of(a.in[2]) + kTaskRows - 1) / kTaskRows; }

// Row `offset` (in elements) of the values as floats; its own bytes where it is floats already.
const float* row_of(const Tensor& values, int64_t offset, int64_t size, float* room) {
  if (values.dtype == DType::Float) return values.as<const float>() + offset;
  const uint16_t* row = values.as<const uint16_t>() + offset;
  if (values.dtype == DType::Float16)
    for (int64_t i = 0; i < size; ++i) room[i] = half_to_float(row[i]);
  else
    for (int64_t i = 0; i < size; ++i) room[i] = bfloat_to_float(row[i]);
  return room;
}

void run_update(const Args& a, int64_t begin, int64_t end) {
  const Tensor &table = a.in[0], &ids = a.in[1], &values = a.in[2];
  const int64_t lead = lead_of(values), n = tokens_of(values), size = size_of_rows(values), page = a.ints[0];
  const int64_t position = at(a.in[3], 0), last = end * kTaskRows < lead * n ? end * kTaskRows : lead * n;
  if (position < 0) return;
  float room[kMaxRow];
  for (int64_t i = begin * kTaskRows; i < last; ++i) {
    const int64_t outer = i / n, token = i % n;
    int64_t place;
    if (__builtin_add_overflow(position, token, &place) || place / page >= count_of(ids)) continue;
    const PageView target = page_of(table, at(ids, place / page), lead * page, size);
    if (target.data == nullptr) continue;
    const float* row = row_of(values, offset_of(values, i, values.rank - 1), size, room);
    byte* to = target.data + (outer * page + place % page) * target.row;
    encode_row(target.kind, target.block, row, size, to);
  }
}

// ---- check_paged_update: in [table, page_id, position]; ints [n, tokens of a page, rows of a page, size]

int64_t one_task(const Args&) { return 1; }

std::string validate_check_update(const Args& a) {
  REQUIRE_OK(check_call(a, {3, 3, 0, 0, 4, 0}));
  REQUIRE(is_table(a.in[0]), "table is %s, expected INT64[pages,4]", describe(a.in[0]));
  REQUIRE(scalar_or_vector(a.in[1], DType::Int64), "page_id is %s, expected INT64 of rank 0 or 1", describe(a.in[1]));
  REQUIRE(a.in[2].dtype == DType::Int64 && a.in[2].rank <= 1 && a.in[2].size() == 1, "position is %s, expected an INT64 scalar",
          describe(a.in[2]));
  REQUIRE(a.ints[0] >= 0 && a.ints[1] >= 1 && a.ints[2] >= 0 && a.ints[3] >= 0, "a count is negative");
  return {};
}

void run_check_update(const Args& a, int64_t begin, int64_t end) {
  if (begin >= end) return;
  const Tensor &table = a.in[0], &ids = a.in[1];
  const int64_t n = a.ints[0], page = a.ints[1], position = at(a.in[2], 0), named = count_of(ids);
  if (position < 0 || position >= page || n > named * page - position) {
    *a.fault = {kFaultRows, position, 0, named, n};
    return;
  }
  for (int64_t i = 0; i < (position + n + page - 1) / page; ++i) {
    if (page_of(table, at(ids, i), a.ints[2], a.ints[3]).data != nullptr) continue;
    *a.fault = {kFaultPage, at(ids, i), 0, table.dims[0] - 1, i};
    return;
  }
}

// ---- check_page_table: in [table, page_table INT64[batch, pages], lengths INT64[batch]]; ints [tokens of a page, rows, size]

std::string validate_check_table(const Args& a) {
  REQUIRE_OK(check_call(a, {3, 3, 0, 0, 3, 0}));
  const Tensor &pages = a.in[1], &lengths = a.in[2];
  REQUIRE(is_table(a.in[0]), "table is %s, expected INT64[pages,4]", describe(a.in[0]));
  REQUIRE(pages.dtype == DType::Int64 && pages.rank == 2 && lengths.dtype == DType::Int64 && lengths.rank == 1 &&
          lengths.dims[0] == pages.dims[0], "page_table is %s and lengths are %s, expected INT64[batch,pages] and INT64[batch]",
          describe(pages), describe(lengths));
  REQUIRE(a.ints[0] >= 1 && a.ints[1] >= 0 && a.ints[2] >= 0, "a count is negative");
  return {};
}

void run_check_table(const Args& a, int64_t begin, int64_t end) {
  const Tensor &table = a.in[0], &pages = a.in[1];
  const int64_t page = a.ints[0];
  for (int64_t b = 0; begin < end && b < pages.dims[0]; ++b) {
    const int64_t length = at(a.in[2], b);
    if (length < 0 || length > pages.dims[1] * page) {
      *a.fault = {kFaultLength, length, 0, pages.dims[1] * page, b};
      return;
    }
    for (int64_t i = 0; i * page < length; ++i) {
      const int64_t id = pages.as<const int64_t>()[b * pages.strides[0] + i * pages.strides[1]];
      if (page_of(table, id, a.ints[1], a.ints[2]).data != nullptr) continue;
      *a.fault = {kFaultPage, id, 0, table.dims[0] - 1, b};
      return;
    }
  }
}

// ---- recode_page: in [payload UINT8], out [payload UINT8]; ints [kind, block, kind, block, rows, size]. Where a row has as
// many bytes in both formats the two payloads may be the same bytes.

std::string validate_recode(const Args& a) {
  REQUIRE_OK(check_call(a, {1, 1, 1, 1, 6, 0}));
  const int64_t rows = a.ints[4], size = a.ints[5];
  REQUIRE(rows >= 0 && size >= 0 && size <= kMaxRow, "%lld rows of %lld elements, expected rows of up to %lld", (long long)rows,
          (long long)size, (long long)kMaxRow);
  for (int side = 0; side < 2; ++side) {
    const Tensor& payload = side == 0 ? a.in[0] : a.out[0];
    const int64_t row = row_bytes(a.ints[2 * side], a.ints[2 * side + 1], size);
    int64_t bytes;
    REQUIRE(row >= 0, "kind %lld with blocks of %lld is no page format for rows of %lld", (long long)a.ints[2 * side],
            (long long)a.ints[2 * side + 1], (long long)size);
    REQUIRE(!__builtin_mul_overflow(row, rows, &bytes) && payload.dtype == DType::UInt8 && payload.rank == 1 &&
            payload.contiguous() && payload.dims[0] == bytes, "payload is %s, expected UINT8[%lld]", describe(payload), (long long)bytes);
  }
  return {};
}

int64_t tasks_recode(const Args& a) { return (a.ints[4] + kTaskRows - 1) / kTaskRows; }

void run_recode(const Args& a, int64_t begin, int64_t end) {
  const int64_t size = a.ints[5], last = end * kTaskRows < a.ints[4] ? end * kTaskRows : a.ints[4];
  const int64_t from = row_bytes(a.ints[0], a.ints[1], size), to = row_bytes(a.ints[2], a.ints[3], size);
  float room[kMaxRow];
  for (int64_t row = begin * kTaskRows; row < last; ++row) {
    decode_row(a.ints[0], a.ints[1], a.in[0].data + row * from, size, room);
    encode_row(a.ints[2], a.ints[3], room, size, a.out[0].data + row * to);
  }
}

constexpr Kernel kernels[] = {
    {"paged_update", validate_update, tasks_update, run_update},
    {"check_paged_update", validate_check_update, one_task, run_check_update},
    {"check_page_table", validate_check_table, one_task, run_check_table},
    {"recode_page", validate_recode, tasks_recode, run_recode},
};

}  // namespace

KernelTable pages_table() { return {kernels, int(sizeof kernels / sizeof kernels[0])}; }

}  // namespace tenonnx::TENONNX_ISA_NS

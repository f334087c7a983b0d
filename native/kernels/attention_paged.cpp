// Attention over paged K and V, each page in its own format, read page by page under a running softmax: nothing but the rows
// at hand is ever decoded.
//
//   in   q [b, H, n, head] FLOAT; k table INT64[pages, 4]; page_table INT64[b, p]: the ids of each sequence's pages, in order;
//        lengths INT64[b]: valid keys, clamped to p pages; v table INT64[pages, 4], absent where values are the second half
//        of the pages of k
//   ints [is_causal, left_window, tokens of a page, K/V heads, value size]; floats [scale, softcap], as in attention.hpp
//
//   paged_attention          out [y [b, H, n, value] FLOAT]
//   paged_attention_partial  out [workspace UINT8], of chunks of `chunk` keys: whole pages up to 128 keys, or one larger page
//   paged_attention_combine  in [workspace, lengths]; out [y]; ints [capacity, chunk]
#include "kernels/attention_codes.hpp"
#include "kernels/page_rows.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

constexpr int64_t kChunkKeys = 128, kMaxPage = 256;
constexpr int64_t kDecoded = 32;  // rows decoded at a time: few enough to stay in the nearest cache

int64_t chunk_keys(int64_t page) { return page >= kChunkKeys ? page : kChunkKeys / page * page; }

class PagedKeys {
 public:
  static constexpr bool kHeadsOutside = false;  // a page has the rows of all heads for its tokens

  explicit PagedKeys(const Args& a)
      : k_(a.in[1]), v_(a.has(4) ? a.in[4] : a.in[1]), pages_(a.in[2]), page_(a.ints[2]), kv_heads_(a.ints[3]),
        head_(a.in[0].dims[3]), value_(a.ints[4]), stacked_(!a.has(4)) {}

  static AttentionShape shape(const Args& a) { return {a, a.ints[3], a.in[2].dims[1] * a.ints[2], a.ints[4], nullptr, &a.in[3]}; }

  // f(data, elements or blocks between rows, offset, rows, Ahead) for the parts of [first, first + count) in each page. While K
  // is read, V of the same keys is brought near, and while V is read, K of the task that follows in memory.
  template <typename F>
  void keys(int64_t b, int64_t kv, int64_t first, int64_t count, F f) const {
    read(keys_of(b, kv), first, count, values_of(b, kv), first, f);
  }
  template <typename F>
  void values(int64_t b, int64_t kv, int64_t first, int64_t count, F f) const {
    const bool last = kv + 1 == kv_heads_;
    read(values_of(b, kv), first, count, keys_of(b, last ? 0 : kv + 1), last ? first + count : first, f);
  }

 private:
  struct Rows {
    const Tensor& table;
    int64_t size, b, head;  // head: counts through both halves of a stacked page
  };
  struct Part {
    PageView page;
    const byte* data = nullptr;  // null where the page is missing
    int64_t rows = 0;
  };

  Rows keys_of(int64_t b, int64_t kv) const { return {k_, head_, b, kv}; }
  Rows values_of(int64_t b, int64_t kv) const { return {v_, value_, b, kv + (stacked_ ? kv_heads_ : 0)}; }

  // As many of the rows from `first` on as lie in one page.
  Part part_at(const Rows& of, int64_t first, int64_t count) const {
    const int64_t number = first / page_, token = first % page_;
    if (number >= pages_.dims[1]) return {};
    const int64_t id = pages_.as<const int64_t>()[of.b * pages_.strides[0] + number * pages_.strides[1]];
    const PageView page = page_of(of.table, id, kv_heads_ * page_ * (stacked_ ? 2 : 1), of.size);
    const byte* data = page.data == nullptr ? nullptr : page.data + (of.head * page_ + token) * page.row;
    return {page, data, count < page_ - token ? count : page_ - token};
  }

  template <typename F>
  void read(const Rows& of, int64_t first, int64_t count, const Rows& next, int64_t next_first, F f) const {
    for (int64_t done = 0; done < count;) {
      const Part part = part_at(of, first + done, count - done), soon = part_at(next, next_first + done, count - done);
      hand_over(part, of.size, done, ahead_of(soon), f);
      done += part.rows;
    }
  }

  static RowsAhead ahead_of(const Part& part) {
    if (part.data == nullptr) return {};
    return {part.data, part.data, part.data + part.rows * part.page.row, part.page.row};
  }

  template <typename F>
  static void hand_over(const Part& part, int64_t size, int64_t at, RowsAhead ahead, F f) {
    if (part.data == nullptr) return decode(part, size, at, ahead, f);
    switch (part.page.kind) {
      case kF16: return f(reinterpret_cast<const Half*>(part.data), size, at, part.rows, ahead);
      case kF32: return f(reinterpret_cast<const float*>(part.data), size, at, part.rows, ahead);
      case kBF16: return f(reinterpret_cast<const Bfloat*>(part.data), size, at, part.rows, ahead);
      case kInt8: return codes<8>(part, size, at, ahead, f);
      case kInt4: return codes<4>(part, size, at, ahead, f);
      default: return decode(part, size, at, ahead, f);
    }
  }

  template <int Width, typename F>
  static void codes(const Part& part, int64_t size, int64_t at, RowsAhead ahead, F f) {
    using Block = AffineBlock<Width, 32>;
    if (part.page.block == Block::kElements)
      return f(reinterpret_cast<const Block*>(part.data), size / Block::kElements, at, part.rows, ahead);
    decode(part, size, at, ahead, f);
  }

  // A few rows at a time as floats, zeros for a page that is missing.
  template <typename F>
  static void decode(const Part& part, int64_t size, int64_t at, RowsAhead ahead, F f) {
    alignas(64) float decoded[kDecoded * kMaxHead];
    for (int64_t i = 0; i < part.rows; i += kDecoded) {
      const int64_t count = part.rows - i < kDecoded ? part.rows - i : kDecoded;
      ahead.step(count);
      if (part.data == nullptr) std::memset(decoded, 0, size_t(count * size) * sizeof(float));
      else with_rows(part.page.kind, part.page.block, [&](auto rows) {
        for (int64_t r = 0; r < count; ++r) rows.decode(part.data + (i + r) * part.page.row, size, decoded + r * size);
      });
      f(static_cast<const float*>(decoded), size, at + i, count, RowsAhead());
    }
  }

  const Tensor &k_, &v_, &pages_;
  int64_t page_, kv_heads_, head_, value_;
  bool stacked_;
};

std::string check_paged(const Args& a) {
  REQUIRE_OK(check_call(a, {4, 5, 1, 1, 5, 2}));
  const Tensor &q = a.in[0], &pages = a.in[2], &lengths = a.in[3];
  const int64_t page = a.ints[2], kv_heads = a.ints[3], value = a.ints[4];
  REQUIRE(q.rank == 4 && float_rows(q), "q is %s, expected FLOAT[b,heads,n,head] of unit stride on the last axis", describe(q));
  REQUIRE(is_table(a.in[1]) && (!a.has(4) || is_table(a.in[4])), "page tables are not INT64[pages,4]");
  REQUIRE(pages.dtype == DType::Int64 && pages.rank == 2 && pages.dims[0] == q.dims[0], "page_table is %s, expected INT64[%lld,pages]",
          describe(pages), static_cast<long long>(q.dims[0]));
  REQUIRE(lengths.dtype == DType::Int64 && lengths.rank == 1 && lengths.dims[0] == q.dims[0], "lengths are %s, expected INT64[%lld]",
          describe(lengths), static_cast<long long>(q.dims[0]));
  REQUIRE(page >= 1 && page <= kMaxPage, "pages of %lld tokens, expected 1 to %lld", static_cast<long long>(page),
          static_cast<long long>(kMaxPage));
  REQUIRE(kv_heads > 0 && q.dims[1] % kv_heads == 0, "%lld heads of k do not divide the %lld of q", static_cast<long long>(kv_heads),
          static_cast<long long>(q.dims[1]));
  REQUIRE(q.dims[3] <= kMaxHead && value >= 0 && value <= kMaxHead && (a.has(4) || value == q.dims[3]),
          "head sizes %lld and %lld, expected up to %lld, and equal ones in stacked pages", static_cast<long long>(q.dims[3]),
          static_cast<long long>(value), static_cast<long long>(kMaxHead));
  int64_t capacity;
  REQUIRE(!__builtin_mul_overflow(pages.dims[1], page, &capacity), "page_table is %s: too many pages", describe(pages));
  return {};
}

std::string validate_attention(const Args& a) {
  REQUIRE_OK(check_paged(a));
  const Tensor &q = a.in[0], &y = a.out[0];
  REQUIRE(y.rank == 4 && float_rows(y) && y.dims[0] == q.dims[0] && y.dims[1] == q.dims[1] && y.dims[2] == q.dims[2] &&
          y.dims[3] == a.ints[4], "output is %s for q %s: FLOAT[b,heads,n,%lld] of unit stride on the last axis expected", describe(y),
          describe(q), static_cast<long long>(a.ints[4]));
  return {};
}

int64_t tasks_attention(const Args& a) { return tile_tasks(PagedKeys::shape(a)); }

void run_attention(const Args& a, int64_t begin, int64_t end) {
  run_tiles(PagedKeys(a), PagedKeys::shape(a), a.out[0], begin, end);
}

std::string validate_partial(const Args& a) {
  REQUIRE_OK(check_paged(a));
  const AttentionShape s = PagedKeys::shape(a);
  REQUIRE(workspace_fits(a.out[0], s.batch * s.heads * s.n, s.capacity, chunk_keys(a.ints[2]), s.value),
          "workspace is %s, too small for %lld rows over %lld keys in chunks of %lld", describe(a.out[0]),
          static_cast<long long>(s.batch * s.heads * s.n), static_cast<long long>(s.capacity),
          static_cast<long long>(chunk_keys(a.ints[2])));
  return {};
}

int64_t tasks_partial(const Args& a) { return chunk_tasks(PagedKeys::shape(a), chunk_keys(a.ints[2])); }

void run_partial(const Args& a, int64_t begin, int64_t end) {
  const int64_t keys = chunk_keys(a.ints[2]);
  float* workspace = a.out[0].as<float>();
  if (keys <= kChunkKeys) run_chunks<kChunkKeys>(PagedKeys(a), PagedKeys::shape(a), keys, workspace, begin, end);
  else run_chunks<kMaxPage>(PagedKeys(a), PagedKeys::shape(a), keys, workspace, begin, end);
}

std::string validate_combine(const Args& a) {
  REQUIRE_OK(check_call(a, {2, 2, 1, 1, 2, 0}));
  return check_combine(a, a.ints[0], a.ints[1]);
}

void run_combine(const Args& a, int64_t begin, int64_t end) { combine_chunks(a, a.ints[0], a.ints[1], begin, end); }

constexpr Kernel kernels[] = {
    {"paged_attention", validate_attention, tasks_attention, run_attention},
    {"paged_attention_partial", validate_partial, tasks_partial, run_partial},
    {"paged_attention_combine", validate_combine, tasks_combine, run_combine},
};

}  // namespace

KernelTable attention_paged_table() { return {kernels, int(sizeof kernels / sizeof kernels[0])}; }

}  // namespace tenonnx::TENONNX_ISA_NS

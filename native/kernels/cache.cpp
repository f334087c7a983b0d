// The kernel that writes rows into a cache, and the checks that run before it. A check reports the first value out of
// range; the writers guard themselves as well, as another thread may change a position after its check.
#include "kernels/cache.hpp"
#include "kernels/cast.hpp"
#include "kernels/check.hpp"
#include "kernels/walk.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

// ---- cache_update: in [cache, values, position INT64 scalar or [batch]], out [updated: the cache's own storage];
// ints [axis, batch_axis]. Writes values at [position, position + n) along axis, converting the type; a row of the
// batch whose window does not fit is skipped. No byte outside the windows is written.

std::string validate_update(const Args& a) {
  REQUIRE_OK(check_call(a, {3, 3, 1, 1, 2, 0}));
  return check_update(a);
}

// Rows of the batch are walked one by one when each has its own position, all at once otherwise.
struct Update {
  int64_t batch;
  Walk<2> walk;

  explicit Update(const Args& a) : batch(a.in[2].rank == 0 ? 1 : a.in[2].dims[0]), walk(inner(a)) {}

 private:
  static Walk<2> inner(const Args& a) {
    Tensor values = a.in[1];
    if (a.in[2].rank == 1) values.dims[a.ints[1]] = values.dims[a.ints[1]] > 0 ? 1 : 0;
    const int64_t* const steps[2] = {values.strides, a.out[0].strides};
    return {values.dims, values.rank, steps};
  }
};

int64_t tasks_update(const Args& a) {
  const Update update(a);
  return update.batch * update.walk.tasks();
}

void run_update(const Args& a, int64_t begin, int64_t end) {
  const Tensor &values = a.in[1], &position = a.in[2], &cache = a.out[0];
  const Update update(a);
  const int64_t axis = a.ints[0], batch_axis = a.ints[1], inner = update.walk.tasks();
  const RowCopy copy(values.dtype, cache.dtype);
  for (int64_t task = begin; task < end; ++task) {
    const int64_t row = task / inner, at = position_of(position, row);
    if (at < 0 || at > cache.dims[axis] - values.dims[axis]) continue;
    const std::byte* from = values.data + row * values.strides[batch_axis] * copy.from_size();
    std::byte* to = cache.data + (row * cache.strides[batch_axis] + at * cache.strides[axis]) * copy.to_size();
    update.walk.run(task % inner, task % inner + 1, [&](const int64_t* offset, int64_t n) {
      copy(from + offset[0] * copy.from_size(), update.walk.stride(0), to + offset[1] * copy.to_size(), update.walk.stride(1), n);
    });
  }
}

// ---- cache_keep: in [cache], out [kept: the cache's own storage]: nothing is written. The branch of an If that does not
// update a cache which the other updates.

std::string validate_keep(const Args& a) {
  REQUIRE_OK(check_call(a, {1, 1, 1, 1, 0, 0}));
  REQUIRE(same_dims(a.in[0], a.out[0]) && a.in[0].dtype == a.out[0].dtype, "output %s is not the cache %s", describe(a.out[0]),
          describe(a.in[0]));
  return {};
}

int64_t no_task(const Args&) { return 0; }

void run_keep(const Args&, int64_t, int64_t) {}

// ---- check_position: in [position INT64 scalar or [batch]]; ints [limit]: faults unless 0 <= position <= limit.

std::string validate_position(const Args& a) {
  REQUIRE_OK(check_call(a, {1, 1, 0, 0, 1, 0}));
  REQUIRE(scalar_or_vector(a.in[0], DType::Int64), "position is %s, expected an INT64 scalar or vector", describe(a.in[0]));
  return {};
}

int64_t one_task(const Args&) { return 1; }

void run_position(const Args& a, int64_t begin, int64_t end) {
  const int64_t rows = begin < end ? a.in[0].size() : 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t at = position_of(a.in[0], row);
    if (at >= 0 && at <= a.ints[0]) continue;
    *a.fault = {kFaultPosition, at, 0, a.ints[0], row};
    return;
  }
}

// ---- check_indices: in [indices INT64 or INT32, contiguous]; ints [size]: faults unless -size <= index < size.

std::string validate_indices(const Args& a) {
  REQUIRE_OK(check_call(a, {1, 1, 0, 0, 1, 0}));
  REQUIRE((a.in[0].dtype == DType::Int64 || a.in[0].dtype == DType::Int32) && a.in[0].contiguous(),
          "indices are %s, expected contiguous INT64 or INT32", describe(a.in[0]));
  REQUIRE(a.ints[0] >= 0, "size %lld is negative", static_cast<long long>(a.ints[0]));
  return {};
}

void run_indices(const Args& a, int64_t begin, int64_t end) {
  const Tensor& indices = a.in[0];
  const int64_t count = begin < end ? indices.size() : 0, size = a.ints[0];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = indices.dtype == DType::Int64 ? indices.as<const int64_t>()[i] : indices.as<const int32_t>()[i];
    if (index >= -size && index < size) continue;
    *a.fault = {kFaultIndex, index, -size, size - 1, i};
    return;
  }
}

constexpr Kernel kernels[] = {
    {"cache_update", validate_update, tasks_update, run_update},
    {"cache_keep", validate_keep, no_task, run_keep},
    {"check_position", validate_position, one_task, run_position},
    {"check_indices", validate_indices, one_task, run_indices},
};

}  // namespace

std::string check_update(const Args& a) {
  const Tensor &cache = a.in[0], &values = a.in[1], &position = a.in[2], &updated = a.out[0];
  const int64_t axis = a.ints[0], batch_axis = a.ints[1];
  const bool ragged = position.rank > 0;  // else the batch is no more than one of the rows' dimensions
  REQUIRE(axis >= 0 && axis < cache.rank && batch_axis >= 0 && batch_axis < cache.rank && (!ragged || axis != batch_axis),
          "axis %lld and batch_axis %lld are not two axes of %s", static_cast<long long>(axis),
          static_cast<long long>(batch_axis), describe(cache));
  bool same = same_dims(cache, updated) && cache.dtype == updated.dtype;
  for (int i = 0; same && i < cache.rank; ++i)
    same = cache.dims[i] <= 1 || cache.strides[i] == updated.strides[i] || cache.empty();
  REQUIRE(same, "output %s is not the same view as the cache %s", describe(updated), describe(cache));
  bool fits = values.rank == cache.rank;
  for (int i = 0; fits && i < cache.rank; ++i) fits = i == axis || values.dims[i] == cache.dims[i];
  REQUIRE(fits, "values are %s, the cache %s: they may differ along axis %lld only", describe(values), describe(cache),
          static_cast<long long>(axis));
  REQUIRE(scalar_or_vector(position, DType::Int64) && (position.rank == 0 || position.dims[0] == cache.dims[batch_axis]),
          "position is %s, expected an INT64 scalar or INT64[%lld]", describe(position),
          static_cast<long long>(cache.dims[batch_axis]));
  return {};
}

KernelTable cache_table() { return {kernels, int(sizeof kernels / sizeof kernels[0])}; }

}  // namespace tenonnx::TENONNX_ISA_NS

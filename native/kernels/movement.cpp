// Kernels that move elements: copy (also Cast), gather, concat, where. Views may have any strides from 0 up.
#include "kernels/cast.hpp"
#include "kernels/check.hpp"
#include "kernels/walk.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

Walk<2> walk_pair(const int64_t* dims, int rank, const int64_t* from, const int64_t* to) {
  const int64_t* const steps[2] = {from, to};
  return {dims, rank, steps};
}

// ---- copy: in [x], out [y] of the same dims and any type.

std::string validate_copy(const Args& a) {
  REQUIRE_OK(check_call(a, {1, 1, 1, 1, 0, 0}));
  return check_same_dims(a);
}

Walk<2> walk_copy(const Tensor& from, const Tensor& to) { return walk_pair(from.dims, from.rank, from.strides, to.strides); }

int64_t tasks_copy(const Args& a) { return walk_copy(a.in[0], a.out[0]).tasks(); }

void copy_tasks(const Tensor& from, const Tensor& to, std::byte* to_data, int64_t begin, int64_t end) {
  const Walk<2> walk = walk_copy(from, to);
  const RowCopy copy(from.dtype, to.dtype);
  walk.run(begin, end, [&](const int64_t* at, int64_t n) {
    copy(from.data + at[0] * copy.from_size(), walk.stride(0), to_data + at[1] * copy.to_size(), walk.stride(1), n);
  });
}

void run_copy(const Args& a, int64_t begin, int64_t end) { copy_tasks(a.in[0], a.out[0], a.out[0].data, begin, end); }

// ---- gather: in [data, indices INT64 or INT32, contiguous], out; ints [axis]. A negative index counts from the end; one
// out of range gives zeros (check_indices is what reports it).

std::string validate_gather(const Args& a) {
  REQUIRE_OK(check_call(a, {2, 2, 1, 1, 1, 0}));
  const Tensor &data = a.in[0], &indices = a.in[1], &out = a.out[0];
  const int64_t axis = a.ints[0];
  REQUIRE(axis >= 0 && axis < data.rank, "axis %lld is not one of %s", static_cast<long long>(axis), describe(data));
  REQUIRE((indices.dtype == DType::Int64 || indices.dtype == DType::Int32) && indices.contiguous(),
          "indices are %s, expected contiguous INT64 or INT32", describe(indices));
  REQUIRE(out.dtype == data.dtype, "output is %s, data %s", describe(out), describe(data));
  bool fits = out.rank == data.rank - 1 + indices.rank;
  for (int i = 0; fits && i < out.rank; ++i) {
    const int k = i - int(axis);
    fits = out.dims[i] == (k < 0 ? data.dims[i] : k < indices.rank ? indices.dims[k] : data.dims[i - indices.rank + 1]);
  }
  REQUIRE(fits, "output is %s, not %s with axis %lld replaced by the dims of %s", describe(out), describe(data),
          static_cast<long long>(axis), describe(indices));
  return {};
}

int64_t index_at(const Tensor& indices, int64_t i) {
  return indices.dtype == DType::Int64 ? indices.as<const int64_t>()[i] : indices.as<const int32_t>()[i];
}

// One unit is what one index selects under one combination of the dims before the axis.
struct GatherShape {
  int axis;
  int64_t units, slice, units_per_task;

  explicit GatherShape(const Args& a) : axis(int(a.ints[0])) {
    slice = size_of_dims(a.in[0], axis + 1, a.in[0].rank);
    units = slice > 0 ? size_of_dims(a.out[0], 0, axis + a.in[1].rank) : 0;
    units_per_task = slice > 0 && slice < kTaskElements ? kTaskElements / slice : 1;
  }
};

int64_t tasks_gather(const Args& a) {
  const GatherShape shape(a);
  return (shape.units + shape.units_per_task - 1) / shape.units_per_task;
}

void run_gather(const Args& a, int64_t begin, int64_t end) {
  const Tensor &data = a.in[0], &indices = a.in[1], &out = a.out[0];
  const GatherShape shape(a);
  const int64_t size = data.dims[shape.axis], count = indices.size(), bytes = size_of(data.dtype);
  const int after = data.rank - shape.axis - 1, outer_rank = shape.axis + indices.rank;
  const Walk<2> walk = walk_pair(data.dims + shape.axis + 1, after, data.strides + shape.axis + 1, out.strides + outer_rank);
  const RowCopy copy(data.dtype, out.dtype);
  static const std::byte zeros[8] = {};
  const int64_t last = end * shape.units_per_task < shape.units ? end * shape.units_per_task : shape.units;
  for (int64_t unit = begin * shape.units_per_task; unit < last; ++unit) {
    int64_t index = index_at(indices, unit % count);
    if (index < 0) index += size;
    const bool inside = index >= 0 && index < size;
    const int64_t source = inside ? offset_of(data, unit / count, shape.axis) + index * data.strides[shape.axis] : 0;
    std::byte* const to = out.data + offset_of(out, unit, outer_rank) * bytes;
    walk.run(0, walk.tasks(), [&](const int64_t* at, int64_t n) {
      if (inside) copy(data.data + (source + at[0]) * bytes, walk.stride(0), to + at[1] * bytes, walk.stride(1), n);
      else copy(zeros, 0, to + at[1] * bytes, walk.stride(1), n);
    });
  }
}

// ---- concat: in [x...], out; ints [axis].

std::string validate_concat(const Args& a) {
  REQUIRE_OK(check_call(a, {1, 1 << 20, 1, 1, 1, 0}));
  const Tensor& out = a.out[0];
  const int64_t axis = a.ints[0];
  REQUIRE(axis >= 0 && axis < out.rank, "axis %lld is not one of %s", static_cast<long long>(axis), describe(out));
  int64_t total = 0;
  for (int k = 0; k < a.n_in; ++k) {
    REQUIRE(a.in[k].present(), "input %d is absent", k);
    bool fits = a.in[k].dtype == out.dtype && a.in[k].rank == out.rank;
    for (int i = 0; fits && i < out.rank; ++i) fits = i == axis || a.in[k].dims[i] == out.dims[i];
    fits = fits && !__builtin_add_overflow(total, a.in[k].dims[axis], &total);
    REQUIRE(fits, "input %d is %s, the output %s: they differ on more than axis %lld", k, describe(a.in[k]), describe(out),
            static_cast<long long>(axis));
  }
  REQUIRE(total == out.dims[axis], "inputs have %lld along axis %lld together, the output %lld", static_cast<long long>(total),
          static_cast<long long>(axis), static_cast<long long>(out.dims[axis]));
  return {};
}

int64_t tasks_concat(const Args& a) {
  int64_t tasks = 0;
  for (int k = 0; k < a.n_in; ++k) tasks += walk_copy(a.in[k], a.out[0]).tasks();
  return tasks;
}

void run_concat(const Args& a, int64_t begin, int64_t end) {
  const Tensor& out = a.out[0];
  int64_t first = 0, place = 0;  // first task of this input, its place along the axis
  for (int k = 0; k < a.n_in && first < end; ++k) {
    const int64_t tasks = walk_copy(a.in[k], out).tasks();
    const int64_t from = begin > first ? begin - first : 0, to = end - first < tasks ? end - first : tasks;
    if (from < to) copy_tasks(a.in[k], out, out.data + place * out.strides[a.ints[0]] * size_of(out.dtype), from, to);
    first += tasks;
    place += a.in[k].dims[a.ints[0]];
  }
}

// ---- where: in [condition BOOL, x, y], out; all of the output's dims.

std::string validate_where(const Args& a) {
  REQUIRE_OK(check_call(a, {3, 3, 1, 1, 0, 0}));
  REQUIRE(a.in[0].dtype == DType::Bool, "condition is %s, expected BOOL", describe(a.in[0]));
  REQUIRE(a.in[1].dtype == a.out[0].dtype && a.in[2].dtype == a.out[0].dtype, "x is %s, y %s, the output %s: one type expected",
          describe(a.in[1]), describe(a.in[2]), describe(a.out[0]));
  return check_same_dims(a);
}

Walk<4> walk_where(const Args& a) {
  const int64_t* const steps[4] = {a.in[0].strides, a.in[1].strides, a.in[2].strides, a.out[0].strides};
  return {a.out[0].dims, a.out[0].rank, steps};
}

int64_t tasks_where(const Args& a) { return walk_where(a).tasks(); }

template <typename T>
void select(const Args& a, int64_t begin, int64_t end) {
  const Walk<4> walk = walk_where(a);
  walk.run(begin, end, [&](const int64_t* at, int64_t n) {
    const uint8_t* condition = a.in[0].as<const uint8_t>() + at[0];
    const T *x = a.in[1].as<const T>() + at[1], *y = a.in[2].as<const T>() + at[2];
    T* out = a.out[0].as<T>() + at[3];
    for (int64_t i = 0; i < n; ++i)
      out[i * walk.stride(3)] = condition[i * walk.stride(0)] ? x[i * walk.stride(1)] : y[i * walk.stride(2)];
  });
}

void run_where(const Args& a, int64_t begin, int64_t end) {
  switch (size_of(a.out[0].dtype)) {
    case 1: return select<uint8_t>(a, begin, end);
    case 2: return select<uint16_t>(a, begin, end);
    case 4: return select<uint32_t>(a, begin, end);
    default: return select<uint64_t>(a, begin, end);
  }
}

constexpr Kernel kernels[] = {
    {"copy", validate_copy, tasks_copy, run_copy},
    {"gather", validate_gather, tasks_gather, run_gather},
    {"concat", validate_concat, tasks_concat, run_concat},
    {"where", validate_where, tasks_where, run_where},
};

}  // namespace

KernelTable movement_table() { return {kernels, int(sizeof kernels / sizeof kernels[0])}; }

}  // namespace tenonnx::TENONNX_ISA_NS

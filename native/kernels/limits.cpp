// What this processor does at most, for benchmarks to be measured against: reading memory, and summing products of bytes.
#include "kernels/check.hpp"
#include "kernels/lanes.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

constexpr int64_t kPart = int64_t(1) << 20;  // bytes that a task reads
constexpr int kSums = 8;                     // as many as stay in registers, so that no sum waits for the one before

std::string validate_read(const Args& a) {
  REQUIRE_OK(check_call(a, {1, 1, 1, 1, 0, 0}));
  const Tensor &x = a.in[0], &sums = a.out[0];
  REQUIRE(x.dtype == DType::UInt8 && x.rank == 1 && x.contiguous() && x.dims[0] % kPart == 0,
          "x is %s, expected a multiple of %lld bytes, UINT8 and contiguous", describe(x), static_cast<long long>(kPart));
  REQUIRE(sums.dtype == DType::UInt64 && sums.rank == 1 && sums.contiguous() && sums.dims[0] == x.dims[0] / kPart,
          "sums is %s, expected UINT64[%lld]", describe(sums), static_cast<long long>(x.dims[0] / kPart));
  return {};
}

int64_t tasks(const Args& a) { return a.out[0].size(); }

void run_read(const Args& a, int64_t begin, int64_t end) {
  for (int64_t task = begin; task < end; ++task) {
    const byte* part = a.in[0].data + task * kPart;
    uint64_t parity[16] = {};
    for (int64_t at = 0; at < kPart; at += int64_t(sizeof parity))
      for (int i = 0; i < 16; ++i) parity[i] ^= load_as<uint64_t>(part + at + 8 * i);
    for (int i = 1; i < 16; ++i) parity[0] ^= parity[i];
    a.out[0].as<uint64_t>()[task] = parity[0];
  }
}

std::string validate_multiply(const Args& a) {
  REQUIRE_OK(check_call(a, {1, 1, 1, 1, 1, 0}));
  const Tensor &x = a.in[0], &products = a.out[0];
  REQUIRE(x.dtype == DType::UInt8 && x.rank == 1 && x.contiguous() && x.dims[0] == 256, "x is %s, expected UINT8[256]", describe(x));
  REQUIRE(products.dtype == DType::Int64 && products.rank == 1 && products.contiguous(), "products is %s, expected INT64[tasks]",
          describe(products));
  REQUIRE(a.ints[0] >= 0, "%lld repetitions, expected 0 or more", static_cast<long long>(a.ints[0]));
  return {};
}

// Codes are zero where x is: then no sum ever leaves its type.
void run_multiply(const Args& a, int64_t begin, int64_t end) {
  const byte* x = a.in[0].data;
  const int64_t repetitions = a.ints[0];
  Wide::Source from;
  for (int group = 0; group < Wide::groups; ++group) from.group[group] = x;
  for (int64_t task = begin; task < end; ++task) {
    const auto codes = Wide::load(from, 0);
    Wide::ShortSum sums[kSums] = {};
    for (int64_t i = 0; i < repetitions; ++i)
      for (int s = 0; s < kSums; ++s) Wide::add(sums[s], codes, x + 4 * ((i + s) % 32));
    float totals[Wide::groups * kGroup] = {}, all = 0;
    for (const auto& sum : sums) {
      Wide::store(Wide::total(sum), totals);
      for (const float total : totals) all += total;
    }
    a.out[0].as<int64_t>()[task] = repetitions * kSums * Wide::groups * kGroup * 4 + (all != 0);
  }
}

}  // namespace

KernelTable limits_table() {
  // read_memory: in x UINT8 [n MiB]; out UINT64 [n], the parity of each. multiply_bytes: in x UINT8 [256], zeros; out INT64
  // [tasks], the products that each task summed; ints: repetitions
  static const Kernel kernels[] = {
      {"read_memory", validate_read, tasks, run_read},
      {"multiply_bytes", validate_multiply, tasks, run_multiply},
  };
  return {kernels, sizeof kernels / sizeof *kernels};
}

}  // namespace tenonnx::TENONNX_ISA_NS

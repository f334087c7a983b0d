// Attention for few queries over dense K and V, split along the keys.
//
//   attention_partial  in as in attention.hpp; out [workspace UINT8]: 4 · b · H · n · ceil(capacity / 128) · (value + 2) bytes
//   attention_combine  in [workspace, lengths (optional)]; out [y [b, H, n, value] FLOAT]; ints [capacity]
#include "kernels/attention_chunks.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

constexpr int64_t kChunk = 128;

std::string validate_partial(const Args& a) {
  REQUIRE_OK(check_attention(a, 1));
  const AttentionShape s = DenseKeys::shape(a);
  REQUIRE(workspace_fits(a.out[0], s.batch * s.heads * s.n, s.capacity, kChunk, s.value),
          "workspace is %s, expected at least 4 x %lld x ceil(%lld / 128) x (%lld + 2) bytes of UINT8", describe(a.out[0]),
          static_cast<long long>(s.batch * s.heads * s.n), static_cast<long long>(s.capacity), static_cast<long long>(s.value));
  return {};
}

int64_t tasks_partial(const Args& a) { return chunk_tasks(DenseKeys::shape(a), kChunk); }

void run_partial(const Args& a, int64_t begin, int64_t end) {
  run_chunks<kChunk>(DenseKeys(a), DenseKeys::shape(a), kChunk, a.out[0].as<float>(), begin, end);
}

std::string validate_combine(const Args& a) {
  REQUIRE_OK(check_call(a, {1, 2, 1, 1, 1, 0}));
  return check_combine(a, a.ints[0], kChunk);
}

void run_combine(const Args& a, int64_t begin, int64_t end) { combine_chunks(a, a.ints[0], kChunk, begin, end); }

constexpr Kernel kernels[] = {
    {"attention_partial", validate_partial, tasks_partial, run_partial},
    {"attention_combine", validate_combine, tasks_combine, run_combine},
};

}  // namespace

KernelTable attention_decode_table() { return {kernels, int(sizeof kernels / sizeof kernels[0])}; }

}  // namespace tenonnx::TENONNX_ISA_NS

// Attention for many queries over dense K and V.
//
//   attention  in, ints, floats as in attention.hpp; out [y [b, H, n, value] FLOAT]
#include "kernels/attention_tiles.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

std::string validate_attention(const Args& a) {
  REQUIRE_OK(check_attention(a, 1));
  return check_attended(a, a.out[0]);
}

int64_t tasks_attention(const Args& a) { return tile_tasks(DenseKeys::shape(a)); }

void run_attention(const Args& a, int64_t begin, int64_t end) {
  run_tiles(DenseKeys(a), DenseKeys::shape(a), a.out[0], begin, end);
}

constexpr Kernel kernels[] = {{"attention", validate_attention, tasks_attention, run_attention}};

}  // namespace

KernelTable attention_table() { return {kernels, int(sizeof kernels / sizeof kernels[0])}; }

}  // namespace tenonnx::TENONNX_ISA_NS

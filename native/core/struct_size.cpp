#include "core/struct_size.hpp"

namespace tenonnx {

SizeProblem struct_bits(const std::vector<StructNode>& nodes, uint64_t* bits) {
  std::vector<uint64_t> sizes;
  for (const StructNode& node : nodes) {
    uint64_t size = 0;
    switch (node.kind) {
      case StructKind::scalar:
        size = node.a;
        break;
      case StructKind::packing:
        if (__builtin_mul_overflow(node.a, node.b, &size)) return SizeProblem::overflow;
        break;
      case StructKind::array:
        if (sizes.empty()) return SizeProblem::malformed;
        if (__builtin_mul_overflow(node.a, sizes.back(), &size)) return SizeProblem::overflow;
        sizes.pop_back();
        break;
      case StructKind::structure:
        if (node.a > sizes.size()) return SizeProblem::malformed;
        for (uint64_t i = 0; i < node.a; ++i) {
          if (__builtin_add_overflow(size, sizes.back(), &size)) return SizeProblem::overflow;
          sizes.pop_back();
        }
        break;
      default:
        return SizeProblem::malformed;
    }
    sizes.push_back(size);
  }
  if (sizes.size() != 1) return SizeProblem::malformed;
  *bits = sizes.back();
  return SizeProblem::none;
}

}  // namespace tenonnx

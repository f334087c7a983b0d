// The physical size of a structured type in bits, in checked uint64 arithmetic: the same function as in Python.
#pragma once
#include <cstdint>
#include <vector>

namespace tenonnx {

// A type as one row per node, each node after those it contains:
//   scalar     a: bits
//   array      a: dimension; of the node before it
//   packing    a: dimension, b: bits of all components together
//   structure  a: number of fields, the nodes that end last before it
enum class StructKind : int { scalar = 0, array = 1, packing = 2, structure = 3 };

struct StructNode {
  StructKind kind;
  uint64_t a = 0, b = 0;
};

enum class SizeProblem { none, overflow, malformed };

// Bits of the last node, which must be the only one left.
SizeProblem struct_bits(const std::vector<StructNode>& nodes, uint64_t* bits);

}  // namespace tenonnx

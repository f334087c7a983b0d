// ONNX element types by their TensorProto.DataType numbers.
#pragma once
#include <cstdint>

namespace tenonnx {

enum class DType : int32_t {
  Undefined = 0, Float = 1, UInt8 = 2, Int8 = 3, UInt16 = 4, Int16 = 5, Int32 = 6, Int64 = 7, String = 8, Bool = 9,
  Float16 = 10, Double = 11, UInt32 = 12, UInt64 = 13, BFloat16 = 16,
};

// Bytes of one element, 0 for a type that kernels do not address (sub-byte, string, complex).
constexpr int64_t size_of(DType t) {
  switch (t) {
    case DType::UInt8: case DType::Int8: case DType::Bool: return 1;
    case DType::UInt16: case DType::Int16: case DType::Float16: case DType::BFloat16: return 2;
    case DType::Float: case DType::Int32: case DType::UInt32: return 4;
    case DType::Int64: case DType::UInt64: case DType::Double: return 8;
    default: return 0;
  }
}

}  // namespace tenonnx

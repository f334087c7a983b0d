#include "core/problem.hpp"

#include <cstdarg>
#include <cstdio>

namespace tenonnx {

std::string problem(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

const char* dtype_name(DType t) {
  switch (t) {
    case DType::Undefined: return "absent";
    case DType::Float: return "FLOAT";
    case DType::UInt8: return "UINT8";
    case DType::Int8: return "INT8";
    case DType::UInt16: return "UINT16";
    case DType::Int16: return "INT16";
    case DType::Int32: return "INT32";
    case DType::Int64: return "INT64";
    case DType::String: return "STRING";
    case DType::Bool: return "BOOL";
    case DType::Float16: return "FLOAT16";
    case DType::Double: return "DOUBLE";
    case DType::UInt32: return "UINT32";
    case DType::UInt64: return "UINT64";
    case DType::BFloat16: return "BFLOAT16";
  }
  return "an unknown type";
}

const char* describe(const Tensor& t) {
  thread_local char texts[4][256];
  thread_local int turn = 0;
  char* text = texts[turn = (turn + 1) % 4];
  int used = snprintf(text, sizeof texts[0], "%s[", dtype_name(t.dtype));
  for (int i = 0; i < t.rank; ++i)
    used += snprintf(text + used, sizeof texts[0] - size_t(used), "%s%lld", i ? "," : "", static_cast<long long>(t.dims[i]));
  snprintf(text + used, sizeof texts[0] - size_t(used), "]");
  return text;
}

}  // namespace tenonnx

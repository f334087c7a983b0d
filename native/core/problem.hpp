// Texts of what validation refuses. Compiled once for the baseline: kernel files, which are compiled per instruction
// set, must not instantiate the standard library's templates themselves.
#pragma once
#include <string>

#include "core/dtype.hpp"
#include "core/tensor.hpp"

namespace tenonnx {

std::string problem(const char* format, ...) __attribute__((format(printf, 1, 2)));
const char* dtype_name(DType t);

// "FLOAT[2,3]" in a buffer of the calling thread; the last four texts of a thread stay valid.
const char* describe(const Tensor& t);

}  // namespace tenonnx

#include "core/kernel.hpp"

namespace tenonnx::TENONNX_ISA_NS {

KernelTable movement_table() { return {nullptr, 0}; }

}  // namespace tenonnx::TENONNX_ISA_NS

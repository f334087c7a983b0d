// Which copies of the kernels this host can run.
#pragma once
#include <string_view>

namespace tenonnx {

enum class Isa { portable = 0, avx2 = 1, avx512 = 2 };  // each runs on hosts of the later ones

Isa host_isa();  // the best that this build holds and this CPU runs, or a lower one named by TENONNX_ISA
const char* isa_name(Isa isa);
bool parse_isa(std::string_view name, Isa* isa);  // false for an unknown name

}  // namespace tenonnx

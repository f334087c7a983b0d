#include "core/isa.hpp"

#include <cstdlib>

namespace tenonnx {

namespace {

Isa detect() {
#ifdef TENONNX_X86_KERNELS
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
  return avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::portable;
#else
  return Isa::portable;
#endif
}

}  // namespace

Isa host_isa() {
  static const Isa best = [] {
    const Isa found = detect();
    const char* asked = std::getenv("TENONNX_ISA");
    Isa wanted;
    return asked != nullptr && parse_isa(asked, &wanted) && wanted < found ? wanted : found;
  }();
  return best;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx512: return "avx512";
    case Isa::avx2: return "avx2";
    default: return "portable";
  }
}

bool parse_isa(std::string_view name, Isa* isa) {
  for (Isa candidate : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (name == isa_name(candidate)) {
      *isa = candidate;
      return true;
    }
  }
  return false;
}

}  // namespace tenonnx

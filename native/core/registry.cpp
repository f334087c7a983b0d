// Every kernel file adds one table per instruction set; a name resolves within the chosen set.
#include "core/kernel.hpp"

#define TENONNX_TABLES(X) \
  X(pack_table) X(pack_k_table) X(quantize_table) X(matmul_table) X(float_matmul_table) X(gather_packed_table) X(lookup_table) \
  X(attention_table) X(attention_decode_table) X(normalize_table) X(rotary_table) X(elementwise_table) X(binary_table) \
  X(movement_table) X(cache_table) X(decode_blocks_table) X(decode_superblocks_table) X(unpack_table) X(pages_table) \
  X(attention_paged_table) X(limits_table)
#define TENONNX_DECLARE(table) KernelTable table();
#define TENONNX_LIST(table) table(),

namespace tenonnx {
namespace portable { TENONNX_TABLES(TENONNX_DECLARE) }
#ifdef TENONNX_X86_KERNELS
namespace avx2 { TENONNX_TABLES(TENONNX_DECLARE) }
namespace avx512 { TENONNX_TABLES(TENONNX_DECLARE) }
#endif

namespace {
#define TENONNX_FIND(ns)                                      \
  {                                                           \
    using namespace ns;                                       \
    const KernelTable tables[] = {TENONNX_TABLES(TENONNX_LIST)}; \
    for (const KernelTable& table : tables)                   \
      for (int i = 0; i < table.count; ++i)                   \
        if (name == table.kernels[i].name) return &table.kernels[i]; \
    return nullptr;                                           \
  }

const Kernel* find_portable(std::string_view name) TENONNX_FIND(portable)
#ifdef TENONNX_X86_KERNELS
const Kernel* find_avx2(std::string_view name) TENONNX_FIND(avx2)
const Kernel* find_avx512(std::string_view name) TENONNX_FIND(avx512)
#endif
}  // namespace

const Kernel* find_kernel(std::string_view name, Isa isa) {
#ifdef TENONNX_X86_KERNELS
  if (isa == Isa::avx512) return find_avx512(name);
  if (isa == Isa::avx2) return find_avx2(name);
#endif
  (void)isa;
  return find_portable(name);
}

}  // namespace tenonnx

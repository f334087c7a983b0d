// What a kernel is: a name, a check of shapes and types made once, a number of independent tasks, and a function that
// does some of them. Tasks write disjoint bytes and split no sum, so results are the same bits for any number of threads.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "core/isa.hpp"
#include "core/tensor.hpp"

namespace tenonnx {

// Set by a check kernel, under one thread; the executor stops the run before the next step.
struct Fault {
  int32_t code = 0;  // 0: none
  int64_t found = 0, low = 0, high = 0, where = 0;
};
constexpr int32_t kFaultPosition = 1;  // found: position; low..high: what is allowed; where: row of the batch
constexpr int32_t kFaultIndex = 2;     // found: index; low..high: what is allowed; where: flat element
constexpr int32_t kFaultPage = 3;      // found: id of a page that is missing, or of another size; where: its place
constexpr int32_t kFaultRows = 4;      // found: position; high: pages named; where: rows to write
constexpr int32_t kFaultLength = 5;    // found: length; low..high: what is allowed; where: row of the batch

struct Args {
  const Tensor* in;
  int n_in;
  const Tensor* out;
  int n_out;
  const int64_t* ints;
  int n_ints;
  const double* floats;
  int n_floats;
  Fault* fault;

  bool has(int i) const { return i < n_in && in[i].present(); }
};

struct Kernel {
  const char* name;
  // Empty when types, ranks, dims and strides fit (data pointers are not yet known), else what does not.
  std::string (*validate)(const Args&);
  int64_t (*tasks)(const Args&);
  void (*run)(const Args&, int64_t begin, int64_t end);
};

struct KernelTable {
  const Kernel* kernels;
  int count;
};

const Kernel* find_kernel(std::string_view name, Isa isa);  // null when no such kernel

}  // namespace tenonnx

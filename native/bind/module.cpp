// The one file that knows Python: it converts, checks, releases the GIL, and nothing more.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "core/isa.hpp"
#include "core/kernel.hpp"
#include "runtime/pool.hpp"

namespace nb = nanobind;
using namespace tenonnx;

namespace {

Isa isa_of(const std::string& name) {
  Isa isa;
  if (name.empty()) return host_isa();
  if (!parse_isa(name, &isa)) throw nb::value_error(("unknown instruction set " + name).c_str());
  if (int(isa) > int(host_isa())) throw nb::value_error(("this host does not run " + name).c_str());
  return isa;
}

// (address, ONNX element type, dims, strides in elements); element type 0 is an absent optional input.
using TensorTuple = std::tuple<uintptr_t, int, std::vector<int64_t>, std::vector<int64_t>>;

Tensor tensor_of(nb::handle row) {
  if (row.is_none()) return {};
  nb::tuple fields = nb::cast<nb::tuple>(row);
  auto dims = nb::cast<std::vector<int64_t>>(fields[2]);
  auto strides = nb::cast<std::vector<int64_t>>(fields[3]);
  if (dims.size() > size_t(kMaxRank) || dims.size() != strides.size()) throw nb::value_error("rank over 8, or strides that do not fit dims");
  Tensor t;
  t.data = reinterpret_cast<std::byte*>(nb::cast<uintptr_t>(fields[0]));
  t.dtype = DType(nb::cast<int>(fields[1]));
  t.rank = int(dims.size());
  std::copy(dims.begin(), dims.end(), t.dims);
  std::copy(strides.begin(), strides.end(), t.strides);
  return t;
}

struct KernelCall {
  const Kernel* kernel;
  Args args;
  int64_t tasks, grain;
  int64_t next = 0;
};

// Runs one kernel over raw tensors: the door for tests of kernels and for packing at load.
nb::object run_kernel(const std::string& name, nb::list inputs, nb::list outputs, std::vector<int64_t> ints,
                      std::vector<double> floats, int threads, const std::string& isa) {
  const Kernel* kernel = find_kernel(name, isa_of(isa));
  if (kernel == nullptr) throw nb::value_error(("no kernel named " + name).c_str());
  std::vector<Tensor> in, out;
  for (nb::handle row : inputs) in.push_back(tensor_of(row));
  for (nb::handle row : outputs) out.push_back(tensor_of(row));
  Fault fault;
  Args args{in.data(), int(in.size()), out.data(), int(out.size()), ints.data(), int(ints.size()), floats.data(), int(floats.size()), &fault};
  const std::string problem = kernel->validate(args);
  if (!problem.empty()) throw nb::value_error((name + ": " + problem).c_str());
  {
    nb::gil_scoped_release release;
    KernelCall call{kernel, args, kernel->tasks(args), 1};
    const int wanted = threads > 0 ? threads : default_threads();
    call.grain = std::max<int64_t>(1, call.tasks / (4 * wanted));
    run_parallel(wanted, [](void* context, int, int) {
      auto& c = *static_cast<KernelCall*>(context);
      for (;;) {
        const int64_t begin = std::atomic_ref<int64_t>(c.next).fetch_add(c.grain, std::memory_order_relaxed);
        if (begin >= c.tasks) return;
        c.kernel->run(c.args, begin, std::min(begin + c.grain, c.tasks));
      }
    }, &call);
  }
  if (fault.code == 0) return nb::none();
  return nb::make_tuple(fault.code, fault.found, fault.low, fault.high, fault.where);
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("run_kernel", &run_kernel, nb::arg("name"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("ints") = std::vector<int64_t>{},
        nb::arg("floats") = std::vector<double>{}, nb::arg("threads") = 0, nb::arg("isa") = "",
        "Validate and run one kernel over tensors given as (address, element type, dims, strides in elements), None for an absent "
        "input. Returns None, or the fault (code, found, low, high, where) that a check kernel reported.");
  m.def("host_isa", [] { return std::string(isa_name(host_isa())); }, "The instruction set whose kernels this host runs.");
  m.def("has_kernel", [](const std::string& name, const std::string& isa) { return find_kernel(name, isa_of(isa)) != nullptr; },
        nb::arg("name"), nb::arg("isa") = "");
  m.def("default_threads", &default_threads, "Processors that this process may run on.");
}

// The one file that knows Python: it converts, checks, releases the GIL, and nothing more.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bind/without_gil.hpp"
#include "core/isa.hpp"
#include "core/kernel.hpp"
#include "core/ledger.hpp"
#include "core/struct_size.hpp"
#include "runtime/pool.hpp"
#include "runtime/program.hpp"
#include "runtime/stack.hpp"

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

// A row of a table; nanobind itself takes a tuple's length on trust.
nb::tuple row_of(nb::handle row, size_t fields) {
  if (!nb::isinstance<nb::tuple>(row)) throw nb::type_error("a row of a table is no tuple");
  nb::tuple tuple = nb::cast<nb::tuple>(row);
  if (tuple.size() != fields) throw nb::value_error("a row of a table has another number of fields");
  return tuple;
}

Tensor tensor_of(nb::handle row) {
  if (row.is_none()) return {};
  nb::tuple fields = row_of(row, 4);
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

  static void run(void* context, int64_t slice) {
    const KernelCall& c = *static_cast<KernelCall*>(context);
    c.kernel->run(c.args, slice * c.grain, std::min((slice + 1) * c.grain, c.tasks));
  }
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
    WithoutGil released;
    with_stack([&] {
      Team team(threads > 0 ? threads : default_threads());
      KernelCall call{kernel, args, kernel->tasks(args), 1};
      call.grain = std::max<int64_t>(1, call.tasks / (4 * team.threads()));
      team.begin((call.tasks + call.grain - 1) / call.grain, KernelCall::run, &call);
      team.finish();
    });
  }
  if (fault.code == 0) return nb::none();
  return nb::make_tuple(fault.code, fault.found, fault.low, fault.high, fault.where);
}

// Rows of (kind, a, b) as struct_size.hpp has them.
uint64_t size_of_struct(const std::vector<std::tuple<int, uint64_t, uint64_t>>& rows) {
  std::vector<StructNode> nodes;
  for (const auto& [kind, a, b] : rows) nodes.push_back({StructKind(kind), a, b});
  uint64_t bits = 0;
  switch (struct_bits(nodes, &bits)) {
    case SizeProblem::overflow: throw std::overflow_error("the size leaves uint64");
    case SizeProblem::malformed: throw nb::value_error("the rows are no type");
    default: return bits;
  }
}

Purpose purpose_of(const std::string& name) {
  for (int i = 0; i < int(Purpose::count); ++i)
    if (name == purpose_name(Purpose(i))) return Purpose(i);
  throw nb::value_error(("unknown purpose " + name).c_str());
}

nb::dict ledger() {
  nb::dict accounts;
  for (int i = 0; i < int(Purpose::count); ++i) {
    const Account a = account(Purpose(i));
    nb::dict row;
    row["bytes"] = a.bytes;
    row["peak"] = a.peak;
    row["allocations"] = a.allocations;
    row["total"] = a.total;
    accounts[purpose_name(Purpose(i))] = row;
  }
  return accounts;
}

// (space, slot, offset, element type, dims, strides, address of a fixed value)
ValueSpec value_of(nb::handle row) {
  nb::tuple f = row_of(row, 7);
  ValueSpec value;
  value.space = Space(nb::cast<int>(f[0]));
  value.slot = nb::cast<int>(f[1]);
  value.offset = nb::cast<int64_t>(f[2]);
  value.tensor = tensor_of(nb::make_tuple(f[6], f[3], f[4], f[5]));
  return value;
}

// (kernel name or None for another engine's step, label, inputs, outputs, ints, floats, parallel, sync, guards)
StepSpec step_of(nb::handle row, Isa isa) {
  nb::tuple f = row_of(row, 9);
  StepSpec step;
  step.name = nb::cast<std::string>(f[1]);
  if (!f[0].is_none()) {
    const std::string kernel = nb::cast<std::string>(f[0]);
    step.kernel = find_kernel(kernel, isa);
    if (step.kernel == nullptr) throw nb::value_error(("no kernel named " + kernel).c_str());
  }
  step.inputs = nb::cast<std::vector<int>>(f[2]);
  step.outputs = nb::cast<std::vector<int>>(f[3]);
  step.ints = nb::cast<std::vector<int64_t>>(f[4]);
  step.floats = nb::cast<std::vector<double>>(f[5]);
  step.parallel = nb::cast<bool>(f[6]);
  step.sync = nb::cast<bool>(f[7]);
  for (nb::handle guard : nb::cast<nb::list>(f[8])) {
    nb::tuple pair = row_of(guard, 2);
    step.guards.emplace_back(nb::cast<int>(pair[0]), nb::cast<bool>(pair[1]));
  }
  return step;
}

Program* make_program(nb::list values, nb::list steps, int64_t arena_bytes, std::vector<int64_t> slot_bytes, const std::string& isa,
                      Arenas* arenas) {
  if (arena_bytes < 0) throw nb::value_error("a negative arena");
  std::vector<ValueSpec> value_specs;
  std::vector<StepSpec> step_specs;
  for (nb::handle row : values) value_specs.push_back(value_of(row));
  for (nb::handle row : steps) step_specs.push_back(step_of(row, isa_of(isa)));
  return new Program(std::move(value_specs), std::move(step_specs), arena_bytes, std::move(slot_bytes), arenas);
}

template <typename T>
using Numbers = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// One run's lease of a program's arena; given back when closed or dropped.
class Lease {
 public:
  explicit Lease(Program& program) : program_(program), run_(program.acquire()) {}
  ~Lease() { close(); }
  void close() {
    if (run_) program_.release(std::move(run_));
  }
  void bind(const Numbers<uint64_t>& slots) {
    std::vector<std::byte*> pointers(slots.size());
    for (size_t i = 0; i < pointers.size(); ++i) pointers[i] = reinterpret_cast<std::byte*>(uintptr_t(slots.data()[i]));
    program_.bind(run(), pointers);
    bound_ = true;
  }
  nb::bytes addresses(const Numbers<int32_t>& values) {
    std::vector<uint64_t> found(values.size());
    Run& run = bound();
    for (size_t i = 0; i < found.size(); ++i) found[i] = reinterpret_cast<uintptr_t>(run.address(values.data()[i]));
    return nb::bytes(found.data(), found.size() * sizeof(uint64_t));
  }
  bool taken(int step) { return program_.taken(bound(), step); }
  int64_t count(int step) { return bound().count(step); }
  nb::object execute(int first, int last, int threads) {
    Run& run = bound();
    if (!program_.runs(first, last)) throw nb::value_error("no such native steps");
    Failure failure;
    {
      WithoutGil released;
      with_stack([&] { failure = program_.execute(run, first, last, std::max(1, threads)); });
    }
    if (failure.step < 0) return nb::none();
    const Fault& f = failure.fault;
    return nb::make_tuple(failure.step, f.code, f.found, f.low, f.high, f.where);
  }

 private:
  Run& run() {
    if (!run_) throw std::runtime_error("this run was closed");
    return *run_;
  }
  Run& bound() {
    if (!bound_) throw std::runtime_error("this run has nothing bound");
    return run();
  }
  Program& program_;
  std::unique_ptr<Run> run_;
  bool bound_ = false;
};

}  // namespace

NB_MODULE(_native, m) {
  nb::set_leak_warnings(false);  // a thread that still computes when the interpreter ends keeps its objects

  m.def("run_kernel", &run_kernel, nb::arg("name"), nb::arg("inputs"), nb::arg("outputs"), nb::arg("ints") = std::vector<int64_t>{},
        nb::arg("floats") = std::vector<double>{}, nb::arg("threads") = 0, nb::arg("isa") = "",
        "Validate and run one kernel over tensors given as (address, element type, dims, strides in elements), None for an absent "
        "input. Returns None, or the fault (code, found, low, high, where) that a check kernel reported.");
  m.def("host_isa", [] { return std::string(isa_name(host_isa())); }, "The instruction set whose kernels this host runs.");
  m.def("has_kernel", [](const std::string& name, const std::string& isa) { return find_kernel(name, isa_of(isa)) != nullptr; },
        nb::arg("name"), nb::arg("isa") = "");
  m.def("struct_bits", &size_of_struct, nb::arg("nodes"),
        "Size in bits of a structured type given as rows (kind, a, b), inner nodes first; OverflowError where it leaves uint64.");
  m.def("default_threads", &default_threads, "Processors that this process may run on.");

  m.def("ledger", &ledger, "Bytes held, peak, allocations and total bytes ever allocated, by purpose.");
  m.def("reset_peaks", &reset_peaks, "Set each purpose's peak to the bytes held now.");

  nb::class_<Buffer>(m, "Buffer", "Zeroed, aligned memory, counted in the ledger under its purpose.")
      .def("__init__", [](Buffer* self, size_t bytes, const std::string& purpose) { new (self) Buffer(bytes, purpose_of(purpose)); },
           nb::arg("bytes"), nb::arg("purpose"))
      .def_prop_ro("address", [](const Buffer& b) { return reinterpret_cast<uintptr_t>(b.data()); })
      .def_prop_ro("nbytes", &Buffer::size)
      .def("array", [](Buffer& b) { return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(b.data(), {b.size()}, nb::find(b)); },
           "UINT8[nbytes] over the memory, which it keeps alive.");

  nb::class_<Arenas>(m, "Arenas", "Idle arenas that programs lend each other.").def(nb::init<>());

  nb::class_<Program>(m, "Program", "A plan's table of values and steps, checked once, replayed for every run.")
      .def(nb::new_(&make_program), nb::arg("values"), nb::arg("steps"), nb::arg("arena_bytes"), nb::arg("slot_bytes"), nb::arg("isa") = "",
           nb::arg("arenas") = nb::none(), nb::keep_alive<0, 7>(), "Runs borrow their arena from `arenas`, or the program has its own.")
      .def("lease", [](Program& program) { return new Lease(program); }, nb::keep_alive<0, 1>(), nb::rv_policy::take_ownership);

  nb::class_<Lease>(m, "Lease")
      .def("bind", &Lease::bind, nb::arg("slots"))
      .def("addresses", &Lease::addresses, nb::arg("values"), "Where element 0 of each value lies, as the bytes of UINT64s.")
      .def("taken", &Lease::taken, nb::arg("step"), "Whether the guards of a step hold now.")
      .def("count", &Lease::count, nb::arg("step"), "How often a native step ran since the run was bound.")
      .def("execute", &Lease::execute, nb::arg("first"), nb::arg("last"), nb::arg("threads"))
      .def("close", &Lease::close);
}

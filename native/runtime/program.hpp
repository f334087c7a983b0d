// A plan made executable: the table of values and steps, checked once, replayed for every run.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/isa.hpp"
#include "core/kernel.hpp"
#include "core/ledger.hpp"
#include "runtime/arenas.hpp"

namespace tenonnx {

// Where a value's bytes are: in the arena, behind a pointer that each run binds, or behind one fixed for the program.
enum class Space { arena = 0, slot = 1, fixed = 2 };

struct ValueSpec {
  Tensor tensor;  // dtype, dims and strides; data is set for Space::fixed alone
  Space space = Space::arena;
  int slot = -1;
  int64_t offset = 0;  // bytes from the arena's or the slot's begin to element 0
};

struct StepSpec {
  const Kernel* kernel = nullptr;
  std::string name;
  std::vector<int> inputs, outputs;  // value ids, -1 for an absent input
  std::vector<int64_t> ints;
  std::vector<double> floats;
  std::vector<std::pair<int, bool>> guards;  // runs only where each BOOL value is as expected
  bool parallel = false;  // else the caller's thread runs it alone
  bool sync = false;      // all that came before must be done
};

struct Failure {
  int step = -1;  // -1: none
  Fault fault;
};

// What one run binds: an arena that is lent to it, and every step's arguments resolved to addresses.
class Run {
 public:
  std::byte* address(int value) const { return addresses_.at(size_t(value)); }  // std::out_of_range for no value of the plan
  int64_t count(int step) const { return counts_.at(size_t(step)); }  // times that a native step ran

 private:
  friend class Program;
  Buffer arena_;  // while it is leased
  const std::byte* arena_begin_ = nullptr;  // where it lay last
  std::vector<std::byte*> slots_, addresses_;
  std::vector<Tensor> tensors_;  // arguments of all steps, in order
  std::vector<int64_t> counts_;
  Fault fault_;
};

class Program {
 public:
  // Throws std::invalid_argument naming the step when a table entry does not fit its kernel, the arena or a slot. Runs
  // borrow from `arenas`, which outlive the program; null: it has its own.
  Program(std::vector<ValueSpec> values, std::vector<StepSpec> steps, int64_t arena_bytes, std::vector<int64_t> slot_bytes,
          Arenas* arenas = nullptr);

  std::unique_ptr<Run> acquire();
  void release(std::unique_ptr<Run> run);
  void bind(Run& run, const std::vector<std::byte*>& slots) const;
  Failure execute(Run& run, int first, int last, int threads) const;
  bool runs(int first, int last) const;  // whether these steps exist and each has a kernel
  bool taken(const Run& run, int step) const;  // whether its guards hold; std::out_of_range for no step of the plan

 private:
  std::unique_ptr<Run> idle();  // null where none is
  std::unique_ptr<Run> fresh() const;
  void check_values() const;
  void check_step(size_t index) const;
  int phase_end(int first, int last) const;
  Args args(const Run& run, size_t step, Fault* fault) const;

  std::vector<ValueSpec> values_;
  std::vector<StepSpec> steps_;
  std::vector<size_t> first_tensor_;  // of each step in Run::tensors_
  int64_t arena_bytes_;
  std::vector<int64_t> slot_bytes_;
  std::unique_ptr<Arenas> own_;
  Arenas* arenas_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Run>> idle_;
  size_t runs_ = 0;
};

}  // namespace tenonnx

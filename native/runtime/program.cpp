#include "runtime/program.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/pool.hpp"

namespace tenonnx {
namespace {

// Bytes from element 0 to the end of the last one; -1 for a negative stride or a size that wraps.
int64_t extent(const Tensor& t) {
  int64_t last = 0;
  for (int i = 0; i < t.rank; ++i) {
    if (t.dims[i] < 0 || t.strides[i] < 0) return -1;
    if (t.dims[i] == 0) return 0;
    int64_t span;
    if (__builtin_mul_overflow(t.dims[i] - 1, t.strides[i], &span) || __builtin_add_overflow(last, span, &last)) return -1;
  }
  int64_t bytes;
  if (__builtin_add_overflow(last, int64_t(1), &last) || __builtin_mul_overflow(last, size_of(t.dtype), &bytes)) return -1;
  return bytes;
}

}  // namespace

Program::Program(std::vector<ValueSpec> values, std::vector<StepSpec> steps, int64_t arena_bytes, std::vector<int64_t> slot_bytes,
                 Arenas* arenas)
    : values_(std::move(values)), steps_(std::move(steps)), arena_bytes_(arena_bytes), slot_bytes_(std::move(slot_bytes)),
      own_(arenas == nullptr ? std::make_unique<Arenas>() : nullptr), arenas_(arenas == nullptr ? own_.get() : arenas) {
  check_values();
  size_t tensors = 0;
  for (const StepSpec& step : steps_) {
    first_tensor_.push_back(tensors);
    tensors += step.inputs.size() + step.outputs.size();
  }
  for (size_t i = 0; i < steps_.size(); ++i) check_step(i);
}

void Program::check_values() const {
  for (size_t i = 0; i < values_.size(); ++i) {
    const ValueSpec& v = values_[i];
    const int64_t bytes = extent(v.tensor);
    int64_t room = -1;
    if (v.space == Space::arena) room = arena_bytes_;
    else if (v.space == Space::fixed) room = v.tensor.data != nullptr || bytes == 0 ? INT64_MAX : -1;
    else if (v.space == Space::slot && v.slot >= 0 && v.slot < int(slot_bytes_.size())) room = slot_bytes_[size_t(v.slot)];
    if (size_of(v.tensor.dtype) == 0 || bytes < 0 || v.offset < 0 || v.offset > room || bytes > room - v.offset) {
      throw std::invalid_argument("value " + std::to_string(i) + " of the plan does not fit its storage");
    }
  }
}

void Program::check_step(size_t index) const {
  const StepSpec& step = steps_[index];
  std::vector<Tensor> tensors;
  for (const std::vector<int>* ids : {&step.inputs, &step.outputs}) {
    for (int id : *ids) {
      if (id >= int(values_.size()) || (id < 0 && ids == &step.outputs)) {
        throw std::invalid_argument("step " + std::to_string(index) + " names a value that the plan does not have");
      }
      tensors.push_back(id < 0 ? Tensor{} : values_[size_t(id)].tensor);
    }
  }
  for (const auto& [id, expected] : step.guards) {
    const bool fits = id >= 0 && id < int(values_.size());
    if (!fits || values_[size_t(id)].tensor.dtype != DType::Bool || values_[size_t(id)].tensor.size() != 1) {
      throw std::invalid_argument("step " + std::to_string(index) + " is guarded by what is no BOOL value of one element");
    }
  }
  if (step.kernel == nullptr) return;  // run by another engine
  Fault fault;
  const Args call{tensors.data(), int(step.inputs.size()), tensors.data() + step.inputs.size(), int(step.outputs.size()),
                  step.ints.data(), int(step.ints.size()), step.floats.data(), int(step.floats.size()), &fault};
  const std::string problem = step.kernel->validate(call);
  if (!problem.empty()) {
    throw std::invalid_argument("step " + std::to_string(index) + " (" + step.kernel->name + " for " + step.name + "): " + problem);
  }
}

std::unique_ptr<Run> Program::acquire() {
  std::unique_ptr<Run> run = idle();
  if (run == nullptr) run = fresh();
  const std::byte* before = run->arena_begin_;
  run->arena_ = arenas_->take(size_t(arena_bytes_));
  run->arena_begin_ = run->arena_.data();
  if (run->arena_begin_ != before) run->slots_.clear();  // all addresses are found anew
  return run;
}

std::unique_ptr<Run> Program::idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.empty()) {
    idle_.reserve(++runs_);  // so that release() never has to allocate
    return nullptr;
  }
  std::unique_ptr<Run> run = std::move(idle_.back());
  idle_.pop_back();
  return run;
}

std::unique_ptr<Run> Program::fresh() const {
  auto run = std::make_unique<Run>();
  run->addresses_.resize(values_.size());
  run->counts_.resize(steps_.size());
  for (const StepSpec& step : steps_) {
    for (const std::vector<int>* ids : {&step.inputs, &step.outputs})
      for (int id : *ids) run->tensors_.push_back(id < 0 ? Tensor{} : values_[size_t(id)].tensor);
  }
  return run;
}

void Program::release(std::unique_ptr<Run> run) {
  arenas_->give(std::move(run->arena_));
  std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(run));
}

void Program::bind(Run& run, const std::vector<std::byte*>& slots) const {
  if (slots.size() != slot_bytes_.size()) throw std::invalid_argument("a run binds another number of slots than the plan has");
  run.fault_ = Fault{};
  std::fill(run.counts_.begin(), run.counts_.end(), 0);
  if (run.slots_ == slots && !slots.empty()) return;
  run.slots_ = slots;
  for (size_t i = 0; i < values_.size(); ++i) {
    const ValueSpec& v = values_[i];
    if (v.space == Space::fixed) run.addresses_[i] = v.tensor.data;
    else run.addresses_[i] = (v.space == Space::arena ? run.arena_.data() : slots[size_t(v.slot)]) + v.offset;
  }
  size_t position = 0;
  for (const StepSpec& step : steps_) {
    for (const std::vector<int>* ids : {&step.inputs, &step.outputs})
      for (int id : *ids) run.tensors_[position++].data = id < 0 ? nullptr : run.addresses_[size_t(id)];
  }
}

Args Program::args(const Run& run, size_t step, Fault* fault) const {
  const StepSpec& s = steps_[step];
  const Tensor* tensors = run.tensors_.data() + first_tensor_[step];
  return {tensors, int(s.inputs.size()), tensors + s.inputs.size(), int(s.outputs.size()),
          s.ints.data(), int(s.ints.size()), s.floats.data(), int(s.floats.size()), fault};
}

bool Program::runs(int first, int last) const {
  if (first < 0 || first > last || last > int(steps_.size())) return false;
  for (int i = first; i < last; ++i)
    if (steps_[size_t(i)].kernel == nullptr) return false;
  return true;
}

bool Program::taken(const Run& run, int step) const {
  for (const auto& [id, expected] : steps_.at(size_t(step)).guards)
    if ((*run.addresses_[size_t(id)] != std::byte{0}) != expected) return false;
  return true;
}

// The end of the phase that begins at `first`: steps up to the next that must wait for what came before.
int Program::phase_end(int first, int last) const {
  int end = first + 1;
  while (end < last && !steps_[size_t(end)].sync) ++end;
  return end;
}

namespace {

// The parallel steps of one phase as one row of tasks, each a slice of a step's own.
struct Slices {
  static constexpr int kMost = 64;
  struct Part {
    const Kernel* kernel;
    Args args;
    int64_t tasks, grain, first;  // first: slice at which this part begins
  };
  Part parts[kMost];
  int count = 0;
  int64_t slices = 0;

  void add(const Kernel* kernel, const Args& args, int threads) {
    const int64_t tasks = kernel->tasks(args);
    if (tasks <= 0) return;
    const int64_t grain = std::max<int64_t>(1, tasks / (4 * threads));
    parts[count++] = {kernel, args, tasks, grain, slices};
    slices += (tasks + grain - 1) / grain;
  }

  static void run(void* context, int64_t slice) {
    const Slices& all = *static_cast<Slices*>(context);
    int i = all.count - 1;
    while (all.parts[i].first > slice) --i;
    const Part& part = all.parts[i];
    const int64_t begin = (slice - part.first) * part.grain;
    part.kernel->run(part.args, begin, std::min(begin + part.grain, part.tasks));
  }
};

}  // namespace

Failure Program::execute(Run& run, int first, int last, int threads) const {
  // A team that nobody gives work to would only keep processors from whoever runs next.
  const auto steps = steps_.begin();
  const bool parallel = std::any_of(steps + first, steps + last, [](const StepSpec& step) { return step.parallel; });
  Team team(parallel ? threads : 1);
  for (int begin = first, end; begin < last; begin = end) {
    end = phase_end(begin, last);
    Slices slices;
    for (int i = begin; i < end; ++i) {
      const StepSpec& step = steps_[size_t(i)];
      if (!step.parallel) continue;
      if (slices.count == Slices::kMost) {
        end = i;
        break;
      }
      if (!taken(run, i)) continue;
      ++run.counts_[size_t(i)];
      slices.add(step.kernel, args(run, size_t(i), &run.fault_), team.threads());
    }
    if (slices.slices > 0) team.begin(slices.slices, Slices::run, &slices);
    int failed = -1;
    for (int i = begin; i < end && failed < 0; ++i) {
      const StepSpec& step = steps_[size_t(i)];
      if (step.parallel || !taken(run, i)) continue;
      ++run.counts_[size_t(i)];
      const Args call = args(run, size_t(i), &run.fault_);
      step.kernel->run(call, 0, step.kernel->tasks(call));
      if (run.fault_.code != 0) failed = i;
    }
    if (slices.slices > 0) team.finish();
    if (failed >= 0) return {failed, run.fault_};
  }
  return {};
}

}  // namespace tenonnx

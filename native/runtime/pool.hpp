// The process's one pool of worker threads, lent to one run at a time. Workers help, they are never waited for unless they
// hold a task: on a busy machine the caller does what a descheduled worker has not begun.
#pragma once
#include <cstdint>

namespace tenonnx {

int default_threads();  // processors this process may run on

// The pool for the duration of one run. Where another run has it, the caller works alone: results do not depend on that.
class Team {
 public:
  using Body = void (*)(void* context, int64_t task);

  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int threads() const { return threads_; }

  // Begin tasks 0..count-1 on the workers; finish() does the rest here and returns when all are done. Between the two the
  // caller may do other work.
  void begin(int64_t count, Body body, void* context);
  void finish();

 private:
  int threads_;
};

}  // namespace tenonnx

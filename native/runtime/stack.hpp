// Stack for kernels, which keep their tiles there: attention takes 0.7 MB. Callers may have less, under `ulimit -s` or on
// threads with a small stack of their own.
#pragma once
#include <exception>
#include <new>
#include <utility>

namespace tenonnx {

// A thread with stack for any kernel, running body(context); false where the system gives none. `join` waits for its end.
bool start_thread(void* (*body)(void*), void* context, bool join);

bool stack_suffices();  // whether the calling thread has enough left for any kernel

// Runs `body` here, or on a thread of its own where the stack that is left would not suffice. Throws what the body does,
// and std::bad_alloc where that thread cannot be had.
template <typename F>
void with_stack(F&& body) {
  if (stack_suffices()) return body();
  std::exception_ptr thrown;
  auto caught = [&] {
    try {
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
  };
  using Caught = decltype(caught);
  const auto entry = [](void* context) -> void* { return (*static_cast<Caught*>(context))(), nullptr; };
  if (!start_thread(entry, &caught, true)) throw std::bad_alloc();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace tenonnx

#include "runtime/stack.hpp"

#include <pthread.h>

#include <cstddef>

namespace tenonnx {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kKernelStack = size_t(4) << 20;  // frames grow by what guards their arrays
#else
constexpr size_t kKernelStack = size_t(1) << 20;
#endif

std::byte* lowest_address() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return nullptr;
  void* lowest = nullptr;
  size_t size = 0;
  pthread_attr_getstack(&attributes, &lowest, &size);
  pthread_attr_destroy(&attributes);
  return static_cast<std::byte*>(lowest);
}

}  // namespace

bool start_thread(void* (*body)(void*), void* context, bool join) {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_t thread;
  const bool started = pthread_attr_setstacksize(&attributes, 2 * kKernelStack) == 0 &&
                       pthread_create(&thread, &attributes, body, context) == 0;
  pthread_attr_destroy(&attributes);
  if (started && join) pthread_join(thread, nullptr);
  else if (started) pthread_detach(thread);
  return started;
}

bool stack_suffices() {
  thread_local std::byte* const lowest = lowest_address();
  return size_t(static_cast<std::byte*>(__builtin_frame_address(0)) - lowest) > kKernelStack;
}

}  // namespace tenonnx

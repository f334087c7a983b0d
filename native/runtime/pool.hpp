// The process's one pool of worker threads. Workers spin briefly after a call, then park.
#pragma once
#include <cstdint>

namespace tenonnx {

// Runs body(context, thread) for thread 0..n-1, thread 0 being the caller; returns how many threads took part. When
// another call holds the pool the caller does all alone (returns 1): results do not depend on the number of threads.
using PoolBody = void (*)(void* context, int thread, int threads);
int run_parallel(int threads, PoolBody body, void* context);

int default_threads();  // processors this process may run on

// A counter that all threads of one run pass together; spinning first, as steps are short.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait();

 private:
  const int threads_;
  alignas(64) int64_t arrived_ = 0;
  alignas(64) int64_t generation_ = 0;
};

}  // namespace tenonnx

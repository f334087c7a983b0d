#include "runtime/pool.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tenonnx {
namespace {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

constexpr int kSpins = 20000;  // some 100 µs: longer than a step, shorter than a user's pause between tokens

struct Job {
  PoolBody body;
  void* context;
  int threads;
};

class Pool {
 public:
  int run(int threads, PoolBody body, void* context) {
    std::unique_lock<std::mutex> busy(busy_, std::try_to_lock);
    if (threads <= 1 || !busy.owns_lock()) {
      body(context, 0, 1);
      return 1;
    }
    grow(threads - 1);
    job_ = {body, context, threads};
    pending_.store(int(workers_.size()), std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(wake_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (parked_.load(std::memory_order_seq_cst) > 0) start_.notify_all();
    body(context, 0, threads);
    for (int spin = 0; pending_.load(std::memory_order_acquire) != 0; ++spin) {
      if (spin < kSpins) relax();
      else std::this_thread::yield();
    }
    return threads;
  }

 private:
  void grow(int workers) {
    for (int i = int(workers_.size()); i < workers; ++i) {
      workers_.emplace_back([this, i, seen = generation_.load()] { loop(i + 1, seen); });
      workers_.back().detach();  // a worker only ever waits: it needs no farewell at exit
    }
  }

  void loop(int thread, int64_t seen) {
    for (;;) {
      for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) relax();
      if (generation_.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> lock(wake_);
        parked_.fetch_add(1, std::memory_order_seq_cst);
        start_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
        parked_.fetch_sub(1, std::memory_order_seq_cst);
      }
      seen = generation_.load(std::memory_order_acquire);
      const Job job = job_;
      if (thread < job.threads) job.body(job.context, thread, job.threads);
      // Also a worker that this call did not need answers, or it could read job_ while the next call writes it.
      pending_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  std::mutex busy_, wake_;
  std::condition_variable start_;
  std::vector<std::thread> workers_;
  Job job_{};
  std::atomic<int> pending_{0}, parked_{0};
  std::atomic<int64_t> generation_{0};
};

// A child of fork() has none of its parent's threads: it gets a pool of its own. The old one is leaked on purpose.
Pool& pool() {
  static std::mutex mutex;
  static Pool* instance = nullptr;
  static pid_t owner = 0;
  std::lock_guard<std::mutex> lock(mutex);
  if (instance == nullptr || owner != getpid()) {
    instance = new Pool;
    owner = getpid();
  }
  return *instance;
}

}  // namespace

int run_parallel(int threads, PoolBody body, void* context) { return pool().run(threads, body, context); }

int default_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, int(std::thread::hardware_concurrency()));
}

void Barrier::wait() {
  std::atomic_ref<int64_t> arrived(arrived_), generation(generation_);
  const int64_t mine = generation.load(std::memory_order_acquire);
  if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads_ - 1) {
    arrived.store(0, std::memory_order_relaxed);
    generation.store(mine + 1, std::memory_order_release);
    return;
  }
  for (int spin = 0; generation.load(std::memory_order_acquire) == mine; ++spin) {
    if (spin < kSpins) relax();
    else std::this_thread::yield();
  }
}

}  // namespace tenonnx

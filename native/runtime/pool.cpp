#include "runtime/pool.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "runtime/stack.hpp"

namespace tenonnx {
namespace {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// A waiting thread first only pauses, then also offers its processor to others, and a worker at last parks.
constexpr int kPauses = 2000;    // some tens of µs: longer than the serial steps between two parallel ones
constexpr int kYields = 1000;    // about a millisecond: longer than a user's work between two tokens

class Pool {
 public:
  std::mutex in_use;

  // Starts workers up to `wanted`; how many of those there are, which may be fewer where the system gives no more threads.
  int grow(int wanted) {
    // A worker only ever waits: it needs no farewell at exit.
    while (workers_ < wanted && start_thread(&Pool::enter, this, false)) ++workers_;
    return std::min(workers_, wanted);
  }

  void begin(int helpers, int64_t count, Team::Body body, void* context) {
    body_ = body;
    context_ = context;
    count_ = count;
    helpers_ = helpers;
    next_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_seq_cst);  // odd: open
    if (helpers > 0 && parked_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(wake_);
      start_.notify_all();
    }
  }

  // Once closed, no worker begins a task; those that hold one are inside until they have done it.
  void finish() {
    work();
    generation_.fetch_add(1, std::memory_order_seq_cst);
    for (int spin = 0; inside_.load(std::memory_order_seq_cst) != 0; ++spin) {
      if (spin < kPauses) relax();
      else std::this_thread::yield();
    }
  }

 private:
  void work() {
    for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) body_(context_, task);
  }

  // Entering before looking again makes sure that finish() sees whoever has seen an open generation.
  bool help(int worker, uint64_t generation) {
    inside_.fetch_add(1, std::memory_order_seq_cst);
    const bool open = generation_.load(std::memory_order_seq_cst) == generation;
    if (open && worker < helpers_) work();
    inside_.fetch_sub(1, std::memory_order_seq_cst);
    return open;
  }

  static void* enter(void* pool) {
    Pool& self = *static_cast<Pool*>(pool);
    self.loop(self.entered_.fetch_add(1));
    return nullptr;
  }

  void loop(int worker) {
    uint64_t done = 0;
    for (int idle = 0;;) {
      const uint64_t seen = generation_.load(std::memory_order_acquire);
      if (seen % 2 == 1 && seen != done && help(worker, seen)) {
        done = seen;
        idle = 0;
      } else if (++idle < kPauses) {
        relax();
      } else if (idle < kPauses + kYields) {
        std::this_thread::yield();
      } else {
        std::unique_lock<std::mutex> lock(wake_);
        parked_.fetch_add(1, std::memory_order_seq_cst);
        start_.wait(lock, [&] {
          const uint64_t now = generation_.load(std::memory_order_seq_cst);
          return now % 2 == 1 && now != done;
        });
        parked_.fetch_sub(1, std::memory_order_seq_cst);
        idle = 0;
      }
    }
  }

  int workers_ = 0;
  std::mutex wake_;
  std::condition_variable start_;
  Team::Body body_ = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
  int helpers_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint64_t> generation_{0};
  alignas(64) std::atomic<int> inside_{0};
  std::atomic<int> parked_{0}, entered_{0};
};

std::atomic<Pool*> instance{nullptr};

// Without a lock, which a thread that fork() leaves behind could hold. A child has none of its parent's threads and gets a
// pool of its own; the old one is leaked on purpose.
Pool& pool() {
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] { instance.store(nullptr); });
  static_cast<void>(at_fork);
  Pool* found = instance.load();
  if (found != nullptr) return *found;
  auto made = std::make_unique<Pool>();
  return instance.compare_exchange_strong(found, made.get()) ? *made.release() : *found;
}

// Tasks begun by a caller that works alone; one run at a time per thread.
struct Alone {
  int64_t count;
  Team::Body body;
  void* context;
};
thread_local Alone alone{};

}  // namespace

Team::Team(int threads) : threads_(1) {
  if (threads < 2 || !pool().in_use.try_lock()) return;
  threads_ += pool().grow(threads - 1);
  if (threads_ == 1) pool().in_use.unlock();
}

Team::~Team() {
  if (threads_ > 1) pool().in_use.unlock();
}

void Team::begin(int64_t count, Body body, void* context) {
  if (threads_ > 1) pool().begin(threads_ - 1, count, body, context);
  else alone = {count, body, context};
}

void Team::finish() {
  if (threads_ > 1) {
    pool().finish();
    return;
  }
  for (int64_t task = 0; task < alone.count; ++task) alone.body(alone.context, task);
}

int default_threads() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, int(std::thread::hardware_concurrency()));
}

}  // namespace tenonnx

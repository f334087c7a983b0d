// Arenas that nobody runs in at the moment, lent to whatever program runs next: plans for prompts of many lengths then take
// the memory of one.
#pragma once
#include <mutex>
#include <vector>

#include "core/ledger.hpp"

namespace tenonnx {

class Arenas {
 public:
  // The smallest idle arena that is large enough, else a new one, for which the largest of those too small makes room.
  Buffer take(size_t bytes);  // throws std::bad_alloc
  void give(Buffer arena);

 private:
  std::mutex mutex_;
  std::vector<Buffer> idle_;
  size_t lent_ = 0;
};

}  // namespace tenonnx

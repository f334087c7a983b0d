#include "runtime/arenas.hpp"

#include <algorithm>
#include <utility>

namespace tenonnx {

Buffer Arenas::take(size_t bytes) {
  Buffer found;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto better = [bytes](const Buffer& a, const Buffer& b) {
      if ((a.size() >= bytes) != (b.size() >= bytes)) return a.size() >= bytes;
      return a.size() >= bytes ? a.size() < b.size() : a.size() > b.size();
    };
    const auto best = std::min_element(idle_.begin(), idle_.end(), better);
    if (best != idle_.end()) {
      std::swap(*best, idle_.back());
      found = std::move(idle_.back());
      idle_.pop_back();
    }
    idle_.reserve(idle_.size() + ++lent_);  // so that give() never has to allocate
  }
  if (found.data() != nullptr && found.size() >= bytes) return found;
  found = Buffer();
  try {
    return Buffer(bytes, Purpose::arena);
  } catch (...) {
    std::lock_guard<std::mutex> lock(mutex_);
    --lent_;
    throw;
  }
}

void Arenas::give(Buffer arena) {
  std::lock_guard<std::mutex> lock(mutex_);
  --lent_;
  idle_.push_back(std::move(arena));
}

}  // namespace tenonnx

#include "core/slabs.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace tenonnx {
namespace {

constexpr size_t kSlab = size_t(2) << 20;

std::byte* slab_of(std::byte* cell) { return cell - reinterpret_cast<uintptr_t>(cell) % kSlab; }

// 2 MiB at a multiple of 2 MiB, cut out of a mapping twice as large.
std::byte* map_slab() {
  void* mapped = mmap(nullptr, 2 * kSlab, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  std::byte* const begin = static_cast<std::byte*>(mapped);
  std::byte* const slab = slab_of(begin + kSlab - 1);
  if (slab > begin) munmap(begin, size_t(slab - begin));
  munmap(slab + kSlab, size_t(begin + kSlab - slab));
#ifdef MADV_HUGEPAGE
  madvise(slab, kSlab, MADV_HUGEPAGE);
#endif
  return slab;
}

class Slabs {
 public:
  std::byte* take(size_t bytes) {
    const size_t cell = bytes == 0 ? 64 : (bytes + 63) / 64 * 64;
    std::lock_guard<std::mutex> lock(mutex);
    Roomy& roomy = roomy_[cell];
    if (roomy.empty() && !add(cell, roomy)) return nullptr;
    const Roomy::iterator found = roomy.begin();  // the lowest, so that others become empty
    Slab& slab = slabs_.find(*found)->second;
    const size_t place = slab.free.empty() ? slab.used++ : slab.free.back();
    if (!slab.free.empty()) slab.free.pop_back();
    std::byte* const taken = *found + place * cell;
    if (slab.free.empty() && slab.used == slab.cells()) slab.node = roomy.extract(found);
    return taken;
  }

  // Allocates nothing: the list of free cells was made with the slab, and its place among the roomy was kept.
  void give(std::byte* cell) {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = slabs_.find(slab_of(cell));
    Slab& slab = found->second;
    Roomy& roomy = *slab.roomy;
    slab.free.push_back(uint32_t(size_t(cell - found->first) / slab.cell));
    if (!slab.node.empty()) roomy.insert(std::move(slab.node));
    if (slab.free.size() < slab.used) return;
    roomy.erase(found->first);
    munmap(found->first, kSlab);
    slabs_.erase(found);
  }

  std::mutex mutex;

 private:
  using Roomy = std::set<std::byte*>;  // slabs of one size of cell that have room

  struct Slab {
    size_t cell;
    Roomy* roomy;
    size_t used = 0;              // cells ever taken; all from here on are free
    std::vector<uint32_t> free;   // of those
    Roomy::node_type node;        // while it has no room

    size_t cells() const { return kSlab / cell; }
  };

  bool add(size_t cell, Roomy& roomy) {
    std::byte* const data = map_slab();
    if (data == nullptr) return false;
    try {
      Slab& slab = slabs_.try_emplace(data, Slab{cell, &roomy}).first->second;
      slab.free.reserve(slab.cells());
      roomy.insert(data);
    } catch (...) {
      slabs_.erase(data);
      munmap(data, kSlab);
      throw;
    }
    return true;
  }

  std::unordered_map<std::byte*, Slab> slabs_;
  std::map<size_t, Roomy> roomy_;
};

// Never destroyed: buffers may outlive other statics. Held over a fork, so that no child inherits it locked by a thread that
// it does not have.
Slabs& slabs() {
  static Slabs& made = *new Slabs;
  static const int at_fork = pthread_atfork([] { made.mutex.lock(); }, [] { made.mutex.unlock(); }, [] { made.mutex.unlock(); });
  static_cast<void>(at_fork);
  return made;
}

}  // namespace

std::byte* take_cell(size_t bytes) { return slabs().take(bytes); }
void give_cell(std::byte* cell) noexcept { slabs().give(cell); }

}  // namespace tenonnx

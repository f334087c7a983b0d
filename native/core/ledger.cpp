#include "core/ledger.hpp"

#include "core/slabs.hpp"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace tenonnx {
namespace {

struct Counters {
  std::atomic<int64_t> bytes{0}, peak{0}, allocations{0}, total{0};
};
Counters counters[size_t(Purpose::count)];

constexpr size_t kMapped = size_t(1) << 20;     // from here on whole pages of their own: untouched ones cost nothing
constexpr size_t kHugePages = size_t(4) << 20;  // weights this large gain read bandwidth from huge pages

void count(Purpose purpose, int64_t bytes) {
  Counters& c = counters[size_t(purpose)];
  const int64_t now = c.bytes.fetch_add(bytes) + bytes;
  if (bytes < 0) return;
  c.allocations.fetch_add(1);
  c.total.fetch_add(bytes);
  for (int64_t peak = c.peak.load(); now > peak && !c.peak.compare_exchange_weak(peak, now);) {
  }
}

// AddressSanitizer sees the ends of allocations alone, not those of cells.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSlabs = false;
#else
constexpr bool kSlabs = true;
#endif

bool in_slab(size_t bytes, Purpose purpose) { return kSlabs && purpose == Purpose::page && bytes <= kLargestCell; }

std::byte* allocate(size_t bytes, Purpose purpose) {
  if (bytes >= kMapped) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    if (purpose == Purpose::weight && bytes >= kHugePages) madvise(data, bytes, MADV_HUGEPAGE);
#endif
    return static_cast<std::byte*>(data);
  }
  const size_t rounded = (bytes + 63) / 64 * 64;
  void* data = in_slab(bytes, purpose) ? take_cell(bytes) : std::aligned_alloc(64, rounded ? rounded : 64);
  if (data == nullptr) throw std::bad_alloc();
  std::memset(data, 0, rounded);
  return static_cast<std::byte*>(data);
}

}  // namespace

const char* purpose_name(Purpose purpose) {
  static const char* const names[] = {"cache", "page", "arena", "output", "weight"};
  return names[size_t(purpose)];
}

Account account(Purpose purpose) {
  const Counters& c = counters[size_t(purpose)];
  return {c.bytes.load(), c.peak.load(), c.allocations.load(), c.total.load()};
}

void reset_peaks() {
  for (Counters& c : counters) c.peak.store(c.bytes.load());
}

Buffer::Buffer(size_t bytes, Purpose purpose) : data_(allocate(bytes, purpose)), size_(bytes), purpose_(purpose) {
  count(purpose, int64_t(bytes));
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), purpose_(other.purpose_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(purpose_, other.purpose_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (size_ >= kMapped) munmap(data_, size_);
  else if (in_slab(size_, purpose_)) give_cell(data_);
  else std::free(data_);
  count(purpose_, -int64_t(size_));
}

}  // namespace tenonnx

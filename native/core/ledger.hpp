// Every byte that outlives a kernel call is allocated here and counted by what it is for.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tenonnx {

enum class Purpose { cache = 0, page, arena, output, weight, count };

const char* purpose_name(Purpose purpose);

struct Account {
  int64_t bytes = 0;        // held now
  int64_t peak = 0;         // most held at once since the last reset of peaks
  int64_t allocations = 0;  // ever made
  int64_t total = 0;        // bytes ever allocated
};

Account account(Purpose purpose);
void reset_peaks();

// Zeroed memory at a multiple of 64 bytes (of a page from 1 MiB on). Movable, freed with its owner.
class Buffer {
 public:
  Buffer() = default;
  Buffer(size_t bytes, Purpose purpose);  // throws std::bad_alloc
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  Purpose purpose_ = Purpose::arena;
};

}  // namespace tenonnx

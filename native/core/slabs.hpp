// Memory for many small buffers that are read as one: cells of equal size in slabs of 2 MiB, each of which the system may back
// by one huge page. Buffers scattered over small pages of the system cost a walk of its page tables each.
//
// A slab is mapped when a cell is first needed and unmapped with its last: no more than one of a size is not full for want of
// cells. Cells never move. Any thread may take and give.
#pragma once
#include <cstddef>

namespace tenonnx {

constexpr size_t kLargestCell = size_t(256) << 10;  // at most a ninth of a slab is lost behind its last cell

// `bytes` of memory at a multiple of 64, not cleared; null where the system has none. bytes <= kLargestCell.
std::byte* take_cell(size_t bytes);
void give_cell(std::byte* cell) noexcept;

}  // namespace tenonnx

// Fields of any width at any bit, over any axes, as unsigned integers: what a view reads where NumPy cannot point into the
// payload. One task is a run of elements in the order of the output.
//
// Eight elements of one axis lie the same way in their bytes as the next eight, so a plan made once for each of the eight
// bits that a run can start at says which bytes to take and how far to shift them.
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/check.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

using std::byte;

constexpr int64_t kTaskElements = 32768;
constexpr int kGroup = 8;   // elements that take as many bytes as their stride has bits
constexpr int kLoad = 16;   // bytes taken at once for half a group

// The low `width` bits of the 8 bytes at `bit`, of which 9 may be touched by a field wider than 57 bits; nothing at or
// past `end` is read.
uint64_t field(const byte* data, const byte* end, int64_t bit, int width, uint64_t mask) {
  const byte* at = data + (bit >> 3);
  const int shift = int(bit & 7);
  uint64_t value = 0;
  if (end - at >= 8) {
    std::memcpy(&value, at, 8);
  } else {
    for (int i = 0; i < end - at; ++i) value |= uint64_t(at[i]) << 8 * i;
  }
  value >>= shift;
  if (shift + width > 64) value |= uint64_t(at[8]) << (64 - shift);
  return value & mask;
}

#if defined(__AVX2__)
// A group as two halves of four elements: where each half's bytes start, which of them go to which 32-bit lane, how far
// each lane is shifted.
struct Group {
  int first, second;  // bytes from the group's first one
  __m256i bytes, shifts;

  void plan(int phase, int64_t stride) {
    alignas(32) uint8_t order[32];
    alignas(32) int32_t shift[kGroup];
    int start[2] = {0, 0};
    for (int i = 0; i < kGroup; ++i) {
      const int bit = phase + int(i * stride), half = i / 4;
      if (i % 4 == 0) start[half] = bit / 8;
      for (int k = 0; k < 4; ++k) {
        const int from = bit / 8 - start[half] + k;
        order[4 * i + k] = uint8_t(from < kLoad ? from : 0x80);
      }
      shift[i] = bit % 8;
    }
    first = start[0];
    second = start[1];
    bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(order));
    shifts = _mm256_load_si256(reinterpret_cast<const __m256i*>(shift));
  }

  __m256i load(const byte* at, __m256i mask) const {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + first));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + second));
    const __m256i lanes = _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), bytes);
    return _mm256_and_si256(_mm256_srlv_epi32(lanes, shifts), mask);
  }
};

// Whether four elements lie within the bytes of one load, and each within a lane.
bool groups_fit(int width, int64_t stride) { return stride >= 0 && width <= 25 && (7 + 3 * stride + width + 7) / 8 <= kLoad; }

void store(uint8_t* out, __m256i lanes) {
  const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
  const __m256i packed = _mm256_shuffle_epi8(lanes, order);
  const __m128i joined = _mm_unpacklo_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), joined);
}
void store(uint16_t* out, __m256i lanes) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(lanes, lanes), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_castsi256_si128(packed));
}
void store(uint32_t* out, __m256i lanes) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), lanes); }
void store(uint64_t* out, __m256i lanes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_cvtepu32_epi64(_mm256_castsi256_si128(lanes)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 4), _mm256_cvtepu32_epi64(_mm256_extracti128_si256(lanes, 1)));
}
#endif

// One innermost axis, and what is the same for all its runs.
struct Axis {
  const byte *data, *end;
  int64_t stride;
  int width;
  uint64_t mask;
#if defined(__AVX2__)
  bool grouped;
  Group groups[8];  // by the bit of its byte that the first element starts at
#endif

  Axis(const Args& a, int64_t length, int64_t stride)
      : data(a.in[0].data), end(data + a.in[0].dims[0]), stride(stride), width(int(a.ints[1])), mask(~uint64_t(0) >> (64 - width)) {
#if defined(__AVX2__)
    grouped = length >= kGroup && groups_fit(width, stride);
    for (int phase = 0; grouped && phase < 8; ++phase) groups[phase].plan(phase, stride);
#else
    (void)length;
#endif
  }

  // Bytes that are one element each.
  template <typename T>
  void bytewise(T* out, int64_t bit, int64_t n) const {
    const uint8_t* at = reinterpret_cast<const uint8_t*>(data) + (bit >> 3);
    const int shift = int(bit & 7);
    const uint8_t low = uint8_t(mask);
    int64_t i = 0;
    // Runs are often a block's 16 bytes, which wider vectors would leave to their scalar rest.
    for (; i + kLoad <= n; i += kLoad)
      for (int k = 0; k < kLoad; ++k) out[i + k] = T(at[i + k] >> shift & low);
    for (; i < n; ++i) out[i] = T(at[i] >> shift & low);
  }

  template <typename T>
  void read(T* out, int64_t bit, int64_t n) const {
    if (stride == 8 && (bit & 7) + width <= 8) return bytewise(out, bit, n);
    int64_t i = 0;
#if defined(__AVX2__)
    if (grouped) {
      const Group& group = groups[bit & 7];
      const __m256i low = _mm256_set1_epi32(int32_t(mask));
      const byte* at = data + (bit >> 3);
      for (; i + kGroup <= n && end - at >= group.second + kLoad; i += kGroup, at += stride) store(out + i, group.load(at, low));
    }
#endif
    for (; i < n; ++i) out[i] = T(field(data, end, bit + i * stride, width, mask));
  }
};

std::string validate(const Args& a) {
  REQUIRE_OK(check_call(a, {1, 1, 1, 1, a.n_ints, 0}));
  const Tensor &in = a.in[0], &out = a.out[0];
  REQUIRE(in.dtype == DType::UInt8 && in.rank == 1 && in.contiguous() && in.dims[0] <= INT64_MAX / 8,
          "payload is %s, expected contiguous UINT8 [bytes]", describe(in));
  const bool whole = out.dtype == DType::UInt8 || out.dtype == DType::UInt16 || out.dtype == DType::UInt32 || out.dtype == DType::UInt64;
  REQUIRE(whole && out.contiguous(), "fields are %s, expected a contiguous unsigned type", describe(out));
  REQUIRE(a.n_ints == 2 + out.rank, "%d integer arguments, expected offset, width and a stride for each of %d axes", a.n_ints, out.rank);
  const long long width = a.ints[1], bits = 8 * in.dims[0];
  REQUIRE(width >= 1 && width <= 8 * size_of(out.dtype), "width of %lld bits does not fit %s", width, dtype_name(out.dtype));
  if (out.empty()) return {};
  int64_t lowest = a.ints[0], highest = lowest;
  for (int i = 0; i < out.rank; ++i) {
    int64_t reach;
    int64_t& side = a.ints[2 + i] < 0 ? lowest : highest;
    REQUIRE(!__builtin_mul_overflow(out.dims[i] - 1, a.ints[2 + i], &reach) && !__builtin_add_overflow(side, reach, &side),
            "strides reach past an address space");
  }
  REQUIRE(lowest >= 0 && highest <= bits - width, "fields of bits %lld to %lld, the payload has %lld", (long long)lowest,
          (long long)highest, bits);
  return {};
}

int64_t tasks(const Args& a) { return (a.out[0].size() + kTaskElements - 1) / kTaskElements; }

template <typename T>
void run_as(const Args& a, int64_t begin, int64_t end) {
  const Tensor& out = a.out[0];
  const int outer = out.rank - 1;
  const int64_t* strides = a.ints + 2;
  const int64_t length = out.rank > 0 ? out.dims[outer] : 1;
  const Axis axis(a, length, out.rank > 0 ? strides[outer] : 0);

  int64_t element = begin * kTaskElements, last = end * kTaskElements, place[kMaxRank] = {};
  if (last > out.size()) last = out.size();
  int64_t column = element % length, row = element / length, bit = a.ints[0];
  for (int i = outer - 1; i >= 0; row /= out.dims[i], --i) {
    place[i] = row % out.dims[i];
    bit += place[i] * strides[i];
  }
  while (element < last) {
    const int64_t n = length - column < last - element ? length - column : last - element;
    axis.read(out.as<T>() + element, bit + column * axis.stride, n);
    element += n;
    column = 0;
    for (int i = outer - 1; i >= 0; --i) {
      bit += strides[i];
      if (++place[i] < out.dims[i]) break;
      bit -= out.dims[i] * strides[i];
      place[i] = 0;
    }
  }
}

void run(const Args& a, int64_t begin, int64_t end) {
  switch (a.out[0].dtype) {
    case DType::UInt8: return run_as<uint8_t>(a, begin, end);
    case DType::UInt16: return run_as<uint16_t>(a, begin, end);
    case DType::UInt32: return run_as<uint32_t>(a, begin, end);
    default: return run_as<uint64_t>(a, begin, end);
  }
}

}  // namespace

KernelTable unpack_table() {
  // in: payload UINT8 [bytes]; out: unsigned [axes…]; ints: bit of the first element, width in bits, then a stride in bits for
  // each axis, which may be negative or overlap
  static const Kernel kernels[] = {{"unpack_bits", validate, tasks, run}};
  return {kernels, 1};
}

}  // namespace tenonnx::TENONNX_ISA_NS

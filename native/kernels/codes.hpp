// Codes of 32 columns of 8 rows, as `packed.hpp` lays them out: how they are read as vectors (`get`: columns 16 * half +
// 4 * i .. + 3) and by row (`unpack`), and how a row is put in (`pack`). `largest` bounds unsigned codes; `is_signed` ones
// come as V::Signed.
#pragma once
#include <cstdint>
#include <cstring>

#include "kernels/lanes.hpp"

namespace tenonnx::TENONNX_ISA_NS {

constexpr int kVectorBytes = 4 * kGroup;

// Four codes of one row, a byte each, as one number.
static inline uint32_t load_word(const byte* at) { return load_as<uint32_t>(at); }

// One plane: Bits of every code, which are the code's bits from Target on.
template <int Bits, int Target>
struct Plane {
  static constexpr int bytes = kVectorBytes * Bits;
  static constexpr uint32_t mask = (1u << Bits) - 1;

  template <typename V, int Half, int I>
  static inline typename V::Codes get(const typename V::Source& w, int at) {
    constexpr int right = 4 * Half + I * Bits % 4 - Target;
    auto vector = V::load(w, at + I * Bits / 4 * kVectorBytes);
    if constexpr (right > 0) vector = V::template shift_right<right>(vector);
    if constexpr (right < 0) vector = V::template shift_left<-right>(vector);
    return V::select(vector, int(mask << Target));
  }

  static inline void unpack(const byte* at, int row, uint8_t* codes) {
    for (int column = 0; column < kBlock; ++column) {
      const int half = column / 16, i = column % 16 / 4;
      const int code = int(at[I(i) * kVectorBytes + 4 * row + column % 4]) >> (4 * half + i * Bits % 4);
      codes[column] = uint8_t(codes[column] | (code & int(mask)) << Target);
    }
  }

  static inline void pack(byte* at, int row, const uint32_t (&words)[8]) {
    for (int vector = 0; vector < Bits; ++vector) {
      uint32_t word = 0;
      for (int half = 0; half < 2; ++half)
        for (int s = 0; s < 4 / Bits; ++s)
          word |= (words[4 * half + vector * (4 / Bits) + s] >> Target & mask * 0x01010101u) << (4 * half + s * Bits);
      std::memcpy(at + vector * kVectorBytes + 4 * row, &word, 4);
    }
  }

 private:
  static constexpr int I(int i) { return i * Bits / 4; }
};

// Codes of Low + High bits in two planes, or one.
template <int Low, int High>
struct Planes {
  static constexpr int bytes = kVectorBytes * (Low + High), largest = (1 << (Low + High)) - 1;
  static constexpr bool is_signed = false;
  using LowPlane = Plane<Low, 0>;
  using HighPlane = Plane<High == 0 ? 1 : High, Low>;

  template <typename V, int Half, int I>
  static inline typename V::Codes get(const typename V::Source& w, int at) {
    const auto low = LowPlane::template get<V, Half, I>(w, at);
    if constexpr (High == 0) return low;
    else return V::either(low, HighPlane::template get<V, Half, I>(w, at + LowPlane::bytes));
  }

  static inline int value(uint8_t code) { return code; }

  static inline void unpack(const byte* at, int row, uint8_t (&codes)[kBlock]) {
    std::memset(codes, 0, kBlock);
    LowPlane::unpack(at, row, codes);
    if constexpr (High != 0) HighPlane::unpack(at + LowPlane::bytes, row, codes);
  }

  static inline void pack(byte* at, int row, const uint8_t* codes) {
    uint32_t words[8];
    std::memcpy(words, codes, sizeof words);
    LowPlane::pack(at, row, words);
    if constexpr (High != 0) HighPlane::pack(at + LowPlane::bytes, row, words);
  }
};

// Codes of 4 bits that are places in a table: of numbers from 0 to Table::largest, or of signed ones when that is 0.
template <typename Table>
struct Lookup : Planes<4, 0> {
  static constexpr int largest = Table::largest;
  static constexpr bool is_signed = largest == 0;

  template <typename V, int Half, int I>
  static inline auto get(const typename V::Source& w, int at) {
    const auto places = LowPlane::get<V, Half, I>(w, at);
    if constexpr (is_signed) return V::lookup(V::make_signed(V::table(Table::values)), places);
    else return V::lookup(V::table(Table::values), places);
  }

  static inline int value(uint8_t code) { return Table::values[code]; }
};

// `kvalues_iq4nl` of ggml.
struct IQ4Table {
  static constexpr int largest = 0;
  static constexpr int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
};

// Twice FLOAT4E2M1, and 12 more: no negative number is left.
constexpr int kE2M1Zero = 12;
struct E2M1Table {
  static constexpr int largest = 24;
  static constexpr int8_t values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
};

struct WholeBytes {
  static constexpr int bytes = kBlock * kGroup;

  static inline void unpack(const byte* at, int row, uint8_t (&codes)[kBlock]) {
    for (int i = 0; i < 8; ++i) std::memcpy(codes + 4 * i, at + kVectorBytes * i + 4 * row, 4);
  }
  static inline void pack(byte* at, int row, const uint8_t* codes) {
    for (int i = 0; i < 8; ++i) std::memcpy(at + kVectorBytes * i + 4 * row, codes + 4 * i, 4);
  }
};

struct Signed8 : WholeBytes {
  static constexpr int largest = 0;
  static constexpr bool is_signed = true;
  template <typename V, int Half, int I>
  static inline typename V::Signed get(const typename V::Source& w, int at) {
    return V::make_signed(V::load(w, at + kVectorBytes * (4 * Half + I)));
  }
  static inline int value(uint8_t code) { return int8_t(code); }
};

using Bits2 = Planes<2, 0>;
using Bits3 = Planes<2, 1>;
using Bits4 = Planes<4, 0>;
using Bits5 = Planes<4, 1>;
using Bits6 = Planes<4, 2>;
using IQ4Codes = Lookup<IQ4Table>;
using E2M1Codes = Lookup<E2M1Table>;

}  // namespace tenonnx::TENONNX_ISA_NS

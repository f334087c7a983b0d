// Lanes of plain loops, which compilers turn into whatever vectors the platform has. Included by `lanes.hpp`.
#pragma once

namespace tenonnx::TENONNX_ISA_NS {

constexpr int kVector = 4 * kGroup;  // codes of 4 columns

struct Narrow {
  static constexpr int groups = 1;
  static constexpr int kShort = 32767 / 127;  // one sum for each row and each column modulo 4
  static constexpr int kBias = 0;
  using Source = GroupsOf<1>;
  struct Rows {
    float of[kGroup];
  };
  struct Codes {
    uint8_t of[kVector];
  };
  struct Signed {
    int16_t of[kVector];
  };
  struct ShortSum {
    int16_t of[kVector];
  };
  struct WideSum {
    int32_t of[kVector];
  };

  static inline Codes load(const Source& w, int at) { return load_as<Codes>(w.group[0] + at); }
  template <int Bits>
  static inline Codes shift_right(Codes codes) {
    for (uint8_t& code : codes.of) code = uint8_t(code >> Bits);
    return codes;
  }
  template <int Bits>
  static inline Codes shift_left(Codes codes) {
    for (uint8_t& code : codes.of) code = uint8_t(code << Bits);
    return codes;
  }
  static inline Codes select(Codes codes, int mask) {
    for (uint8_t& code : codes.of) code = uint8_t(code & mask);
    return codes;
  }
  static inline Codes either(Codes a, const Codes& b) {
    for (int i = 0; i < kVector; ++i) a.of[i] |= b.of[i];
    return a;
  }
  static inline Codes table(const int8_t (&values)[16]) {
    Codes repeated;
    std::memcpy(repeated.of, values, 16);
    std::memcpy(repeated.of + 16, values, 16);
    return repeated;
  }
  static inline Codes lookup(const Codes& table, const Codes& places) {
    Codes found;
    for (int i = 0; i < kVector; ++i) found.of[i] = table.of[places.of[i]];
    return found;
  }
  static inline Signed lookup(const Signed& table, const Codes& places) {
    Signed found;
    for (int i = 0; i < kVector; ++i) found.of[i] = table.of[places.of[i]];
    return found;
  }

  static inline Signed make_signed(const Codes& codes) {
    Signed wide;
    for (int i = 0; i < kVector; ++i) wide.of[i] = int8_t(codes.of[i]);
    return wide;
  }
  static inline Signed columns(const byte* x) {
    const int16_t four[4] = {int8_t(x[0]), int8_t(x[1]), int8_t(x[2]), int8_t(x[3])};
    Signed repeated;
    for (int row = 0; row < kGroup; ++row) std::memcpy(repeated.of + 4 * row, four, sizeof four);
    return repeated;
  }
  static inline void add(ShortSum& sum, const Codes& codes, const byte* x) {
    const Signed repeated = columns(x);
    for (int i = 0; i < kVector; ++i) sum.of[i] = int16_t(sum.of[i] + int16_t(codes.of[i] * repeated.of[i]));
  }
  template <typename AnyCodes>
  static inline void add(WideSum& sum, const AnyCodes& codes, const byte* x) {
    const Signed repeated = columns(x);
    for (int i = 0; i < kVector; ++i) sum.of[i] += codes.of[i] * repeated.of[i];
  }
  template <typename Sum>
  static inline Rows total(const Sum& sum) {
    Rows rows;
    for (int row = 0; row < kGroup; ++row)
      rows.of[row] = float(sum.of[4 * row] + sum.of[4 * row + 1] + sum.of[4 * row + 2] + sum.of[4 * row + 3]);
    return rows;
  }

  template <typename Number>
  static inline Rows make_rows(Number number) {
    Rows rows;
    for (int row = 0; row < kGroup; ++row) rows.of[row] = number(row);
    return rows;
  }
  static inline void store(const Rows& rows, float* out) { std::memcpy(out, &rows, sizeof rows); }
  static inline Rows all(float value) {
    return make_rows([=](int) { return value; });
  }
  static inline Rows negate(const Rows& a) {
    return make_rows([&](int row) { return -a.of[row]; });
  }
  static inline Rows plus(const Rows& a, const Rows& b) {
    return make_rows([&](int row) { return a.of[row] + b.of[row]; });
  }
  static inline Rows multiply(const Rows& a, const Rows& b) {
    return make_rows([&](int row) { return a.of[row] * b.of[row]; });
  }
  static inline Rows multiply_add(const Rows& a, const Rows& b, const Rows& c) {
    return make_rows([&](int row) { return a.of[row] * b.of[row] + c.of[row]; });
  }
  static inline Rows multiply_subtract(const Rows& a, const Rows& b, const Rows& c) {
    return make_rows([&](int row) { return c.of[row] - a.of[row] * b.of[row]; });
  }
  static inline Rows load_halves(const Source& w, int at) {
    return make_rows([&](int row) { return half_to_float(load_as<uint16_t>(w.group[0] + at + 2 * row)); });
  }
  static inline Rows load_floats(const Source& w, int at) { return load_as<Rows>(w.group[0] + at); }
  static inline Rows load_signed(const Source& w, int at) {
    return make_rows([&](int row) { return float(load_as<int8_t>(w.group[0] + at + row)); });
  }
  template <int Shift, int Bits>
  static inline Rows load_fields(const Source& w, int at) {
    return make_rows([&](int row) { return float(int(w.group[0][at + row]) >> Shift & ((1 << Bits) - 1)); });
  }
  static inline Rows load_half_powers(const Source& w, int at) {
    return make_rows([&](int row) { return half_power(uint8_t(w.group[0][at + row])); });
  }
};

using Wide = Narrow;
constexpr int kTile = 1;

}  // namespace tenonnx::TENONNX_ISA_NS

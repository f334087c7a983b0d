// The compute layouts of quantized weights as a choice of codes and of scales; `packed.hpp` shows their bytes.
#pragma once
#include "kernels/codes.hpp"
#include "kernels/scales.hpp"

namespace tenonnx::TENONNX_ISA_NS {

template <typename CodesOf, typename ScalesOf>
struct Compute {
  using Codes = CodesOf;
  using Scales = ScalesOf;
  static constexpr int sub_bytes = Scales::bytes + Codes::bytes;
  static constexpr Format packed{kGroup, kBlock * Scales::blocks, Scales::head + Scales::blocks * sub_bytes};
};

using Q4 = Compute<Bits4, Half<8>>;
using Q4M = Compute<Bits4, HalfMinimum>;
using Q5 = Compute<Bits5, Half<16>>;
using Q5M = Compute<Bits5, HalfMinimum>;
using Q8 = Compute<Signed8, Half<0>>;
using IQ4 = Compute<IQ4Codes, Half<0>>;
using FP4 = Compute<E2M1Codes, Exponent<kE2M1Zero>>;
using FP4H = Compute<E2M1Codes, HalfTwice<kE2M1Zero>>;
template <int Columns>
using G4 = Compute<Bits4, FloatZero<Columns / kBlock, false>>;
template <int Columns>
using G8 = Compute<Signed8, FloatZero<Columns / kBlock, true>>;
using Q2K = Compute<Bits2, SmallMinimumTwice>;
using Q3K = Compute<Bits3, SmallTwice<4>>;
using Q4K = Compute<Bits4, SmallMinimum>;
using Q5K = Compute<Bits5, SmallMinimum>;
using Q6K = Compute<Bits6, SmallTwice<32>>;
using IQ4K = Compute<IQ4Codes, Small>;

static_assert(Q4::packed.bytes == 144 && Q4M::packed.bytes == 160 && Q5::packed.bytes == 176 && Q5M::packed.bytes == 192);
static_assert(Q8::packed.bytes == 272 && IQ4::packed.bytes == 144 && FP4::packed.bytes == 136 && FP4H::packed.bytes == 160);
static_assert(G4<32>::packed.bytes == 168 && G4<128>::packed.bytes == 552 && G8<64>::packed.bytes == 552);
static_assert(Q2K::packed.bytes == 672 && Q3K::packed.bytes == 912);
static_assert(Q4K::packed.bytes == 1184 && Q5K::packed.bytes == 1440 && Q6K::packed.bytes == 1680);
static_assert(IQ4K::packed.bytes == 1104);

}  // namespace tenonnx::TENONNX_ISA_NS

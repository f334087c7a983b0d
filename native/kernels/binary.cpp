// Elementwise kernels of two operands: in [a, b], out [y], all views of the output's dims (a broadcast has stride 0).
// Integers wrap; division by integer zero gives 0. min and max pass NaN on. FLOAT16 is computed in float.
#include "kernels/check.hpp"
#include "kernels/vecmath.hpp"
#include "kernels/walk.hpp"

namespace tenonnx::TENONNX_ISA_NS {
namespace {

// The arithmetic of a stored type: integers in their unsigned form, as overflow wraps.
struct Integer32 { using Store = int32_t; using Wrap = uint32_t; };
struct Integer64 { using Store = int64_t; using Wrap = uint64_t; };
template <typename T> struct Real { using Store = T; };

template <typename T> concept Integral = requires { typename T::Wrap; };

static inline float get(float v) { return v; }
static inline double get(double v) { return v; }
static inline float get(Half v) { return to_float(v); }
static inline int32_t get(int32_t v) { return v; }
static inline int64_t get(int64_t v) { return v; }
static inline bool get(Truth v) { return v.bits != 0; }
static inline void set(Half* p, float v) { p->bits = float_to_half(v); }
template <typename T> static inline void set(T* p, T v) { *p = v; }

#define TENONNX_WRAPPING(Name, op)                                                       \
  struct Name {                                                                          \
    template <Integral T, typename V> static V of(V a, V b) { return V(typename T::Wrap(a) op typename T::Wrap(b)); } \
    template <typename T, typename V> static V of(V a, V b) { return a op b; }           \
  };
TENONNX_WRAPPING(Add, +)
TENONNX_WRAPPING(Sub, -)
TENONNX_WRAPPING(Mul, *)

struct Div {
  template <Integral T, typename V> static V of(V a, V b) {
    return b == 0 ? V(0) : b == -1 ? V(typename T::Wrap(0) - typename T::Wrap(a)) : V(a / b);
  }
  template <typename T, typename V> static V of(V a, V b) { return a / b; }
};
struct Min { template <typename T, typename V> static V of(V a, V b) { return a < b || a != a ? a : b; } };
struct Max { template <typename T, typename V> static V of(V a, V b) { return a > b || a != a ? a : b; } };
struct Pow { template <typename T, typename V> static V of(V a, V b) { return V(__builtin_powf(a, b)); } };
struct Equal { template <typename T, typename V> static bool of(V a, V b) { return a == b; } };
struct Less { template <typename T, typename V> static bool of(V a, V b) { return a < b; } };
struct Greater { template <typename T, typename V> static bool of(V a, V b) { return a > b; } };
struct LessEqual { template <typename T, typename V> static bool of(V a, V b) { return a <= b; } };
struct GreaterEqual { template <typename T, typename V> static bool of(V a, V b) { return a >= b; } };
struct And { template <typename T, typename V> static bool of(V a, V b) { return a && b; } };
struct Or { template <typename T, typename V> static bool of(V a, V b) { return a || b; } };

template <typename T, typename Op, typename Out>
void row(const typename T::Store* a, int64_t sa, const typename T::Store* b, int64_t sb, Out* y, int64_t sy, int64_t n) {
  const auto step = [](const auto& x, const auto& z, Out* out) { set(out, Op::template of<T>(get(x), get(z))); };
  // The compiler vectorizes the three common shapes; each element's result is the same in every one.
  if (sy == 1 && sa == 1 && sb == 1)
    for (int64_t i = 0; i < n; ++i) step(a[i], b[i], y + i);
  else if (sy == 1 && sa == 1 && sb == 0)
    for (int64_t i = 0; i < n; ++i) step(a[i], b[0], y + i);
  else if (sy == 1 && sa == 0 && sb == 1)
    for (int64_t i = 0; i < n; ++i) step(a[0], b[i], y + i);
  else
    for (int64_t i = 0; i < n; ++i) step(a[i * sa], b[i * sb], y + i * sy);
}

Walk<3> walk_of(const Args& a) {
  const int64_t* const steps[3] = {a.in[0].strides, a.in[1].strides, a.out[0].strides};
  return {a.out[0].dims, a.out[0].rank, steps};
}

int64_t tasks(const Args& a) { return walk_of(a).tasks(); }

template <typename T, typename Op, typename Out>
void run_as(const Args& args, int64_t begin, int64_t end) {
  using Store = typename T::Store;
  const Walk<3> walk = walk_of(args);
  const Store *a = args.in[0].as<const Store>(), *b = args.in[1].as<const Store>();
  Out* y = args.out[0].as<Out>();
  walk.run(begin, end, [&](const int64_t* at, int64_t n) {
    row<T, Op>(a + at[0], walk.stride(0), b + at[1], walk.stride(1), y + at[2], walk.stride(2), n);
  });
}

constexpr uint32_t bit(DType t) { return 1u << int(t); }
constexpr uint32_t kReals = bit(DType::Float) | bit(DType::Double) | bit(DType::Float16);
constexpr uint32_t kNumbers = kReals | bit(DType::Int32) | bit(DType::Int64);

std::string check_types(const Args& a, uint32_t types, bool truth) {
  REQUIRE_OK(check_call(a, {2, 2, 1, 1, 0, 0}));
  REQUIRE(a.in[0].dtype == a.in[1].dtype, "inputs are %s and %s: one type expected", describe(a.in[0]), describe(a.in[1]));
  REQUIRE(types & bit(a.in[0].dtype), "no kernel for %s", dtype_name(a.in[0].dtype));
  REQUIRE(a.out[0].dtype == (truth ? DType::Bool : a.in[0].dtype), "output is %s for inputs of %s", describe(a.out[0]),
          dtype_name(a.in[0].dtype));
  return check_same_dims(a);
}

std::string validate_arithmetic(const Args& a) { return check_types(a, kNumbers, false); }
std::string validate_float(const Args& a) { return check_types(a, bit(DType::Float), false); }
std::string validate_order(const Args& a) { return check_types(a, kNumbers, true); }
std::string validate_equal(const Args& a) { return check_types(a, kNumbers | bit(DType::Bool), true); }
std::string validate_logic(const Args& a) { return check_types(a, bit(DType::Bool), true); }

template <typename Op>
void arithmetic(const Args& a, int64_t begin, int64_t end) {
  switch (a.in[0].dtype) {
    case DType::Float: return run_as<Real<float>, Op, float>(a, begin, end);
    case DType::Double: return run_as<Real<double>, Op, double>(a, begin, end);
    case DType::Float16: return run_as<Real<Half>, Op, Half>(a, begin, end);
    case DType::Int32: return run_as<Integer32, Op, int32_t>(a, begin, end);
    default: return run_as<Integer64, Op, int64_t>(a, begin, end);
  }
}

template <typename Op>
void compare(const Args& a, int64_t begin, int64_t end) {
  switch (a.in[0].dtype) {
    case DType::Float: return run_as<Real<float>, Op, bool>(a, begin, end);
    case DType::Double: return run_as<Real<double>, Op, bool>(a, begin, end);
    case DType::Float16: return run_as<Real<Half>, Op, bool>(a, begin, end);
    case DType::Int32: return run_as<Integer32, Op, bool>(a, begin, end);
    case DType::Bool: return run_as<Real<Truth>, Op, bool>(a, begin, end);
    default: return run_as<Integer64, Op, bool>(a, begin, end);
  }
}

constexpr Kernel kernels[] = {
    {"add", validate_arithmetic, tasks, arithmetic<Add>},
    {"sub", validate_arithmetic, tasks, arithmetic<Sub>},
    {"mul", validate_arithmetic, tasks, arithmetic<Mul>},
    {"div", validate_arithmetic, tasks, arithmetic<Div>},
    {"min", validate_arithmetic, tasks, arithmetic<Min>},
    {"max", validate_arithmetic, tasks, arithmetic<Max>},
    {"pow", validate_float, tasks, run_as<Real<float>, Pow, float>},
    {"equal", validate_equal, tasks, compare<Equal>},
    {"less", validate_order, tasks, compare<Less>},
    {"greater", validate_order, tasks, compare<Greater>},
    {"less_equal", validate_order, tasks, compare<LessEqual>},
    {"greater_equal", validate_order, tasks, compare<GreaterEqual>},
    {"and", validate_logic, tasks, run_as<Real<Truth>, And, bool>},
    {"or", validate_logic, tasks, run_as<Real<Truth>, Or, bool>},
};

}  // namespace

KernelTable binary_table() { return {kernels, int(sizeof kernels / sizeof kernels[0])}; }

}  // namespace tenonnx::TENONNX_ISA_NS

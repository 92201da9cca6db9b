// GEMM solver "clblast": the CLBlast library, loaded at run time when it is installed. It works on any OpenCL
// device and compiles its kernels on first use, which takes seconds on a CPU.
#include <dlfcn.h>

#include <algorithm>
#include <mutex>

#include "primitives/common/factor.h"
#include "primitives/gemm/arguments.h"
#include "primitives/gemm/solvers.h"
#include "solver/device_rates.h"

namespace dlb::solver {
namespace {

// CLBlast's C interface (clblast_c.h): enumerators and the strided batched GEMM of each precision.
constexpr int kRowMajor = 101, kNoTranspose = 111, kTranspose = 112;
template <class T>
using GemmFunction = int (*)(int layout, int a_transpose, int b_transpose, size_t m, size_t n, size_t k,
                             T alpha, cl_mem a, size_t a_offset, size_t a_ld, size_t a_stride, cl_mem b,
                             size_t b_offset, size_t b_ld, size_t b_stride, T beta, cl_mem c, size_t c_offset,
                             size_t c_ld, size_t c_stride, size_t batch_count, cl_command_queue* queue,
                             cl_event* event);

// Passed by value as cl_float2 and cl_double2 are.
using Float2 = cl_float2;
using Double2 = cl_double2;

struct Library {
  GemmFunction<float> sgemm = nullptr;
  GemmFunction<double> dgemm = nullptr;
  GemmFunction<Float2> cgemm = nullptr;
  GemmFunction<Double2> zgemm = nullptr;
  bool loaded = false;

  Library() {
    // CLBlast links the usual loader by name: objects of another OpenCL library would be foreign to it.
    if (cl::library_name().find("libOpenCL") == std::string::npos) return;
    void* handle = dlopen("libclblast.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!handle) return;
    sgemm = reinterpret_cast<GemmFunction<float>>(dlsym(handle, "CLBlastSgemmStridedBatched"));
    dgemm = reinterpret_cast<GemmFunction<double>>(dlsym(handle, "CLBlastDgemmStridedBatched"));
    cgemm = reinterpret_cast<GemmFunction<Float2>>(dlsym(handle, "CLBlastCgemmStridedBatched"));
    zgemm = reinterpret_cast<GemmFunction<Double2>>(dlsym(handle, "CLBlastZgemmStridedBatched"));
    loaded = sgemm && dgemm && cgemm && zgemm;
  }
};

const Library& library() {
  static const Library instance;
  return instance;
}

// An operand as BLAS knows it: transposed or not, and its leading dimension; false when neither side is
// contiguous.
struct Matrix {
  int transpose = kNoTranspose;
  size_t ld = 0;
};
bool matrix_of(const int64_t (&s)[3], int64_t rows, int64_t columns, Matrix& matrix) {
  const auto fits = [](int64_t unit, int64_t ld, int64_t inner, int64_t outer) {
    return (unit == 1 || inner == 1) && (ld >= inner || outer == 1);
  };
  if (fits(s[2], s[1], columns, rows)) {
    matrix = {kNoTranspose, static_cast<size_t>(std::max(s[1], columns))};
    return true;
  }
  if (fits(s[1], s[2], rows, columns)) {
    matrix = {kTranspose, static_cast<size_t>(std::max(s[2], rows))};
    return true;
  }
  return false;
}

class ClblastInvoker final : public GemmInvoker {
 public:
  ClblastInvoker(const GemmProblem& problem, cl::Device& device)
      : swap_(columns_are_rows(problem)), problem_(swap_ ? transposed(problem) : problem) {
    matrix_of(problem_.a, problem_.m, problem_.k, a_);
    matrix_of(problem_.b, problem_.k, problem_.n, b_);
    matrix_of(problem_.c, problem_.m, problem_.n, c_);
    // BLAS adds to C itself: D is copied there first, by the product over nothing plus D
    GemmProblem copy = problem_;
    copy.k = 0;
    if (problem_.has_d) copy_ = gemm_reference()->invoker(copy, device, Config{});
    // and knows no bounds: they are applied to C by the product over nothing plus C
    bound_ = copy;
    bound_.has_d = 1;
    std::copy_n(problem_.c, 3, bound_.d);
  }

  void run(Stream& stream, const GemmProblem::Operands& operands, MemRef) override {
    const GemmProblem::Operands o = swap_ ? transposed(operands) : operands;
    if (copy_) {
      GemmProblem::Operands copy = o;
      copy.beta = Factor{}, copy.bounds = Bounds{};
      copy_->run(stream, copy, MemRef{});
    }
    const Factor beta = copy_ ? o.beta : Factor{0, 0, 0};
    int status;
    switch (problem_.dtype) {
      case c10::ScalarType::Float:
        status = call(library().sgemm, stream, o, float(o.alpha.re), float(beta.re));
        break;
      case c10::ScalarType::Double:
        status = call(library().dgemm, stream, o, o.alpha.re, beta.re);
        break;
      case c10::ScalarType::ComplexFloat:
        status = call(library().cgemm, stream, o, Float2{{float(o.alpha.re), float(o.alpha.im)}},
                      Float2{{float(beta.re), float(beta.im)}});
        break;
      default:
        status =
            call(library().zgemm, stream, o, Double2{{o.alpha.re, o.alpha.im}}, Double2{{beta.re, beta.im}});
    }
    if (status != CL_SUCCESS) cl::throw_error(status, "CLBlast GEMM", key(problem_));
    if (!o.bounds.finite()) return;
    GemmProblem::Operands within = o;
    within.d = o.c, within.beta = Factor{};
    std::call_once(bounding_once_, [&] {
      bounding_ = gemm_reference()->invoker(bound_, cl::device(problem_.device), Config{});
    });
    bounding_->run(stream, within, MemRef{});
  }

 private:
  template <class T>
  int call(GemmFunction<T> function, Stream& stream, const GemmProblem::Operands& o, T alpha, T beta) {
    for (const Buffer& buffer : {o.a, o.b, o.c}) cl::check_buffer(stream.device(), buffer.mem);
    cl::Command command(stream.use(), cl::CommandKind::kLibrary, "CLBlast GEMM");
    cl_command_queue queue = command.queue();
    const size_t c_stride = problem_.batch == 1 ? problem_.m * c_.ld : problem_.c[0];  // zero is refused
    return function(kRowMajor, a_.transpose, b_.transpose, problem_.m, problem_.n, problem_.k, alpha, o.a.mem,
                    o.a.offset, a_.ld, problem_.a[0], o.b.mem, o.b.offset, b_.ld, problem_.b[0], beta,
                    o.c.mem, o.c.offset, c_.ld, c_stride, problem_.batch, &queue, command.event());
  }

  const bool swap_;
  const GemmProblem problem_;
  Matrix a_, b_, c_;
  std::unique_ptr<GemmInvoker> copy_;
  GemmProblem bound_;
  std::once_flag bounding_once_;  // most are never asked for bounds
  std::unique_ptr<GemmInvoker> bounding_;
};

class Clblast final : public GemmSolver {
 public:
  const char* name() const override { return "clblast"; }
  bool is_capturable() const override { return false; }
  Applicability applicable(const GemmProblem& problem, const cl::Device& device) const override {
    if (!library().loaded)
      return Applicability::no(
          "libclblast.so.1 is not installed (Debian: libclblast1), or not beside a libOpenCL");
    const bool wide =
        problem.dtype == c10::ScalarType::Double || problem.dtype == c10::ScalarType::ComplexDouble;
    if (problem.dtype != c10::ScalarType::Float && problem.dtype != c10::ScalarType::ComplexFloat && !wide)
      return Applicability::no("float32, float64, complex64 and complex128 only");
    if (wide && !device.fp64) return Applicability::no("the device has no double precision");
    if (problem.k == 0) return Applicability::no("nothing to multiply (k = 0)");
    const GemmProblem p = columns_are_rows(problem) ? transposed(problem) : problem;
    Matrix a, b, c;
    if (!matrix_of(p.a, p.m, p.k, a) || !matrix_of(p.b, p.k, p.n, b))
      return Applicability::no("an operand has no contiguous side");
    if (!matrix_of(p.c, p.m, p.n, c) || c.transpose != kNoTranspose)
      return Applicability::no("the result has no contiguous side");
    return Applicability::yes();
  }
  double estimate(const GemmProblem& p, const cl::Device& device) const override {
    // compiling costs seconds on a CPU: only taken there when forced
    const DeviceRates& rates = rates_of(device);
    constexpr double kCompiling = 30e6, kCpuShare = 0.03, kGpuShare = 0.15, kLaunches = 20;
    const double arithmetic = p.flops() / rates.plain(p.dtype);
    if (device.cls == cl::DeviceClass::kCpu) return kCompiling + arithmetic / kCpuShare;
    return kLaunches * rates.launch_us + arithmetic / kGpuShare;
  }
  std::unique_ptr<GemmInvoker> invoker(const GemmProblem& problem, cl::Device& device,
                                       const Config&) const override {
    return std::make_unique<ClblastInvoker>(problem, device);
  }
};

}  // namespace

const GemmSolver* gemm_clblast() {
  static const Clblast solver;
  return &solver;
}

}  // namespace dlb::solver

// The GIL released for the time of a kernel call. Here rather than nanobind's own guard because of threads that still
// compute while the interpreter ends: CPython ends such a thread by unwinding its stack when it asks for the GIL again,
// which the destructors on the way turn into an abort of the process. It sleeps instead, until the process is gone.
#pragma once
#include <Python.h>
#include <unistd.h>

namespace tenonnx {

class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace tenonnx

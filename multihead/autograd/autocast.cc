#include "multihead/autograd/autocast.h"

#include "multihead/core/error.h"

namespace multihead {
namespace {

thread_local bool on = false;

}  // namespace

Autocast::Autocast(Dtype dtype) : outer_(on) {
  MH_CHECK(dtype == Dtype::bf16 || dtype == Dtype::f32, DtypeError,
           "autocast: dtype must be bf16 or f32, got ", dtype);
  on = dtype == Dtype::bf16;
}
Autocast::~Autocast() { on = outer_; }
bool Autocast::active() { return on; }

}  // namespace multihead

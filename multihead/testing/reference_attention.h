// The attention specification under the name the tests use; kernels/attention_reference.h holds it because
// f64 attention runs on it.
#pragma once

#include "multihead/kernels/attention/reference-inl.h"

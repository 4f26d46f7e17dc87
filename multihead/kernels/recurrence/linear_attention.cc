// Columns of the state do not meet: a task takes 32 of them of one head of keys through all tokens, in the order of the
// tokens, and holds them in the first cache (8 KB of f32 for 64 rows). So neither chunks nor calls, batches or threads
// change a bit, and decoding is the same computation. Per token and head the state is read and written once, and read
// once more for every further head of queries; products and sums are rounded apart, alike on every instruction set.
//
// The backward recomputes a chunk's states from the kept one and walks it from the end. Rows of gradients of q, k and
// decays are sums over columns: 16 chains that end in a tree.
#include "multihead/kernels/recurrence/linear_attention.h"

#include <algorithm>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "multihead/kernels/recurrence/linear_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "multihead/core/threads/parallel.h"

#ifndef MULTIHEAD_KERNELS_LINEAR_ATTENTION_ONCE
#define MULTIHEAD_KERNELS_LINEAR_ATTENTION_ONCE
namespace multihead::kernels {

inline constexpr int64_t kStateColumns = 32;

// One task's part of the tensors: a head of keys of one sequence, up to 32 columns of its values.
struct StatePart {
  int64_t head, batch, block, first, columns, length;
};

inline StatePart state_part(int64_t task, const LinearAttentionSizes& s) {
  StatePart p{};
  p.head = task / s.blocks(), p.block = task % s.blocks(), p.batch = p.head / s.kv_heads;
  p.first = p.block * kStateColumns, p.columns = std::min(kStateColumns, s.value_dim - p.first);
  p.length = s.lengths != nullptr ? s.lengths[p.batch] : s.length;
  return p;
}

// The first head of queries of a task.
inline int64_t query_head(const StatePart& p, const LinearAttentionSizes& s) {
  return p.head * (s.heads / s.kv_heads);
}

}  // namespace multihead::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace multihead::kernels::HWY_NAMESPACE {

template <class T>
void LoadRows(const T* from, T* rows, int64_t count, const StatePart& p, const LinearAttentionSizes& s) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t c = 0; c < kStateColumns; ++c) {
      rows[i * kStateColumns + c] =
          from != nullptr && c < p.columns ? from[i * s.value_dim + p.first + c] : 0;
    }
  }
}
template <class T>
void StoreRows(const T* rows, T* to, int64_t count, const StatePart& p, const LinearAttentionSizes& s) {
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(rows + i * kStateColumns, p.columns, to + i * s.value_dim + p.first);
  }
}

template <class T>
HWY_INLINE void AddScaled(T factor, const T* HWY_RESTRICT x, T* HWY_RESTRICT y) {
  for (int64_t c = 0; c < kStateColumns; ++c) y[c] += factor * x[c];
}
template <class T>
HWY_INLINE void Scale(T factor, T* x) {
  for (int64_t c = 0; c < kStateColumns; ++c) x[c] *= factor;
}
template <class T>
HWY_INLINE T Dot(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b) {
  T sums[16];
  for (int64_t c = 0; c < 16; ++c) sums[c] = a[c] * b[c] + a[c + 16] * b[c + 16];
  for (int64_t half = 8; half > 0; half /= 2) {
    for (int64_t c = 0; c < half; ++c) sums[c] += sums[c + half];
  }
  return sums[0];
}

// A token of a task: its row of each tensor.
template <class T>
struct Token {
  const T *k, *decay;
  T beta;
  T v[kStateColumns];

  Token(const LinearAttentionInputs<T>& in, const StatePart& p, const LinearAttentionSizes& s, int64_t t) {
    const int64_t at = p.head * s.length + t;
    k = in.k + at * s.dim;
    decay = in.decay != nullptr ? in.decay + at * s.decays : nullptr;
    beta = in.beta != nullptr ? in.beta[at] : T{1};
    LoadRows(in.v + at * s.value_dim, v, 1, p, s);
  }
  T decay_of(int64_t i, const LinearAttentionSizes& s) const { return s.decays == 1 ? decay[0] : decay[i]; }
};

// state: S -> S'; u.
template <class T>
HWY_INLINE void Step(const Token<T>& token, const LinearAttentionSizes& s, T* state, T* u, T* error) {
  T seen[kStateColumns] = {};
  for (int64_t i = 0; i < s.dim; ++i) {
    T* row = state + i * kStateColumns;
    if (token.decay != nullptr) Scale(token.decay_of(i, s), row);
    if (s.is_delta) AddScaled(token.k[i], row, seen);
  }
  for (int64_t c = 0; c < kStateColumns; ++c) {
    error[c] = s.is_delta ? token.v[c] - seen[c] : token.v[c];
    u[c] = token.beta * error[c];
  }
}

template <class T>
void RunTask(int64_t task, const LinearAttentionInputs<T>& in, T* out, T* last, T* kept,
             const LinearAttentionSizes& s) {
  const StatePart p = state_part(task, s);
  std::vector<T> rows(static_cast<size_t>(s.dim * kStateColumns));
  T* state = rows.data();
  const int64_t whole = s.dim * s.value_dim, group = s.heads / s.kv_heads;
  LoadRows(in.state != nullptr ? in.state + p.head * whole : nullptr, state, s.dim, p, s);
  for (int64_t t = 0; t < p.length; ++t) {
    if (kept != nullptr && t % s.chunk == 0) {
      StoreRows(state, kept + (p.head * s.chunks() + t / s.chunk) * whole, s.dim, p, s);
    }
    const Token<T> token(in, p, s, t);
    T u[kStateColumns], error[kStateColumns];
    Step(token, s, state, u, error);
    for (int64_t i = 0; i < s.dim; ++i) AddScaled(token.k[i], u, state + i * kStateColumns);
    for (int64_t g = 0; g < group; ++g) {
      const int64_t at = (query_head(p, s) + g) * s.length + t;
      T sums[kStateColumns] = {};
      for (int64_t i = 0; i < s.dim; ++i) AddScaled(in.q[at * s.dim + i], state + i * kStateColumns, sums);
      Scale(static_cast<T>(s.scale), sums);
      StoreRows(sums, out + at * s.value_dim, 1, p, s);
    }
  }
  for (int64_t g = 0; g < group; ++g) {
    for (int64_t t = p.length; t < s.length; ++t) {
      std::fill_n(out + ((query_head(p, s) + g) * s.length + t) * s.value_dim + p.first, p.columns, T{0});
    }
  }
  StoreRows(state, last + p.head * whole, s.dim, p, s);
}

// A chunk's S', u and v - S'ᵀk of every token.
template <class T>
struct ChunkStates {
  std::vector<T> states, u, errors;
  explicit ChunkStates(const LinearAttentionSizes& s)
      : states(static_cast<size_t>(s.chunk * s.dim * kStateColumns)),
        u(static_cast<size_t>(s.chunk * kStateColumns)),
        errors(u.size()) {}
};

template <class T>
class BackwardTask {
 public:
  BackwardTask(int64_t task, const LinearAttentionInputs<T>& in, const T* kept,
               const LinearAttentionGradients<T>& d, const LinearAttentionSizes& s)
      : in_(in), kept_(kept), d_(d), s_(s), p_(state_part(task, s)), chunk_(s) {
    gradient_.resize(static_cast<size_t>(s.dim * kStateColumns));
  }

  void Run() {
    const int64_t whole = s_.dim * s_.value_dim;
    LoadRows(d_.d_state != nullptr ? d_.d_state + p_.head * whole : nullptr, gradient_.data(), s_.dim, p_,
             s_);
    for (int64_t first = (p_.length - 1) / s_.chunk * s_.chunk; p_.length > 0 && first >= 0;
         first -= s_.chunk) {
      const int64_t count = std::min(s_.chunk, p_.length - first);
      Recompute(first, count);
      for (int64_t t = count - 1; t >= 0; --t) Back(first + t, t);
    }
    if (d_.state != nullptr) StoreRows(gradient_.data(), d_.state + p_.head * whole, s_.dim, p_, s_);
  }

 private:
  void Recompute(int64_t first, int64_t count) {
    const int64_t size = s_.dim * kStateColumns;
    std::vector<T> state(static_cast<size_t>(size));
    LoadRows(kept_ + (p_.head * s_.chunks() + first / s_.chunk) * s_.dim * s_.value_dim, state.data(), s_.dim,
             p_, s_);
    for (int64_t t = 0; t < count; ++t) {
      const Token<T> token(in_, p_, s_, first + t);
      T* u = chunk_.u.data() + t * kStateColumns;
      Step(token, s_, state.data(), u, chunk_.errors.data() + t * kStateColumns);
      std::copy(state.begin(), state.end(), chunk_.states.begin() + t * size);
      for (int64_t i = 0; i < s_.dim; ++i) AddScaled(token.k[i], u, state.data() + i * kStateColumns);
    }
  }

  // G += scale q d_outᵀ; dq = scale (S' + k uᵀ) d_out.
  void BackOutput(int64_t t, const Token<T>& token, const T* states, const T* u) {
    const int64_t group = s_.heads / s_.kv_heads;
    for (int64_t g = 0; g < group; ++g) {
      const int64_t at = (query_head(p_, s_) + g) * s_.length + t;
      T d[kStateColumns];
      LoadRows(d_.d_out + at * s_.value_dim, d, 1, p_, s_);
      Scale(static_cast<T>(s_.scale), d);
      const T along = Dot(u, d);
      T* dq = d_.q + (p_.block * s_.batch * s_.heads * s_.length + at) * s_.dim;
      for (int64_t i = 0; i < s_.dim; ++i) {
        dq[i] = Dot(states + i * kStateColumns, d) + token.k[i] * along;
        AddScaled(in_.q[at * s_.dim + i], d, gradient_.data() + i * kStateColumns);
      }
    }
  }

  void Back(int64_t t, int64_t place) {
    const Token<T> token(in_, p_, s_, t);
    const T* states = chunk_.states.data() + place * s_.dim * kStateColumns;
    const T *u = chunk_.u.data() + place * kStateColumns,
            *error = chunk_.errors.data() + place * kStateColumns;
    BackOutput(t, token, states, u);
    const int64_t at = p_.head * s_.length + t, row = p_.block * s_.batch * s_.kv_heads * s_.length + at;
    T* dk = d_.k + row * s_.dim;
    T du[kStateColumns] = {};
    for (int64_t i = 0; i < s_.dim; ++i) {
      const T* g = gradient_.data() + i * kStateColumns;
      AddScaled(token.k[i], g, du);
      dk[i] = Dot(g, u);
    }
    if (d_.beta != nullptr) d_.beta[row] = Dot(du, error);
    Scale(token.beta, du);
    StoreRows(du, d_.v + at * s_.value_dim, 1, p_, s_);
    if (s_.is_delta) {  // through what the state said of k
      for (int64_t i = 0; i < s_.dim; ++i) {
        dk[i] -= Dot(states + i * kStateColumns, du);
        AddScaled(-token.k[i], du, gradient_.data() + i * kStateColumns);
      }
    }
    if (token.decay != nullptr) BackDecay(token, states, d_.log_decay + row * s_.decays);
  }

  void BackDecay(const Token<T>& token, const T* states, T* d_decay) {
    for (int64_t i = 0; i < s_.dim; ++i) {
      T* g = gradient_.data() + i * kStateColumns;
      d_decay[s_.decays == 1 ? 0 : i] += Dot(g, states + i * kStateColumns);
      Scale(token.decay_of(i, s_), g);
    }
  }

  const LinearAttentionInputs<T>& in_;
  const T* kept_;
  const LinearAttentionGradients<T>& d_;
  const LinearAttentionSizes& s_;
  StatePart p_;
  ChunkStates<T> chunk_;
  std::vector<T> gradient_;
};

void ForwardF32(int64_t task, const LinearAttentionInputs<float>& in, float* out, float* last, float* kept,
                const LinearAttentionSizes& s) {
  RunTask(task, in, out, last, kept, s);
}
void ForwardF64(int64_t task, const LinearAttentionInputs<double>& in, double* out, double* last,
                double* kept, const LinearAttentionSizes& s) {
  RunTask(task, in, out, last, kept, s);
}
void BackwardF32(int64_t task, const LinearAttentionInputs<float>& in, const float* kept,
                 const LinearAttentionGradients<float>& d, const LinearAttentionSizes& s) {
  BackwardTask<float>(task, in, kept, d, s).Run();
}
void BackwardF64(int64_t task, const LinearAttentionInputs<double>& in, const double* kept,
                 const LinearAttentionGradients<double>& d, const LinearAttentionSizes& s) {
  BackwardTask<double>(task, in, kept, d, s).Run();
}

}  // namespace multihead::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace multihead::kernels {
namespace {

HWY_EXPORT(ForwardF32);
HWY_EXPORT(ForwardF64);
HWY_EXPORT(BackwardF32);
HWY_EXPORT(BackwardF64);

int64_t state_tasks(const LinearAttentionSizes& s) { return s.batch * s.kv_heads * s.blocks(); }

}  // namespace

void linear_attention(const LinearAttentionInputs<float>& in, float* out, float* state, float* kept,
                      const LinearAttentionSizes& s) {
  const auto run = HWY_DYNAMIC_DISPATCH(ForwardF32);
  parallel_for(state_tasks(s), [&](int64_t task, int) { run(task, in, out, state, kept, s); });
}
void linear_attention(const LinearAttentionInputs<double>& in, double* out, double* state, double* kept,
                      const LinearAttentionSizes& s) {
  const auto run = HWY_DYNAMIC_DISPATCH(ForwardF64);
  parallel_for(state_tasks(s), [&](int64_t task, int) { run(task, in, out, state, kept, s); });
}
void linear_attention_backward(const LinearAttentionInputs<float>& in, const float* kept,
                               const LinearAttentionGradients<float>& d, const LinearAttentionSizes& s) {
  const auto run = HWY_DYNAMIC_DISPATCH(BackwardF32);
  parallel_for(state_tasks(s), [&](int64_t task, int) { run(task, in, kept, d, s); });
}
void linear_attention_backward(const LinearAttentionInputs<double>& in, const double* kept,
                               const LinearAttentionGradients<double>& d, const LinearAttentionSizes& s) {
  const auto run = HWY_DYNAMIC_DISPATCH(BackwardF64);
  parallel_for(state_tasks(s), [&](int64_t task, int) { run(task, in, kept, d, s); });
}

}  // namespace multihead::kernels
#endif  // HWY_ONCE

// The tile registers of a thread.
#include "multihead/kernels/amx/amx-inl.h"
#include "multihead/kernels/amx/tile_target-inl.h"

namespace multihead::kernels {
namespace {

#if MH_TILES
__attribute__((target("amx-tile"))) void configure_tiles() {
  alignas(64) uint8_t config[64] = {};
  config[0] = 1;
  for (int t = 0; t < 8; ++t) {
    config[16 + 2 * t] = 64;  // bytes of a row
    config[48 + t] = 16;      // rows
  }
  __asm__ volatile("" ::"m"(config) : "memory");  // the intrinsics do not tell the compiler what they read
  _tile_loadconfig(config);
}

__attribute__((target("amx-tile"))) void release_tiles() { _tile_release(); }

#else
void configure_tiles() {}
void release_tiles() {}
#endif

}  // namespace

PartScheme part_scheme(MatmulPrecision precision) {
  switch (precision) {
    case MatmulPrecision::medium:
      return {1, 1};
    case MatmulPrecision::high:
      return {2, 3};
    default:
      return {3, 6};
  }
}

AmxRegisters::AmxRegisters(bool wanted) : wanted_(wanted) {
  if (wanted_) configure_tiles();
}

AmxRegisters::~AmxRegisters() {
  if (wanted_) release_tiles();
}

}  // namespace multihead::kernels

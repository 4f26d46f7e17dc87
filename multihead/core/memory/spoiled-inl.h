// Memory that nobody has written, for tests of whether anybody does.
#pragma once

namespace multihead::detail {

/// While one is alive, new tensors hold NaN of every floating type, on all threads.
class SpoiledMemory {
 public:
  SpoiledMemory();
  ~SpoiledMemory();
  SpoiledMemory(const SpoiledMemory&) = delete;
  SpoiledMemory& operator=(const SpoiledMemory&) = delete;
};

}  // namespace multihead::detail

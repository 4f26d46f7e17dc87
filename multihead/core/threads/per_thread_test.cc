#include "multihead/core/threads/per_thread-inl.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace multihead {
namespace {

int alive = 0;

struct Counted {
  Counted() { ++alive; }
  ~Counted() { --alive; }
  std::string text = std::string(1000, 'x');
};

thread_local PerThread<Counted> own;

// Made before the first PerThread of its thread, so that it ends after all of them.
struct Late {
  ~Late() {
    if (use) use();
  }
  void (*use)() = nullptr;
};

TEST(PerThreadTest, EndsWithItsThread) {
  std::thread([] {
    own->text += 'y';
    EXPECT_EQ(alive, 1);
    EXPECT_EQ((*own).text.size(), 1001u);
  }).join();
  EXPECT_EQ(alive, 0);
}

TEST(PerThreadTest, IsMadeAnewForWhatRunsAfterItsEnd) {
  static Counted* left = nullptr;  // never freed
  std::thread([] {
    thread_local Late late;
    late.use = [] { left = &*own; };
    own->text += 'y';
  }).join();
  ASSERT_EQ(alive, 1);
  EXPECT_EQ(left->text.size(), 1000u);
  delete left;
}

}  // namespace
}  // namespace multihead

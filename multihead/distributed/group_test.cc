#include "multihead/distributed/group.h"

#include <gtest/gtest.h>

#include <atomic>

#include "multihead/core/error.h"
#include "multihead/distributed/local_group.h"
#include "multihead/testing/thread_limit.h"

namespace multihead::distributed {
namespace {

std::span<const std::byte> bytes(const std::vector<int>& v) { return std::as_bytes(std::span(v)); }
std::span<std::byte> bytes(std::vector<int>& v) { return std::as_writable_bytes(std::span(v)); }

TEST(GroupTest, ASingleRankNeedsNobody) {
  const auto group = single();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  std::vector<int> data = {1, 2};
  group->broadcast(0, bytes(data));
  group->barrier();
  EXPECT_EQ(group->broadcast_text(0, "abc"), "abc");
  EXPECT_EQ(group->gather(0, "abc"), std::vector<std::string>{"abc"});
  EXPECT_THROW(group->send(0, bytes(data)), ValueError);
  EXPECT_THROW(group->recv(1, bytes(data)), ValueError);
}

TEST(GroupTest, MessagesArriveInOrderByTag) {
  run_local_group(2, [](Group& group) {
    if (group.rank() == 0) {
      for (const int value : {1, 2}) group.send(1, bytes(std::vector<int>{value}), 5);
      group.send(1, bytes(std::vector<int>{3}), 6);
      EXPECT_EQ(group.bytes_sent(), 3 * static_cast<int64_t>(sizeof(int)));
      return;
    }
    std::vector<int> a(1), b(1), c(1);
    group.recv(0, bytes(c), 6);
    group.recv(0, bytes(a), 5);
    group.recv(0, bytes(b), 5);
    EXPECT_EQ(a[0], 1);
    EXPECT_EQ(b[0], 2);
    EXPECT_EQ(c[0], 3);
  });
}

TEST(GroupTest, ARingTurns) {
  for (const int size : {2, 3, 5}) {
    run_local_group(size, [](Group& group) {
      const int next = (group.rank() + 1) % group.size();
      const int before = (group.rank() - 1 + group.size()) % group.size();
      std::vector<int> own(1000, group.rank()), other(1000);
      for (int turn = 1; turn <= group.size(); ++turn) {
        group.sendrecv(next, bytes(own), before, bytes(other));
        std::swap(own, other);
        EXPECT_EQ(own[999], (group.rank() - turn + group.size()) % group.size());
      }
    });
  }
}

TEST(GroupTest, BroadcastAndGatherFromEveryRoot) {
  for (const int size : {1, 2, 3, 4, 7, 8}) {
    run_local_group(size, [](Group& group) {
      for (int root = 0; root < group.size(); ++root) {
        std::vector<int> data(3, group.rank() == root ? root + 100 : -1);
        group.broadcast(root, bytes(data));
        EXPECT_EQ(data, std::vector<int>(3, root + 100));
        const std::string long_text(static_cast<size_t>(root) * 1000, 'x');
        EXPECT_EQ(group.broadcast_text(root, group.rank() == root ? long_text : ""), long_text);
        const auto texts = group.gather(root, std::string(static_cast<size_t>(group.rank()), 'a'));
        if (group.rank() != root) continue;
        ASSERT_EQ(texts.size(), static_cast<size_t>(group.size()));
        for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(texts[i].size(), i);
      }
      for (const int root : {-1, group.size()}) EXPECT_THROW(group.broadcast_text(root, "a"), ValueError);
    });
  }
}

TEST(GroupTest, NobodyLeavesABarrierBeforeTheLastHasCome) {
  std::atomic<int> arrived{0};
  run_local_group(6, [&](Group& group) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      group.barrier();
      EXPECT_GE(arrived, round * 6);
      group.barrier();
    }
  });
}

TEST(GroupTest, AFailureReachesThoseWhoWait) {
  try {
    run_local_group(3, [](Group& group) {
      if (group.rank() == 1) throw ValueError("rank 1 is ill");
      std::vector<int> data(1);
      group.recv(1, bytes(data));
    });
    FAIL() << "no exception";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "rank 1 is ill");
  }
}

TEST(GroupTest, RanksWithoutAThreadAreAnErrorBeforeAnyRuns) {
  for (const auto error : {ThreadLimit::Error::system, ThreadLimit::Error::memory}) {
    for (int allowed = 0; allowed <= 3; ++allowed) {
      const ThreadLimit limit(allowed, error);
      std::atomic<int> ran = 0;
      const auto call = [&] { run_local_group(3, [&](Group&) { ++ran; }); };
      if (allowed == 3) {
        call();
        EXPECT_EQ(ran, 3);
        continue;
      }
      try {
        call();
        ADD_FAILURE() << "no error with " << allowed << " threads";
      } catch (const GroupError& failure) {
        EXPECT_NE(std::string(failure.what()).find(concat("only ", allowed, " of 3 ranks")),
                  std::string::npos)
            << failure.what();
      }
      EXPECT_EQ(ran, 0);
    }
  }
}

TEST(GroupTest, AMessageOfAnotherSizeIsRefused) {
  EXPECT_THROW(run_local_group(2,
                               [](Group& group) {
                                 std::vector<int> data(group.rank() == 0 ? 2 : 3);
                                 group.rank() == 0 ? group.send(1, bytes(data)) : group.recv(0, bytes(data));
                               }),
               ValueError);
}

}  // namespace
}  // namespace multihead::distributed

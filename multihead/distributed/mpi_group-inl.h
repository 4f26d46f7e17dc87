// A Group over a plugin's table of functions.
#pragma once

#include <memory>

#include "multihead/distributed/group.h"
#include "multihead/distributed/mpi_functions.h"

namespace multihead::distributed {

class Watch;

class MpiGroup final : public Group {
 public:
  /// `functions` outlives the group.
  explicit MpiGroup(const MpiFunctions& functions);
  ~MpiGroup() override;

  /// Waits for all ranks and leaves the job.
  void leave();
  void abort(int code);

 private:
  MessagePtr start_send(int to, std::span<const std::byte> data, int tag) override;
  MessagePtr start_recv(int from, std::span<std::byte> data, int tag) override;

  const MpiFunctions& mpi_;
  std::unique_ptr<Watch> watch_;
};

}  // namespace multihead::distributed

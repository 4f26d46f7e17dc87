// The ranks of a job.
#include "multihead/distributed/world.h"

#include <nanobind/stl/shared_ptr.h>

#include "multihead/core/threads/parallel.h"
#include "python/src/bindings.h"
#include "python/src/modules.h"

namespace multihead::python {
namespace {

using distributed::Group;

std::span<const std::byte> view_of(const nb::bytes& data) {
  return std::as_bytes(std::span(data.c_str(), data.size()));
}

nb::bytes to_bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

std::shared_ptr<Group> join() {
  std::shared_ptr<Group> group = unlocked([] { return distributed::world(); });
  if (group->size() > 1) set_num_threads(distributed::threads_per_rank());
  return group;
}

}  // namespace

void bind_distributed(nb::module_& m) {
  nb::class_<Group>(m, "Group", "The ranks of a job: see multihead.distributed.")
      .def_prop_ro("rank", &Group::rank)
      .def_prop_ro("size", &Group::size)
      .def_prop_ro("bytes_sent", &Group::bytes_sent, "Bytes that this rank has sent to others.")
      .def("barrier", &Group::barrier, nb::call_guard<Unlocked>(), "Returns once every rank has called it.")
      .def(
          "send",
          [](Group& group, int to, const nb::bytes& data) {
            unlocked([&] {
              group.send(to, view_of(data));
              return 0;
            });
          },
          "to"_a, "data"_a, "Sends bytes to a rank.")
      .def(
          "recv",
          [](Group& group, int source, int64_t size) {
            MH_CHECK(size >= 0, ValueError, "recv: size must be at least 0, got ", size);
            std::string data(static_cast<size_t>(size), '\0');
            unlocked([&] {
              group.recv(source, std::as_writable_bytes(std::span(data)));
              return 0;
            });
            return to_bytes(data);
          },
          "source"_a, "size"_a, "Receives this many bytes from a rank.")
      .def(
          "broadcast",
          [](Group& group, const nb::bytes& data, int root) {
            std::string text(data.c_str(), data.size());
            return to_bytes(unlocked([&] { return group.broadcast_text(root, text); }));
          },
          "data"_a, "root"_a = 0, "The root's bytes, on every rank.")
      .def(
          "gather",
          [](Group& group, const nb::bytes& data, int root) {
            const std::string text(data.c_str(), data.size());
            nb::list all;
            for (const std::string& one : unlocked([&] { return group.gather(root, text); })) {
              all.append(to_bytes(one));
            }
            return all;
          },
          "data"_a, "root"_a = 0,
          "Every rank's bytes at the root, in order of ranks; elsewhere an empty list.");
  m.def("join_world", &join, "The job's group; see multihead.distributed.group().");
  m.def("leave_world", &distributed::leave_world, nb::call_guard<Unlocked>(),
        "Leaves the job, once all ranks do.");
  m.def("abort_world", &distributed::abort_world, "code"_a, "Ends all processes of the job.");
}

}  // namespace multihead::python

// Owns the words in which a kernel says how it is launched and what it touches.
#pragma once

#include <cstddef>
#include <cstdint>

namespace glm53 {

struct LaunchShape {
  dim3 grid, block;
  std::size_t dynamic_shared_bytes = 0;
  // So many neighbours in x form a thread block cluster.
  std::uint32_t cluster = 1;
  // Launched before the kernel ahead of it has ended: nothing that it writes is there before
  // pdl_wait().
  bool pdl = false;
};

// What a kernel does with a buffer. kConstant: only reads it, and no kernel ahead of it writes it,
// so that it may be read before pdl_wait().
enum class Access : std::uint8_t { kConstant, kRead, kWrite, kReadWrite };

// A kernel's parameters are one struct. Its each_buffer(visit) calls
//   visit(name, base, rows, row_bytes, stride_bytes, access)
// for each buffer: `rows` of `row_bytes`, one every `stride_bytes`; a null base stands for an
// absent one. The emulation holds every access of the kernel against this description.

}  // namespace glm53

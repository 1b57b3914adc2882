// Owns what Python may ask of the emulation in a module of emulated kernels.
#pragma once

#include <tvm/ffi/string.h>

#include <emulation/launch.h>

namespace glm53::emulation {

// From now on blocks and threads run in this order: forward, reversed, or random from this seed.
inline void set_schedule(tvm::ffi::String order, std::int64_t seed) {
  schedule = {parse_order(std::string_view(order.data(), order.size())),
              static_cast<std::uint64_t>(seed)};
}

// The last launch's global memory, a line for each buffer: its name, bytes read, bytes written.
inline tvm::ffi::String last_traffic() {
  std::string text;
  for (const Buffer& buffer : traffic) {
    text += std::string(buffer.name) + " " + std::to_string(buffer.bytes_read) + " " +
            std::to_string(buffer.bytes_written) + "\n";
  }
  return text;
}

}  // namespace glm53::emulation

// Owns global memory: which accesses a kernel may make, and how many bytes it reads and writes.
// Every load_global and store_global is counted, and refused when it is misaligned or outside the
// buffers that the kernel's parameters describe. What a kernel dereferences by itself, only the
// sanitizers see.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <emulation/block.h>
#include <glm53/launch.cuh>

namespace glm53::emulation {

struct Buffer {
  const char* name;
  const void* base;
  std::uint64_t rows, row_bytes, stride_bytes;
  Access access;
  std::uint64_t bytes_read = 0, bytes_written = 0;

  bool allows(bool writing) const {
    if (access == Access::kReadWrite) return true;
    return (access == Access::kWrite) == writing;
  }
  // What lies between two rows is out of bounds.
  bool holds(std::uintptr_t address, std::uint64_t bytes) const {
    const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(base);
    if (address < first || rows == 0) return false;
    const std::uint64_t offset = address - first;
    const std::uint64_t row = rows > 1 ? offset / stride_bytes : 0;
    return row < rows && offset - row * stride_bytes + bytes <= row_bytes;
  }
};

class Memory {
 public:
  void describe(std::vector<Buffer> buffers) { buffers_ = std::move(buffers); }
  const std::vector<Buffer>& buffers() const { return buffers_; }

  // Counts the access, or says why the thread may not make it.
  std::string admit(const Thread& thread, const void* pointer, std::uint64_t bytes, bool writing) {
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(pointer);
    if (address % bytes) return describe_access(bytes, writing) + ", misaligned";
    for (Buffer& buffer : buffers_) {
      if (!buffer.holds(address, bytes) || !buffer.allows(writing)) continue;
      if (!thread.inputs_ready && buffer.access != Access::kConstant) {
        return describe_access(bytes, writing) + ", of " + buffer.name + " before pdl_wait()";
      }
      (writing ? buffer.bytes_written : buffer.bytes_read) += bytes;
      return "";
    }
    return buffers_.empty() ? "" : describe_access(bytes, writing) + ", " + place(address);
  }

 private:
  static std::string describe_access(std::uint64_t bytes, bool writing) {
    return std::string(writing ? "store" : "load") + " of " + std::to_string(bytes) + " bytes";
  }
  std::string place(std::uintptr_t address) const {
    for (const Buffer& buffer : buffers_) {
      const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(buffer.base);
      const std::uint64_t span = buffer.rows * std::max(buffer.stride_bytes, buffer.row_bytes);
      if (buffer.rows && address >= first && address < first + span) {
        return "at byte " + std::to_string(address - first) + " of " + buffer.name +
               ", where its description does not let it";
      }
    }
    return "outside every buffer";
  }

  std::vector<Buffer> buffers_;
};

}  // namespace glm53::emulation

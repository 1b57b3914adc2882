// Owns fibers: a stack for each CUDA thread, and what the sanitizers must know of every switch.
// A switch is a dozen instructions on x86-64 and a ucontext call elsewhere.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#define GLM53_NO_TSAN __attribute__((no_sanitize_thread))
#else
#define GLM53_NO_TSAN
#endif
#if defined(__x86_64__) && !defined(GLM53_EMULATION_UCONTEXT)
#define GLM53_EMULATION_ASSEMBLY
#else
#include <ucontext.h>
#endif

namespace glm53::emulation {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// While one of these lives, ThreadSanitizer overlooks what the calling thread reads and writes. The
// scheduler runs as every CUDA thread in turn and orders its own data by never running twice at
// once.
class RuntimeScope {
 public:
  RuntimeScope() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  }
  ~RuntimeScope() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
  }
  RuntimeScope(const RuntimeScope&) = delete;
  RuntimeScope& operator=(const RuntimeScope&) = delete;
};

#if defined(GLM53_EMULATION_ASSEMBLY)
// swap(save, load): push the registers that a callee must keep, put the stack pointer into *save,
// take `load` for it, pop the other fiber's registers and return to where that one left.
asm(R"(
    .text
    .p2align 4
    .type glm53_emulation_swap, @function
glm53_emulation_swap:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size glm53_emulation_swap, .-glm53_emulation_swap
)");
extern "C" void glm53_emulation_swap(void** save, void* load);
#endif

class Fiber {
 public:
  // Adopts the calling thread and its stack.
  Fiber() = default;
  // Has a stack of its own, below which lies a page that faults.
  explicit Fiber(std::size_t stack_bytes) : size_(stack_bytes) {
    void* mapped = mmap(nullptr, kGuard + size_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    mprotect(mapped, kGuard, PROT_NONE);
    bottom_ = static_cast<char*>(mapped) + kGuard;
    mapped_ = mapped;
  }
  ~Fiber() {
    if (mapped_) munmap(mapped_, kGuard + size_);
  }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next switch to this fiber calls entry(), which must not return. Whatever stood on its stack
  // is forgotten.
  void prepare(void (*entry)()) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(bottom_, size_);
    fake_stack_ = nullptr;
#endif
#if defined(GLM53_EMULATION_ASSEMBLY)
    // From the top: a null return address for entry(), entry() itself, six registers.
    void** top = reinterpret_cast<void**>(bottom_ + size_);
    top[-1] = nullptr;
    top[-2] = reinterpret_cast<void*>(entry);
    for (int i = 3; i <= 8; ++i) top[-i] = nullptr;
    stack_pointer_ = top - 8;
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = bottom_;
    context_.uc_stack.ss_size = size_;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
#endif
  }

  // ThreadSanitizer's identity: a CUDA thread of one block gets its own, so that blocks stay
  // unordered.
  void adopt_identity() {
#if defined(__SANITIZE_THREAD__)
    identity_ = __tsan_get_current_fiber();
#endif
  }
  void new_identity() {
#if defined(__SANITIZE_THREAD__)
    // A fresh mapping, or the stack's last user would seem to race with this one.
    mmap(bottom_, size_, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    identity_ = __tsan_create_fiber(0);
#endif
  }
  void drop_identity() {
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(identity_);
#endif
  }

  // Runs `to` until something switches back. `for_good`: nothing ever will.
  GLM53_NO_TSAN static void switch_to(Fiber& from, Fiber& to, bool for_good = false) {
    [[maybe_unused]] void* load = to.stack_pointer_;
    [[maybe_unused]] void** save = &from.stack_pointer_;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &from.fake_stack_, to.bottom_, to.size_);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to.identity_, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(GLM53_EMULATION_ASSEMBLY)
    glm53_emulation_swap(save, load);
#else
    swapcontext(&from.context_, &to.context_);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from.fake_stack_, nullptr, nullptr);
#endif
    (void)for_good;
  }

  // First thing in entry(). `starter`: the fiber that adopted its thread, whose stack
  // AddressSanitizer tells here and nowhere else.
  static void arrived(Fiber& starter) {
#if defined(__SANITIZE_ADDRESS__)
    const void* bottom = nullptr;
    std::size_t size = 0;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &size);
    if (!starter.bottom_) {
      starter.bottom_ = static_cast<char*>(const_cast<void*>(bottom));
      starter.size_ = size;
    }
#endif
    (void)starter;
  }

  // Everything that the members did comes before anything that they do from now on. The calling
  // thread, `self`, says so for all of them: were each to order itself when it resumes, it would
  // pick up what faster ones did after the barrier as well, and races would pass.
  GLM53_NO_TSAN static void order(Fiber* const* members, std::size_t count, const Fiber& self,
                                  void* meeting) {
#if defined(__SANITIZE_THREAD__)
    for (std::size_t i = 0; i < count; ++i) {
      __tsan_switch_to_fiber(members[i]->identity_, __tsan_switch_to_fiber_no_sync);
      __tsan_release(meeting);
    }
    for (std::size_t i = 0; i < count; ++i) {
      __tsan_switch_to_fiber(members[i]->identity_, __tsan_switch_to_fiber_no_sync);
      __tsan_acquire(meeting);
    }
    __tsan_switch_to_fiber(self.identity_, __tsan_switch_to_fiber_no_sync);
#else
    (void)members, (void)count, (void)self, (void)meeting;
#endif
  }
  static void release(void* place) {
#if defined(__SANITIZE_THREAD__)
    __tsan_release(place);
#endif
    (void)place;
  }
  static void acquire(void* place) {
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(place);
#endif
    (void)place;
  }

 private:
  static constexpr std::size_t kGuard = 4096;

#if defined(__SANITIZE_THREAD__)
  void* identity_ = nullptr;
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack_ = nullptr;
#endif
#if !defined(GLM53_EMULATION_ASSEMBLY)
  ucontext_t context_{};
#endif
  void* stack_pointer_ = nullptr;
  void* mapped_ = nullptr;
  char* bottom_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace glm53::emulation

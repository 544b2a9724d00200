// A card of one core, for tests: blocks one after another, the threads of a block in turn, each
// until it waits for the others. What a kernel gives here it gives on a card, but for rounding.
#include <math.h>
#include <setjmp.h>
#include <string.h>
#include <ucontext.h>

// Whether the kernel's threads wait for one another.
#ifndef SOUK_WAITS
#define SOUK_WAITS true
#endif
#define __global__
#define __shared__ static
#define __launch_bounds__(threads)

struct Place {
  unsigned x, y, z;
};
static Place threadIdx, blockIdx, blockDim, gridDim;
static const unsigned THREADS_MAX = 1024, STACK_BYTES = 64 << 10;
// A switch between two threads is a jump: `swapcontext` would make a system call each time.
static jmp_buf turns, paused[THREADS_MAX];
static ucontext_t starts;
static char stacks[THREADS_MAX][STACK_BYTES];
static bool started[THREADS_MAX], done[THREADS_MAX];
static unsigned turn, left;

static void __syncthreads() {
  if (!_setjmp(paused[turn])) _longjmp(turns, 1);
}
static void __threadfence_block() {}
static float __uint_as_float(unsigned a) { float r; memcpy(&r, &a, 4); return r; }
static float __int_as_float(int a) { float r; memcpy(&r, &a, 4); return r; }
static unsigned __float_as_uint(float a) { unsigned r; memcpy(&r, &a, 4); return r; }
static int __float_as_int(float a) { int r; memcpy(&r, &a, 4); return r; }
static int __float2int_rz(float a) {
  return a != a ? 0 : a >= 2147483648.0f ? 2147483647 : a <= -2147483648.0f ? -2147483647 - 1 : int(a);
}
static unsigned __float2uint_rz(float a) {
  return !(a > 0.0f) ? 0u : a >= 4294967296.0f ? 4294967295u : unsigned(a);
}
static float __saturatef(float a) { return a > 1.0f ? 1.0f : a > 0.0f ? a : 0.0f; }
static int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += int((signed char)(a >> i)) * int((signed char)(b >> i));
  return sum;
}
static float rsqrtf(float a) { return 1.0f / sqrtf(a); }

namespace kernel {
SOUK_KERNEL
}

template <class A> A argument(void** arrays, const unsigned* lengths, int index) {
  if constexpr (__is_same(A, unsigned)) return lengths[index / 2];
  else return static_cast<A>(arrays[index / 2]);
}
template <int... I> struct Numbers {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> { typedef Numbers<I...> Type; };

static void** given;
static const unsigned* given_lengths;
template <class... A, int... I> void call(void (*f)(A...), Numbers<I...>) {
  f(argument<A>(given, given_lengths, I)...);
}
template <class... A> void call_all(void (*f)(A...)) {
  call(f, typename Count<sizeof...(A)>::Type());
}
static void thread() {
  call_all(kernel::souk_main);
  done[turn] = true;
}
static void thread_of_its_own() {
  thread();
  _longjmp(turns, 1);
}

// Runs the thread `turn` until it waits or ends.
static void go_on() {
  if (_setjmp(turns)) return;
  if (started[turn]) _longjmp(paused[turn], 1);
  started[turn] = true;
  getcontext(&starts);
  starts.uc_stack.ss_sp = stacks[turn];
  starts.uc_stack.ss_size = STACK_BYTES;
  makecontext(&starts, thread_of_its_own, 0);
  setcontext(&starts);
}

extern "C" void souk_host(void** arrays, const unsigned* lengths, Place grid, Place block) {
  given = arrays;
  given_lengths = lengths;
  gridDim = grid;
  blockDim = block;
  unsigned count = block.x * block.y * block.z;
  for (blockIdx.z = 0; blockIdx.z < grid.z; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < grid.y; blockIdx.y++)
      for (blockIdx.x = 0; blockIdx.x < grid.x; blockIdx.x++) {
        memset(started, 0, sizeof started);
        memset(done, 0, sizeof done);
        for (left = count; left > 0;) {
          left = 0;
          for (turn = 0; turn < count; turn++) {
            if (done[turn]) continue;
            threadIdx = {turn % block.x, turn / block.x % block.y, turn / (block.x * block.y)};
            // A kernel whose threads never wait needs no stacks: each thread is a call.
            if (SOUK_WAITS) go_on();
            else thread();
            if (!done[turn]) left++;
          }
        }
      }
}

// CUDA's libraries where no card is: the driver, the compiler and cuBLASLt, as far as souk calls
// them. Kernels are compiled by the system's C++ compiler (host.cpp plays the card); what is put in
// a stream is done as late as it may be, and of other streams only what an event makes wait for, so
// memory that is read too soon or used again too early shows. Of its three cards the first reaches
// the second over NVLink and the third over PCI Express, and those two do not reach each other.
// What happens is written to the file that SOUK_FAKE_LOG names, a line each.
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

typedef unsigned long long u64;
typedef uint32_t u32;
typedef std::function<void()> Task;
enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_CONTEXT = 201, NOT_READY = 600, ILLEGAL = 700 };

static std::recursive_mutex lock;
#define LOCKED std::lock_guard<std::recursive_mutex> held(lock)

static void note(const std::string& line) {
  const char* path = getenv("SOUK_FAKE_LOG");
  if (!path) return;
  std::ofstream(path, std::ios::app) << line << "\n";
}

struct Stream {
  void* context;
  std::deque<Task> waiting;
  u64 put, done;
};
static std::vector<Stream*> streams;
static Stream* taped;
static std::vector<Task>* tape;

static void put_in(void* in, Task task) {
  Stream* stream = static_cast<Stream*>(in);
  if (tape && stream == taped) {
    tape->push_back(task);
    return;
  }
  stream->waiting.push_back(task);
  stream->put++;
}
static void do_until(Stream* stream, u64 count) {
  while (stream->done < count) {
    Task task = stream->waiting.front();
    stream->waiting.pop_front();
    task();
    stream->done++;
  }
}
static void do_all() {
  for (Stream* stream : streams) do_until(stream, stream->put);
}

struct Place {
  unsigned x, y, z;
};
typedef void (*Kernel)(void**, const unsigned*, Place, Place);
struct Function {
  Kernel run;
  int arrays;
};
struct Module {
  void* library;
  Function function;
};
struct Event {
  void* context;
  Stream* stream;
  u64 at;
};

extern "C" {

int cuInit(unsigned) { return OK; }
int cuDeviceGetCount(int* count) { return *count = 3, OK; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, OK; }
int cuDeviceGetName(char* name, int length, int) {
  snprintf(name, length, "Fake H100");
  return OK;
}
int cuMemGetInfo_v2(size_t* left, size_t* all) { return *left = 700 << 20, *all = 1u << 30, OK; }
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = 1u << 30, OK; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  // 75 and 76 are the compute capability, 115 says that there are pools of memory.
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 115 ? 1 : 0;
  return OK;
}
int cuDeviceGetPCIBusId(char* place, int length, int device) {
  // No machine has this bus.
  return snprintf(place, length, "FFFF:FF:%02X.0", device), OK;
}
static int identity(char* bytes, int device) {
  for (int i = 0; i < 16; i++) bytes[i] = char(device + i);
  return OK;
}
int cuDeviceGetUuid(char* bytes, int device) { return identity(bytes, device); }
int cuDeviceGetUuid_v2(char* bytes, int device) { return identity(bytes, device); }
static thread_local void* current;
int cuDevicePrimaryCtxRetain(void** context, int device) {
  return *context = reinterpret_cast<void*>(uintptr_t(device) + 1), OK;
}
int cuDevicePrimaryCtxRelease_v2(int) { return OK; }
int cuCtxSetCurrent(void* context) { return current = context, OK; }
int cuCtxGetCurrent(void** context) { return *context = current, OK; }
int cuCtxSynchronize() { LOCKED; return do_all(), OK; }
int cuGetErrorName(int, const char** text) { return *text = "FAKE_ERROR", OK; }
int cuGetErrorString(int, const char** text) { return *text = "an error of the fake card", OK; }

int cuStreamCreate(void** stream, unsigned) {
  LOCKED;
  if (!current) return NO_CONTEXT;
  streams.push_back(new Stream{current, {}, 0, 0});
  return *stream = streams.back(), OK;
}
// Its events may still be waited for.
int cuStreamDestroy_v2(void* it) {
  LOCKED;
  Stream* stream = static_cast<Stream*>(it);
  return do_until(stream, stream->put), OK;
}
int cuStreamSynchronize(void* it) { return cuStreamDestroy_v2(it); }
int cuStreamWaitEvent(void* stream, void* event, unsigned) {
  LOCKED;
  Event it = *static_cast<Event*>(event);
  put_in(stream, [=] {
    if (it.stream) do_until(it.stream, it.at);
  });
  return OK;
}
int cuEventCreate(void** event, unsigned) { return *event = new Event{current, nullptr, 0}, OK; }
int cuEventDestroy_v2(void* event) { return delete static_cast<Event*>(event), OK; }
int cuEventRecord(void* event, void* in) {
  LOCKED;
  Event* it = static_cast<Event*>(event);
  Stream* stream = static_cast<Stream*>(in);
  if ((tape && stream == taped) || it->context != stream->context) return INVALID;
  it->stream = stream;
  return it->at = stream->put, OK;
}
int cuEventSynchronize(void* event) {
  LOCKED;
  Event* it = static_cast<Event*>(event);
  if (it->stream) do_until(it->stream, it->at);
  return OK;
}
int cuEventQuery(void* event) {
  LOCKED;
  Event* it = static_cast<Event*>(event);
  if (!it->stream || it->stream->done >= it->at) return OK;
  do_until(it->stream, it->stream->done + 1);
  return NOT_READY;
}

// Freed memory is given to whoever next asks for as much in the same stream, as a pool in stream
// order may; it belongs to one card.
static std::map<std::pair<void*, size_t>, std::vector<u64>> pool;
static std::map<u64, size_t> sizes;
static std::map<u64, void*> owners;
static bool lies_in(u64 address, size_t bytes, void* context) {
  auto next = owners.upper_bound(address);
  if (next == owners.begin()) return false;
  auto block = std::prev(next);
  return block->second == context && address + bytes <= block->first + sizes[block->first];
}
static int taken(u64* address, size_t bytes, void* stream) {
  LOCKED;
  if (!current) return NO_CONTEXT;
  std::vector<u64>& idle = pool[{stream, bytes}];
  if (!idle.empty()) {
    *address = idle.back();
    idle.pop_back();
    return OK;
  }
  void* memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (!memory) return OUT_OF_MEMORY;
  memset(memory, 0xcd, bytes);
  *address = reinterpret_cast<u64>(memory);
  sizes[*address] = bytes;
  owners[*address] = current;
  return OK;
}
int cuMemAllocAsync(u64* address, size_t bytes, void* stream) { return taken(address, bytes, stream); }
int cuMemAlloc_v2(u64* address, size_t bytes) { return taken(address, bytes, nullptr); }
int cuMemFreeAsync(u64 address, void* stream) {
  LOCKED;
  if (!current) return note("freed without a context"), NO_CONTEXT;
  return pool[{stream, sizes[address]}].push_back(address), OK;
}
int cuMemFree_v2(u64 address) { LOCKED; return do_all(), cuMemFreeAsync(address, nullptr); }

// Which card is open to which: by contexts, and its pool's memory by cards.
static std::set<std::pair<void*, void*>> enabled;
static std::set<std::pair<int, int>> pools;
int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  return *can = device != peer && (device == 0 || peer == 0), OK;
}
int cuDeviceGetP2PAttribute(int* value, int attribute, int device, int peer) {
  return *value = attribute == 3 && device + peer == 1, OK;
}
int cuCtxEnablePeerAccess(void* peer, unsigned flags) {
  LOCKED;
  if (flags || !current) return INVALID;
  return enabled.insert({current, peer}).second ? OK : 704;
}
int cuDeviceGetMemPool(void** made, int device) {
  return *made = reinterpret_cast<void*>(uintptr_t(device) + 1), OK;
}
struct Access {
  int kind, card, flags;
};
int cuMemPoolSetAccess(void* it, const Access* access, size_t count) {
  LOCKED;
  if (count != 1 || access->kind != 1 || access->flags != 3) return INVALID;
  return pools.insert({access->card, int(reinterpret_cast<uintptr_t>(it)) - 1}), OK;
}
static int card(void* context) { return int(reinterpret_cast<uintptr_t>(context)) - 1; }
int cuMemcpyPeerAsync(u64 to, void* own, u64 from, void* peer, size_t bytes, void* stream) {
  LOCKED;
  bool open = enabled.count({own, peer}) && pools.count({card(own), card(peer)});
  if (!open || current != own) return INVALID;
  if (!lies_in(to, bytes, own) || !lies_in(from, bytes, peer)) return ILLEGAL;
  note("from card " + std::to_string(card(peer)) + " to " + std::to_string(card(own)) + " " +
       std::to_string(bytes));
  put_in(stream, [=] { memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
  return OK;
}
int cuMemHostAlloc(void** memory, size_t bytes, unsigned flags) {
  note("pinned " + std::to_string(bytes) + (flags & 4 ? " combined" : " cached"));
  return *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), OK;
}
int cuMemFreeHost(void* memory) { return free(memory), OK; }
static int copied(u64 to, u64 from, size_t bytes, void* stream) {
  LOCKED;
  put_in(stream, [=] { memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes); });
  return OK;
}
int cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t bytes, void* stream) {
  if (!lies_in(to, bytes, static_cast<Stream*>(stream)->context)) return ILLEGAL;
  return copied(to, reinterpret_cast<u64>(from), bytes, stream);
}
int cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t bytes, void* stream) {
  if (!lies_in(from, bytes, static_cast<Stream*>(stream)->context)) return ILLEGAL;
  return copied(reinterpret_cast<u64>(to), from, bytes, stream);
}
int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, void* stream) {
  void* own = static_cast<Stream*>(stream)->context;
  if (!lies_in(from, bytes, own) || !lies_in(to, bytes, own)) return ILLEGAL;
  note("copied within " + std::to_string(bytes));
  return copied(to, from, bytes, stream);
}
int cuMemsetD8Async(u64 to, unsigned char value, size_t bytes, void* stream) {
  LOCKED;
  put_in(stream, [=] { memset(reinterpret_cast<void*>(to), value, bytes); });
  return OK;
}

// What NVRTC here calls PTX: the path of a library and the number of arrays its kernel takes.
int cuModuleLoadData(void** module, const void* image) {
  std::istringstream text(static_cast<const char*>(image));
  std::string path;
  Module* made = new Module{};
  text >> path >> made->function.arrays;
  made->library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!made->library) return INVALID;
  made->function.run = reinterpret_cast<Kernel>(dlsym(made->library, "souk_host"));
  return *module = made, OK;
}
int cuModuleUnload(void* module) {
  LOCKED;
  do_all();
  return delete static_cast<Module*>(module), OK;
}
int cuModuleGetFunction(void** function, void* module, const char*) {
  return *function = &static_cast<Module*>(module)->function, OK;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned, void* stream, void** given, void**) {
  LOCKED;
  Function kernel = *static_cast<Function*>(function);
  std::vector<void*> arrays;
  std::vector<unsigned> lengths;
  for (int i = 0; i < kernel.arrays; i++) {
    arrays.push_back(*static_cast<void**>(given[2 * i]));
    lengths.push_back(*static_cast<unsigned*>(given[2 * i + 1]));
    u64 address = reinterpret_cast<u64>(arrays.back());
    if (!lies_in(address, 4 * lengths.back(), static_cast<Stream*>(stream)->context)) return ILLEGAL;
  }
  put_in(stream, [=]() mutable {
    kernel.run(arrays.data(), lengths.data(), Place{gx, gy, gz}, Place{bx, by, bz});
  });
  return OK;
}

int cuStreamBeginCapture_v2(void* stream, int) {
  LOCKED;
  taped = static_cast<Stream*>(stream);
  return tape = new std::vector<Task>, OK;
}
int cuStreamEndCapture(void*, void** graph) {
  LOCKED;
  note("captured " + std::to_string(tape->size()));
  *graph = tape;
  return tape = nullptr, OK;
}
int cuGraphInstantiateWithFlags(void** made, void* graph, u64) { return *made = graph, OK; }
int cuGraphLaunch(void* graph, void* stream) {
  LOCKED;
  note("graph");
  for (Task& task : *static_cast<std::vector<Task>*>(graph)) put_in(stream, task);
  return OK;
}
int cuGraphExecDestroy(void*) { return OK; }
int cuGraphDestroy(void* graph) { return delete static_cast<std::vector<Task>*>(graph), OK; }

struct Source {
  std::string text, made, log;
};
int nvrtcCreateProgram(void** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  Source* made = new Source{source, "", ""};
  return *program = made, OK;
}
int nvrtcCompileProgram(void* program, int, const char* const*) {
  LOCKED;
  static int number;
  Source* source = static_cast<Source*>(program);
  std::ifstream host(getenv("SOUK_FAKE_HOST"));
  std::string text((std::istreambuf_iterator<char>(host)), {});
  const std::string mark = "SOUK_KERNEL";
  text.replace(text.find(mark), mark.size(), source->text);
  std::string base = std::string(getenv("SOUK_FAKE_FOLDER")) + "/k" + std::to_string(number++);
  std::ofstream(base + ".cpp") << text;
  std::string run = "c++ -std=c++17 -O1 -w -shared -fPIC -nostdinc++ -nodefaultlibs -o " + base +
                    ".so " + base + ".cpp -lm -lc";
  if (system(run.c_str()) != 0) return source->log = "the kernel does not compile", 6;
  size_t entry = source->text.find("souk_main("), end = source->text.find(")", entry);
  int arrays = 0;
  for (size_t at = entry; (at = source->text.find("u32 length", at)) < end; at++) arrays++;
  source->made = base + ".so " + std::to_string(arrays);
  return OK;
}
int nvrtcGetPTXSize(void* program, size_t* size) {
  return *size = static_cast<Source*>(program)->made.size() + 1, OK;
}
int nvrtcGetPTX(void* program, char* text) {
  return strcpy(text, static_cast<Source*>(program)->made.c_str()), OK;
}
int nvrtcGetProgramLogSize(void* program, size_t* size) {
  return *size = static_cast<Source*>(program)->log.size() + 1, OK;
}
int nvrtcGetProgramLog(void* program, char* text) {
  return strcpy(text, static_cast<Source*>(program)->log.c_str()), OK;
}
int nvrtcDestroyProgram(void** program) { return delete static_cast<Source*>(*program), OK; }

// Matrices are counted rows first, as the library does.
struct Layout {
  int type;
  u64 rows, columns;
  int64_t pitch, stride;
  int batch;
};
struct Operation {
  int compute, flip_a, flip_b;
  u32 epilogue;
  u64 bias, scale_a, scale_b;
};
int cublasLtCreate(void** handle) { return *handle = new char, OK; }
int cublasLtDestroy(void* handle) { return delete static_cast<char*>(handle), OK; }
int cublasLtMatrixLayoutCreate(void** layout, int type, u64 rows, u64 columns, int64_t pitch) {
  if (u64(pitch) < rows) return 7;
  return *layout = new Layout{type, rows, columns, pitch, 0, 1}, OK;
}
int cublasLtMatrixLayoutDestroy(void* layout) { return delete static_cast<Layout*>(layout), OK; }
int cublasLtMatrixLayoutSetAttribute(void* layout, int attribute, const void* value, size_t bytes) {
  Layout* it = static_cast<Layout*>(layout);
  if (attribute == 5 && bytes == 4) return memcpy(&it->batch, value, bytes), OK;
  if (attribute == 6 && bytes == 8) return memcpy(&it->stride, value, bytes), OK;
  return 7;
}
int cublasLtMatmulDescCreate(void** operation, int compute, int scale) {
  // Sums of 8-bit integers are multiplied by one of 32, all others by a float.
  if (scale != (compute == 72 ? 10 : 0)) return 7;
  return *operation = new Operation{compute, 0, 0, 1, 0, 0, 0}, OK;
}
int cublasLtMatmulDescDestroy(void* it) { return delete static_cast<Operation*>(it), OK; }
int cublasLtMatmulDescSetAttribute(void* operation, int attribute, const void* value, size_t bytes) {
  Operation* it = static_cast<Operation*>(operation);
  if (attribute == 3 && bytes == 4) return memcpy(&it->flip_a, value, bytes), OK;
  if (attribute == 4 && bytes == 4) return memcpy(&it->flip_b, value, bytes), OK;
  if (attribute == 7 && bytes == 4) return memcpy(&it->epilogue, value, bytes), OK;
  if (attribute == 8 && bytes == 8) return memcpy(&it->bias, value, bytes), OK;
  if (attribute == 17 && bytes == 8) return memcpy(&it->scale_a, value, bytes), OK;
  if (attribute == 18 && bytes == 8) return memcpy(&it->scale_b, value, bytes), OK;
  return 7;
}
int cublasLtMatmulPreferenceCreate(void** it) { return *it = new char, OK; }
int cublasLtMatmulPreferenceDestroy(void* it) { return delete static_cast<char*>(it), OK; }
int cublasLtMatmulPreferenceSetAttribute(void*, int attribute, const void*, size_t bytes) {
  return attribute == 1 && bytes == 8 ? OK : 7;
}
struct Found {
  u64 algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
int cublasLtMatmulAlgoGetHeuristic(void*, void* operation, void* a, void* b, void*, void* d, void*, int,
                                   Found* found, int* count) {
  note("asked");
  // 8-bit floats lie along the depth on both sides.
  Operation* it = static_cast<Operation*>(operation);
  bool narrow = static_cast<Layout*>(a)->type == 28 || static_cast<Layout*>(a)->type == 29;
  if (narrow && (!it->flip_a || it->flip_b || it->epilogue != 1)) return *count = 0, OK;
  // So do 8-bit integers, in fours, and they make those of 32.
  Layout *left = static_cast<Layout*>(a), *right = static_cast<Layout*>(b);
  if ((left->type == 3) != (it->compute == 72)) return *count = 0, OK;
  if (left->type == 3 &&
      (right->type != 3 || static_cast<Layout*>(d)->type != 10 || !it->flip_a || it->flip_b ||
       it->epilogue != 1 || left->pitch % 4 || right->pitch % 4 || left->rows % 4 || left->columns % 4))
    return *count = 0, OK;
  // A product of this many rows is one that the library knows no way for.
  if (static_cast<Layout*>(b)->columns == 13) return *count = 0, OK;
  memset(found, 0, sizeof *found);
  found->algorithm[0] = 42;
  return *count = 1, OK;
}

static float element(int type, u64 base, int64_t at) {
  if (type == 0) return reinterpret_cast<float*>(base)[at];
  if (type == 3) return reinterpret_cast<signed char*>(base)[at];
  if (type == 28 || type == 29) {
    int byte = reinterpret_cast<unsigned char*>(base)[at], bits = type == 28 ? 3 : 2;
    int bias = type == 28 ? 7 : 15, exponent = (byte & 127) >> bits, fraction = byte & ((1 << bits) - 1);
    float size = exponent ? ldexpf((1 << bits) + fraction, exponent - bias - bits)
                          : ldexpf(fraction, 1 - bias - bits);
    return byte & 128 ? -size : size;
  }
  u32 half = reinterpret_cast<uint16_t*>(base)[at], bits = half << 16;
  float value;
  if (type == 2) {
    int exponent = (half >> 10) & 31, fraction = half & 1023;
    value = exponent == 31 ? (fraction ? NAN : INFINITY)
            : exponent     ? ldexpf(1024 + fraction, exponent - 25)
                           : ldexpf(fraction, -24);
    return half & 0x8000 ? -value : value;
  }
  memcpy(&value, &bits, 4);
  return value;
}
static void store(int type, u64 base, int64_t at, float value) {
  if (type == 0) {
    reinterpret_cast<float*>(base)[at] = value;
    return;
  }
  uint16_t half;
  if (type == 2) {
    _Float16 rounded = _Float16(value);
    memcpy(&half, &rounded, 2);
  } else {
    u32 bits;
    memcpy(&bits, &value, 4);
    half = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
  reinterpret_cast<uint16_t*>(base)[at] = half;
}
int cublasLtMatmul(void*, void* operation, const void* alpha, u64 a, void* la, u64 b, void* lb,
                   const void* beta, u64, void*, u64 d, void* ld, const u64* algorithm, void*,
                   size_t, void* stream) {
  LOCKED;
  Operation it = *static_cast<Operation*>(operation);
  Layout one = *static_cast<Layout*>(la), two = *static_cast<Layout*>(lb);
  Layout made = *static_cast<Layout*>(ld);
  bool whole = it.compute == 72;
  float factor = whole ? *static_cast<const int*>(alpha) : *static_cast<const float*>(alpha);
  if (algorithm[0] != 42 || *static_cast<const int*>(beta) != 0) return 7;
  if (whole && (a % 4 || b % 4 || d % 4)) return 7;
  u64 rows = it.flip_a ? one.columns : one.rows, depth = it.flip_a ? one.rows : one.columns;
  u64 columns = it.flip_b ? two.rows : two.columns;
  if (depth != (it.flip_b ? two.columns : two.rows) || rows != made.rows || columns != made.columns)
    return 7;
  note("product compute " + std::to_string(it.compute) + " epilogue " + std::to_string(it.epilogue) +
       " type " + std::to_string(one.type));
  put_in(stream, [=] {
    for (int z = 0; z < made.batch; z++)
      for (u64 j = 0; j < columns; j++)
        for (u64 i = 0; i < rows; i++) {
          double sum = 0;
          for (u64 k = 0; k < depth; k++) {
            int64_t x = it.flip_a ? i * one.pitch + k : k * one.pitch + i;
            int64_t y = it.flip_b ? k * two.pitch + j : j * two.pitch + k;
            sum += double(element(one.type, a, z * one.stride + x)) *
                   element(two.type, b, z * two.stride + y);
          }
          if (whole) {
            reinterpret_cast<int*>(d)[z * made.stride + j * made.pitch + i] = int(factor) * int(sum);
            continue;
          }
          if (it.scale_a) sum *= *reinterpret_cast<float*>(it.scale_a);
          if (it.scale_b) sum *= *reinterpret_cast<float*>(it.scale_b);
          float value = factor * float(sum);
          if (it.epilogue & 4) value += element(made.type, it.bias, i);
          if (it.epilogue & 2) value = value < 0 ? 0 : value;
          if (it.epilogue & 32)
            value = 0.5f * value * (1 + tanhf(0.7978846f * (value + 0.044715f * value * value * value)));
          store(made.type, d, z * made.stride + j * made.pitch + i, value);
        }
  });
  return OK;
}
}

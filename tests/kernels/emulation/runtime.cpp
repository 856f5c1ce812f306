// Plays a grid of CUDA thread blocks on the host, one block at a time, and checks what its threads do.
//
// The threads of a block are fibers; each runs until its next barrier or its end. The kernel is compiled with
// -fsanitize=thread and a part of -fsanitize=undefined, whose hooks are not the sanitizers' own but those at the end of
// this file: every access to memory and every broken rule of C++ comes by here. Checked are
//
//   bounds      global memory in the registered ranges, the right to write it, shared memory in what was asked for
//   alignment   of every access, and of wide loads and asynchronous copies
//   races       between barriers, or in a warp __syncwarp, two threads at one word of shared memory of which one writes
//   contents    shared memory that is read was written, and is not the target of a copy in flight
//   barriers    all threads of the block arrive, and at the same one
//   warps       all lanes of a warp arrive, and at the same shuffle or mma
//   proxies     a fence stands between ordinary stores to shared memory and what copy engine or tensor cores read there; of
//               global memory that the launch has written, a fence of the writer and one of who copies, behind a barrier or, where
//               another block has written, behind a load that acquires
//
// Asynchronous copies are in flight until their thread waits for their group: until then their target holds garbage and
// no thread may touch it; afterwards they count as written by that thread, so that others need a barrier. Whatever else
// is asynchronous happens as late as it may: a bulk copy to shared memory when no thread can go on without one, a bulk
// copy from there and a product of wgmma when their thread waits for it. So a missing wait shows in the result. The
// first breach ends the launch with a message.

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

struct Index {
  unsigned x, y, z;
};

namespace {

constexpr size_t MOST_SHARED = 232448, WORD = 4, STACK_BYTES = 128 * 1024;
constexpr int NOBODY = -1, MANY = -2, ATOMIC = -3, ENGINE = -4, WARP = 32;

struct Range {
  const char* name;
  uintptr_t begin, end;
  bool writable;
};

// What happened to one word of shared memory: who wrote and who read it, and between which barriers.
struct Shadow {
  int writer, reader, written, read;
  int fences;  // that its writer had passed
  int written_syncs, read_syncs;  // of the warp that its writer and its last reader had passed
  long long written_at, read_at;  // by accesses of the block before
  bool in_flight;
};

// A barrier in shared memory that counts arrivals and bytes.
struct Barrier {
  int arrivals, pending;
  long long bytes;
  unsigned phase;
};

// A copy to shared memory by the copy engine: pieces of global memory, of which the first bytes are valid; then zeros.
struct Transfer {
  struct Piece {
    size_t to;
    const void* from;
    size_t valid, bytes;
  };
  std::vector<Piece> pieces;
  size_t barrier;
};

// A copy from shared memory by the copy engine.
struct Store {
  void* global;
  size_t from, bytes;
};

// A thread's part of a product of wgmma.
struct Product {
  float* sums;
  int width, sign;
  bool accumulates;
  unsigned long long a, b;
  bool transposes_a, transposes_b;
  int type_a, type_b;
};

struct Copy {
  unsigned char* shared;
  const void* global;
  int bytes, valid;  // then zeros
};

enum State { READY, AT_BARRIER, AT_SHUFFLE, POLLS, ENDED };

struct Fiber {
  ucontext_t start;
  jmp_buf here;
  bool started = false;
  State state = READY;
  int barrier = 0;                       // line of the last barrier
  int shuffle = 0;                       // line of the last shuffle
  int source = 0;                        // thread whose value it wants there
  unsigned value = 0, received = 0;      // what it gives and gets
  void* mine = nullptr;                  // what it brings to a function of all lanes ...
  void (*together)(void* const*) = nullptr;  // ... and that function; null: a shuffle
  std::vector<Copy> group;               // copies not yet committed
  std::deque<std::vector<Copy>> groups;  // committed, oldest first
  std::vector<Store> stores;
  std::deque<std::vector<Store>> store_groups;
  std::vector<Product> products;
  std::deque<std::vector<Product>> product_groups;
  std::map<float*, std::vector<float>> sums;  // of products in flight; where the kernel has them lies garbage
  bool fenced = false;                        // a wgmma may follow
  int syncs = 0;                              // of its warp that it has passed
  long long arrived_at[16] = {}, left_at[16] = {};  // its last meeting at the barrier of each number
  long long passed_at = 0;                    // its last barrier in shared memory
  int fences = 0;                             // between ordinary accesses and those of others that it has passed
  int fenced_global = -1;                     // the phase of its last fence of global memory
  bool acquired = false, fenced_acquired = false;  // has loaded what another block has published, and then fenced
  std::vector<uintptr_t> unfenced;            // what it has stored there since its last, by 16 bytes
};

std::vector<Range> ranges;
std::vector<Shadow> shadows;
std::vector<Fiber> fibers;
std::map<size_t, Barrier> barriers;
struct Meeting { int here, ended; };
std::map<int, Meeting> meetings;  // of threads at a barrier by its number
std::vector<Transfer> transfers;  // in flight
std::unordered_map<uintptr_t, std::pair<unsigned, int>> stored;  // global memory by 16 bytes: block and phase of the last ordinary store
std::unordered_set<uintptr_t> unfenced;                          // after which the writer has had no fence
unsigned dice = 1;
long long moment = 0;  // accesses to shared memory, and barriers in it passed
long long events = 0;  // barriers in shared memory that let a thread pass
char* stacks = nullptr;
size_t stacks_bytes = 0, shared_bytes = 0;
int phase = 0;    // barriers passed
int current = 0;  // thread that runs
int last_barrier = 0;
void (*kernel)(void*) = nullptr;
void* kernel_arguments = nullptr;
jmp_buf scheduler;
long long accesses = 0, most_accesses = 0;
bool backwards = false;
char message[512];

}  // namespace

extern "C" {
Index threadIdx, blockIdx, blockDim, gridDim;
alignas(4096) unsigned char shared_storage[MOST_SHARED];
}

namespace {

enum Stop { WAIT = 1, END, BREACH };

unsigned block_number() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }

[[noreturn]] void breach(const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int length = vsnprintf(message, sizeof(message), format, values);
  va_end(values);
  if (length >= 0 && length < static_cast<int>(sizeof(message)))
    snprintf(message + length, sizeof(message) - length,
             " (block %u, thread %d, after %d barriers, the last at line %d)",
             block_number(), current, phase, last_barrier);
  _longjmp(scheduler, BREACH);
}

// ---- Accesses.

// Readers of one warp, as one number below those of NOBODY and the like; the warp of a thread or of such readers; or -1.
int readers_of(int warp) { return -16 - warp; }
int warp_of(int who) { return who >= 0 ? who / WARP : who <= readers_of(0) ? readers_of(0) - who : -1; }

// Whether the thread knows of an access by others: their warp, which is its own, has been at __syncwarp since, both have been at a
// meeting since, or it has passed a barrier in shared memory (whether they had come to that one is not known).
bool knows(int who, int syncs, long long at) {
  const Fiber& mine = fibers[current];
  const int warp = warp_of(who);
  if (mine.passed_at > at || (warp == current / WARP && mine.syncs > syncs)) return true;
  const int first = who >= 0 ? who : warp * WARP, last = who >= 0 ? who : warp * WARP + WARP - 1;
  for (int other = first; warp >= 0 && other <= last; other++)
    for (int number = 0; number < 16; number++)
      if (mine.left_at[number] > at && fibers[other].arrived_at[number] > at) return true;
  return false;
}

void read_shared(size_t first, size_t bytes) {
  for (size_t word = first / WORD; word <= (first + bytes - 1) / WORD; word++) {
    Shadow& shadow = shadows[word];
    if (shadow.in_flight) breach("shared memory is read at byte %zu while a copy to it is in flight", word * WORD);
    if (shadow.writer == NOBODY) breach("shared memory is read at byte %zu, which was never written", word * WORD);
    if (shadow.written == phase && shadow.writer != current && shadow.writer != ENGINE && !knows(shadow.writer, shadow.written_syncs, shadow.written_at))
      breach("shared memory is read at byte %zu, which thread %d wrote since the last barrier", word * WORD,
             shadow.writer);
    const bool is_first = shadow.read != phase || shadow.reader == current;
    shadow.reader = is_first ? current : warp_of(shadow.reader) == current / WARP ? readers_of(current / WARP) : MANY;
    shadow.read = phase;
    shadow.read_syncs = fibers[current].syncs;
    shadow.read_at = ++moment;
  }
}

void write_shared(size_t first, size_t bytes, bool in_flight) {
  for (size_t word = first / WORD; word <= (first + bytes - 1) / WORD; word++) {
    Shadow& shadow = shadows[word];
    if (shadow.in_flight) breach("shared memory is written at byte %zu while a copy to it is in flight", word * WORD);
    if (shadow.writer != NOBODY && shadow.writer != ENGINE && shadow.written == phase && shadow.writer != current &&
        !knows(shadow.writer, shadow.written_syncs, shadow.written_at))
      breach("shared memory is written at byte %zu, which thread %d wrote since the last barrier", word * WORD,
             shadow.writer);
    if (shadow.read == phase && shadow.reader != current && !knows(shadow.reader, shadow.read_syncs, shadow.read_at))
      breach("shared memory is written at byte %zu, which another thread read since the last barrier", word * WORD);
    shadow.reader = NOBODY;
    shadow.read = -1;
    shadow.writer = current;
    shadow.written = phase;
    shadow.written_syncs = fibers[current].syncs;
    shadow.written_at = ++moment;
    shadow.fences = fibers[current].fences;
    shadow.in_flight = in_flight;
  }
}

// A word that tensor cores or the copy engine read.
void read_by_engine(size_t byte) {
  const Shadow& shadow = shadows[byte / WORD];
  if (shadow.in_flight) breach("tensor cores or a copy read shared memory at byte %zu while a copy to it is in flight", byte);
  if (shadow.writer == NOBODY) breach("tensor cores or a copy read shared memory at byte %zu, which was never written", byte);
  if (shadow.writer >= 0 && fibers[shadow.writer].fences == shadow.fences)
    breach("tensor cores or a copy read shared memory at byte %zu, which thread %d wrote without a fence after it", byte,
           shadow.writer);
}

bool in_shared(uintptr_t address, size_t bytes, size_t* first) {
  *first = address - reinterpret_cast<uintptr_t>(shared_storage);
  if (*first >= MOST_SHARED) return false;
  if (*first + bytes > shared_bytes)
    breach("shared memory is accessed at byte %zu, but the block has %zu bytes", *first, shared_bytes);
  return true;
}

void check_global(uintptr_t address, size_t bytes, bool writes) {
  const Range* nearest = nullptr;
  for (const Range& range : ranges) {
    if (address >= range.begin && address + bytes <= range.end) {
      if (writes && !range.writable) breach("%s is written", range.name);
      return;
    }
    auto distance = [&](const Range& r) { return address < r.begin ? r.begin - address : address - r.begin; };
    if (nearest == nullptr || distance(range) < distance(*nearest)) nearest = &range;
  }
  if (nearest == nullptr) breach("memory is accessed out of bounds");
  breach("memory is %s out of bounds: %zu bytes at byte %lld of %s, which has %zu bytes", writes ? "written" : "read",
         bytes, static_cast<long long>(address - nearest->begin), nearest->name,
         static_cast<size_t>(nearest->end - nearest->begin));
}

void check_aligned(const void* pointer, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(pointer) % bytes)
    breach("an access of %zu bytes must be aligned to its size, got an address of remainder %zu", bytes,
           static_cast<size_t>(reinterpret_cast<uintptr_t>(pointer) % bytes));
}

void check(const void* pointer, size_t bytes, bool writes) {
  if (++accesses > most_accesses) breach("the launch made more than %lld accesses", most_accesses);
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  if (address - reinterpret_cast<uintptr_t>(stacks) < stacks_bytes) return;  // a thread's own variables
  for (const Index* index : {&threadIdx, &blockIdx, &blockDim, &gridDim})
    if (address - reinterpret_cast<uintptr_t>(index) < sizeof(Index) && !writes) return;
  size_t first;
  if (!in_shared(address, bytes, &first)) {
    check_global(address, bytes, writes);
    if (!writes) return;
    for (uintptr_t at = address / 16; at <= (address + bytes - 1) / 16; at++) {
      stored[at] = {block_number(), phase};
      if (unfenced.insert(at).second) fibers[current].unfenced.push_back(at);
    }
  } else if (writes)
    write_shared(first, bytes, false);
  else
    read_shared(first, bytes);
}

// ---- Threads.

void enter() {
  kernel(kernel_arguments);
  const Fiber& fiber = fibers[current];
  if (!fiber.stores.empty() || !fiber.store_groups.empty() || !fiber.products.empty() || !fiber.product_groups.empty())
    breach("a thread ends before copies from shared memory or products of its own do");
  fibers[current].state = ENDED;
  _longjmp(scheduler, END);
}

// Runs one thread until its next barrier or shuffle or its end; false after a breach.
bool run(int thread) {
  Fiber& fiber = fibers[thread];
  current = thread;
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
  const int stop = _setjmp(scheduler);
  if (stop) return stop != BREACH;
  if (fiber.started) _longjmp(fiber.here, 1);
  fiber.started = true;
  setcontext(&fiber.start);
  return false;
}

// Gives each lane of a warp that waits at a shuffle its value; false if not all wait, and at the same one.
bool exchange(int first, int last) {
  auto line = [](const Fiber& fiber) { return fiber.state == AT_SHUFFLE ? fiber.shuffle : 0; };
  for (int lane = first; lane < last; lane++)
    if (line(fibers[lane]) != line(fibers[first]) || fibers[lane].together != fibers[first].together || last - first != WARP) {
      snprintf(message, sizeof(message),
               "the lanes of a warp must arrive at the same shuffle, but thread %d is at line %d and thread %d at line %d "
               "(0: at none; the warp has %d lanes)",
               first, line(fibers[first]), lane, line(fibers[lane]), last - first);
      return false;
    }
  if (fibers[first].together != nullptr) {
    void* lanes[WARP];
    for (int lane = 0; lane < WARP; lane++) lanes[lane] = fibers[first + lane].mine;
    fibers[first].together(lanes);
  } else {
    for (int lane = first; lane < last; lane++) fibers[lane].received = fibers[first + fibers[lane].source].value;
  }
  for (int lane = first; lane < last; lane++) fibers[lane].state = READY;
  return true;
}

// Runs a warp until its lanes wait for others: at a barrier, or for memory to change; false after a breach.
bool run_warp(int first, int last, bool* moved) {
  for (;;) {
    int at_shuffle = 0, polling = 0;
    for (int lane = first; lane < last; lane++) {
      State& state = fibers[lane].state;
      if (state == READY || state == POLLS) {
        const State before = state;
        const long long passed = events;
        state = READY;
        if (!run(lane)) return false;
        *moved = *moved || before == READY || state != POLLS || events != passed;
      }
      at_shuffle += state == AT_SHUFFLE;
      polling += state == POLLS;
    }
    if (at_shuffle == 0 || (at_shuffle < last - first && polling > 0)) return true;
    if (!exchange(first, last)) return false;
    *moved = true;
  }
}

size_t shared_offset(const void* pointer, size_t bytes) {
  size_t first;
  if (!in_shared(reinterpret_cast<uintptr_t>(pointer), bytes, &first))
    breach("a barrier, or one side of a bulk copy, must lie in shared memory");
  return first;
}

Barrier& barrier_at(size_t offset) {
  const auto found = barriers.find(offset);
  if (found == barriers.end()) breach("no barrier was made at byte %zu of shared memory", offset);
  return found->second;
}

void end_phase_if_complete(Barrier& barrier) {
  if (barrier.pending == 0 && barrier.bytes == 0) {
    barrier.pending = barrier.arrivals;
    barrier.phase ^= 1;
  }
}

// Ends one of the copies in flight, whichever: false if there is none.
bool land() {
  if (transfers.empty()) return false;
  dice = dice * 1664525 + 1013904223;
  const size_t which = (dice >> 8) % transfers.size();
  const Transfer transfer = std::move(transfers[which]);
  transfers.erase(transfers.begin() + static_cast<long>(which));
  Barrier& barrier = barriers.at(transfer.barrier);
  for (const Transfer::Piece& piece : transfer.pieces) {
    for (size_t word = piece.to / WORD; word < (piece.to + piece.bytes + WORD - 1) / WORD; word++) {
      shadows[word].in_flight = false;
      shadows[word].writer = ENGINE;
    }
    memcpy(shared_storage + piece.to, piece.from, piece.valid);
    memset(shared_storage + piece.to + piece.valid, 0, piece.bytes - piece.valid);
    barrier.bytes -= static_cast<long long>(piece.bytes);
  }
  end_phase_if_complete(barrier);
  return true;
}

// ---- Tensor cores.

// Every half by its bits: one conversion takes longer than all checks of an access, where the host has no instruction for it.
const std::vector<float> halves = [] {
  std::vector<float> values(1 << 16);
  for (size_t at = 0; at < values.size(); at++) {
    const unsigned short bits = at;
    _Float16 value;
    memcpy(&value, &bits, 2);
    values[at] = value;
  }
  return values;
}();

// Of operands, as in hopper.hpp.
enum { FP16, BF16, E4M3, E5M2 };

// An element in shared memory, which a descriptor as the PTX ISA has it describes: lines of 128 bytes, swizzled, in groups
// of eight. Lines lie along k, or, transposed, along the other index.
float element(unsigned long long descriptor, int line, int step, bool transposes, int type) {
  const size_t bytes = type >= E4M3 ? 1 : 2;
  const size_t start = (descriptor & 0x3fff) * 16, leading = (descriptor >> 16 & 0x3fff) * 16, stride = (descriptor >> 32 & 0x3fff) * 16;
  if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0) breach("a descriptor must be for lines of 128 bytes, swizzled from a multiple of 1024 on");
  const size_t logical = transposes ? start + line / 64 * leading + step / 8 * stride + step % 8 * 128 + line % 64 * 2
                                    : start + line / 8 * stride + line % 8 * 128 + step * bytes;
  const size_t at = logical ^ (logical >> 7 & 7) << 4;
  if (at + bytes > shared_bytes) breach("tensor cores read shared memory at byte %zu, but the block has %zu bytes", at, shared_bytes);
  read_by_engine(at);
  if (type == E4M3) {  // 4 bits of exponent, whose bias is 7, and 3 of fraction; the largest is NaN
    const int code = shared_storage[at], exponent = code >> 3 & 15, fraction = code & 7;
    const float size = (code & 127) == 127 ? NAN : ldexpf(exponent ? 8 + fraction : fraction, (exponent ? exponent : 1) - 10);
    return code >> 7 ? -size : size;
  }
  if (type == BF16) {
    unsigned bits = 0;
    memcpy(reinterpret_cast<unsigned char*>(&bits) + 2, shared_storage + at, 2);
    float value;
    memcpy(&value, &bits, 4);
    return value;
  }
  unsigned short bits = 0;
  if (type == E5M2)  // the upper half of FP16
    bits = shared_storage[at] << 8;
  else
    memcpy(&bits, shared_storage + at, 2);
  return halves[bits];
}

// A sum of FP8's tensor cores: of terms whose bits lie no more than 13 below the first of the largest; others are cut off.
float few_bits(const double* terms, int count) {
  double largest = 0, sum = 0;
  for (int i = 0; i < count; i++) largest = fmax(largest, fabs(terms[i]));
  if (!(largest > 0) || std::isinf(largest)) {
    for (int i = 0; i < count; i++) sum += terms[i];
    return sum;
  }
  const double unit = ldexp(1, ilogb(largest) - 13);
  for (int i = 0; i < count; i++) sum += trunc(terms[i] / unit) * unit;
  return sum;
}

// A thread's sums: of columns 8 j + 2 (lane % 4) + {0, 1} the rows lane / 4 + {0, 8} of its warp's 16.
void multiply(const Product& p, std::vector<float>& sums) {
  constexpr int MOST = 32;
  const bool is_fp8 = p.type_a >= E4M3;
  const int depth = is_fp8 ? 32 : 16;
  const int lane = current % WARP, row0 = current / WARP % 4 * 16 + lane / 4;
  float a[2][MOST];
  for (int half = 0; half < 2; half++)
    for (int step = 0; step < depth; step++) a[half][step] = element(p.a, row0 + half * 8, step, p.transposes_a, p.type_a);
  for (int j = 0; j < p.width; j += 4) {  // both rows have the same columns of B
    for (int c = 0; c < 2; c++) {
      double above = p.accumulates ? sums[j + c] : 0, below = p.accumulates ? sums[j + 2 + c] : 0;
      double terms[2][MOST + 1] = {{above}, {below}};
      for (int step = 0; step < depth; step++) {
        const float b = element(p.b, j * 2 + lane % 4 * 2 + c, step, p.transposes_b, p.type_b);
        for (int half = 0; half < 2; half++) terms[half][step + 1] = static_cast<double>(a[half][step]) * b;
        above += static_cast<double>(p.sign) * a[0][step] * b;
        below += static_cast<double>(p.sign) * a[1][step] * b;
      }
      sums[j + c] = is_fp8 ? few_bits(terms[0], depth + 1) : static_cast<float>(above);
      sums[j + 2 + c] = is_fp8 ? few_bits(terms[1], depth + 1) : static_cast<float>(below);
    }
  }
}

// Runs all threads until their next barrier or their end; false after a breach.
bool run_phase() {
  const int threads = static_cast<int>(fibers.size());
  for (Fiber& fiber : fibers)
    if (fiber.state == AT_BARRIER) fiber.state = READY;
  for (;;) {
    bool moved = false;
    for (int first = 0; first < threads; first += WARP)
      if (!run_warp(first, first + WARP < threads ? first + WARP : threads, &moved)) return false;
    int waiting = NOBODY;
    for (int thread = 0; thread < threads; thread++)
      if (fibers[thread].state == POLLS || fibers[thread].state == AT_SHUFFLE) waiting = thread;
    if (waiting == NOBODY) return true;
    if (!moved && !land()) {
      snprintf(message, sizeof(message), "thread %d waits for what no thread and no copy will do (block %u)", waiting, blockIdx.x);
      return false;
    }
  }
}

// Whether all threads stand at the same barrier, or all have ended.
bool agree() {
  for (const Fiber& fiber : fibers)
    if (fiber.state != fibers[0].state || fiber.barrier != fibers[0].barrier) return false;
  return true;
}

[[gnu::noinline]] bool run_block(int threads) {
  memset(shared_storage, 0xff, MOST_SHARED);  // not a number
  shadows.assign((shared_bytes + WORD - 1) / WORD, Shadow{NOBODY, NOBODY, -1, -1});
  barriers.clear();
  meetings.clear();
  transfers.clear();
  fibers.clear();
  fibers.resize(threads);
  for (int thread = 0; thread < threads; thread++) {
    ucontext_t& start = fibers[thread].start;
    getcontext(&start);
    start.uc_stack.ss_sp = stacks + thread * STACK_BYTES;
    start.uc_stack.ss_size = STACK_BYTES;
    start.uc_link = nullptr;
    makecontext(&start, enter, 0);
  }
  phase = last_barrier = 0;
  for (;;) {
    if (!run_phase()) return false;
    if (!agree()) {
      int ended = 0;
      for (const Fiber& fiber : fibers) ended += fiber.state == ENDED;
      int other = 0;
      while (fibers[other].state == fibers[0].state && fibers[other].barrier == fibers[0].barrier) other++;
      snprintf(message, sizeof(message),
               "the threads of a block must arrive at the same barrier, but thread 0 %s line %d, thread %d %s line %d, "
               "and %d of %d have ended (block %u, after %d barriers)",
               fibers[0].state == ENDED ? "ended after" : "is at", fibers[0].barrier, other,
               fibers[other].state == ENDED ? "ended after" : "is at", fibers[other].barrier, ended, threads, blockIdx.x, phase);
      return false;
    }
    if (fibers[0].state == ENDED) {
      if (!transfers.empty()) snprintf(message, sizeof(message), "a block ends before copies to its shared memory do");
      return transfers.empty();
    }
    phase++;
    last_barrier = fibers[0].barrier;
  }
}

void give_way() {
  if (!_setjmp(fibers[current].here)) _longjmp(scheduler, WAIT);
}

}  // namespace

extern "C" {

// ---- What cuda.hpp asks for.

void emulation_barrier(int line) {
  fibers[current].barrier = line;
  fibers[current].state = AT_BARRIER;
  give_way();
}

// Lets others run before the thread looks again.
void emulation_poll() {
  fibers[current].state = POLLS;
  give_way();
}

void emulation_meet(int number, int threads) {
  Meeting& meeting = meetings[number];
  const int ended = meeting.ended, thread = current;
  fibers[thread].arrived_at[number] = ++moment;
  if (++meeting.here == threads) meeting = {0, ended + 1};
  while (meeting.ended == ended) emulation_poll();
  events++;
  fibers[thread].left_at[number] = ++moment;
}

int emulation_lane() { return current % WARP; }

unsigned emulation_shuffle(unsigned value, int source, int line) {
  Fiber& fiber = fibers[current];
  fiber.value = value;
  fiber.source = source;
  fiber.together = nullptr;
  fiber.shuffle = line;
  fiber.state = AT_SHUFFLE;
  give_way();
  return fibers[current].received;
}

void emulation_warp_synced() { fibers[current].syncs++; }

// Runs a function once for the warp, on what each of its lanes brings.
void emulation_collective(void* mine, void (*together)(void* const* lanes), int line) {
  Fiber& fiber = fibers[current];
  fiber.mine = mine;
  fiber.together = together;
  fiber.shuffle = line;
  fiber.state = AT_SHUFFLE;
  give_way();
}

// Of the bytes the first ones that are valid, and zeros. The first may lie before a range that begins among them.
void emulation_copy_part(void* shared, const void* global, int bytes, int valid) {
  check_aligned(shared, bytes);
  check_aligned(global, bytes);
  size_t first;
  if (!in_shared(reinterpret_cast<uintptr_t>(shared), bytes, &first))
    breach("an asynchronous copy must go to shared memory, but its target lies elsewhere");
  if (valid < 0 || valid > bytes) breach("an asynchronous copy of %d bytes must read 0 to %d of them, got %d", bytes, bytes, valid);
  const uintptr_t address = reinterpret_cast<uintptr_t>(global);
  uintptr_t begin = address;
  for (const Range& range : ranges)
    if (range.begin > address && range.begin < address + valid) begin = range.begin;
  if (valid > 0) check_global(begin, address + valid - begin, false);
  write_shared(first, bytes, true);
  memset(shared, 0xff, bytes);
  fibers[current].group.push_back({static_cast<unsigned char*>(shared), global, bytes, valid});
}

void emulation_copy(void* shared, const void* global, int bytes, bool valid) { emulation_copy_part(shared, global, bytes, valid ? bytes : 0); }

void emulation_commit() {
  Fiber& fiber = fibers[current];
  fiber.groups.push_back(std::move(fiber.group));
  fiber.group.clear();
}

void emulation_wait(int pending) {
  auto& groups = fibers[current].groups;
  while (static_cast<int>(groups.size()) > pending) {
    for (const Copy& copy : groups.front()) {
      const size_t first = copy.shared - shared_storage;
      for (size_t word = first / WORD; word < (first + copy.bytes) / WORD; word++) shadows[word].in_flight = false;
      write_shared(first, copy.bytes, false);
      memcpy(copy.shared, copy.global, copy.valid);
      memset(copy.shared + copy.valid, 0, copy.bytes - copy.valid);
    }
    groups.pop_front();
  }
}

void emulation_check_load(const void* global, int bytes) {
  check_aligned(global, bytes);
  check_global(reinterpret_cast<uintptr_t>(global), bytes, false);
}

void emulation_check_store(void* global, int bytes) {
  check_aligned(global, bytes);
  check_global(reinterpret_cast<uintptr_t>(global), bytes, true);
}

// An atomic operation: in shared memory others may do the same between two barriers.
void emulation_atomic(void* pointer, int bytes) {
  check_aligned(pointer, bytes);
  size_t first;
  if (!in_shared(reinterpret_cast<uintptr_t>(pointer), bytes, &first)) {
    check_global(reinterpret_cast<uintptr_t>(pointer), bytes, true);
    return;
  }
  for (size_t word = first / WORD; word < (first + bytes) / WORD; word++) {
    Shadow& shadow = shadows[word];
    if (shadow.written == phase && shadow.writer == ATOMIC) continue;
    read_shared(word * WORD, WORD);
    write_shared(word * WORD, WORD, false);
    shadow.writer = ATOMIC;
  }
}

// ---- What hopper.hpp asks for.

void emulation_check_aligned(const void* address, int bytes) { check_aligned(address, bytes); }

void emulation_fence() { fibers[current].fences++; }

void emulation_acquire() { fibers[current].acquired = true; }

void emulation_fence_global() {
  Fiber& fiber = fibers[current];
  for (const uintptr_t at : fiber.unfenced) unfenced.erase(at);
  fiber.unfenced.clear();
  fiber.fenced_global = phase;
  fiber.fenced_acquired = fiber.acquired;
}

void emulation_barrier_init(void* pointer, int arrivals) {
  check_aligned(pointer, 8);
  if (arrivals < 1) breach("a barrier counts at least one arrival, got %d", arrivals);
  barriers[shared_offset(pointer, 8)] = {arrivals, arrivals, 0, 0};
}

void emulation_barrier_arrive(void* pointer, int bytes) {
  Barrier& barrier = barrier_at(shared_offset(pointer, 8));
  if (barrier.pending-- == 0) breach("a barrier for %d arrivals got more", barrier.arrivals);
  barrier.bytes += bytes;
  end_phase_if_complete(barrier);
}

bool emulation_barrier_passed(void* pointer, unsigned parity) {
  const bool passed = barrier_at(shared_offset(pointer, 8)).phase != parity;
  events += passed;
  if (passed) fibers[current].passed_at = ++moment;
  return passed;
}

// A bulk copy to shared memory, and its pieces: the valid bytes, and zeros.
void emulation_transfer_begin(void* barrier) { transfers.push_back({{}, shared_offset(barrier, 8)}); }

void emulation_transfer_piece(size_t to, const void* from, int valid, int bytes) {
  if (to % WORD != 0 || bytes % static_cast<int>(WORD) != 0) breach("a piece of a bulk copy must consist of words");
  shared_offset(shared_storage + to, bytes);
  if (valid > 0) check_global(reinterpret_cast<uintptr_t>(from), valid, false);
  for (uintptr_t at = reinterpret_cast<uintptr_t>(from) / 16; valid > 0 && at <= (reinterpret_cast<uintptr_t>(from) + valid - 1) / 16; at++) {
    if (unfenced.count(at)) breach("a copy reads global memory, which a thread wrote without a fence after it");
    const auto found = stored.find(at);
    if (found == stored.end()) continue;
    const auto [block, when] = found->second;
    if (block == block_number() ? fibers[current].fenced_global <= when : !fibers[current].fenced_acquired)
      breach("a copy reads global memory that was written, without a fence before it");
  }
  for (size_t word = to / WORD; word < (to + bytes) / WORD; word++)
    if (shadows[word].writer >= 0 && fibers[shadows[word].writer].fences == shadows[word].fences)
      breach("a copy overwrites byte %zu, which thread %d wrote without a fence after it", word * WORD, shadows[word].writer);
  write_shared(to, bytes, true);
  memset(shared_storage + to, 0xff, bytes);
  transfers.back().pieces.push_back({to, from, static_cast<size_t>(valid), static_cast<size_t>(bytes)});
}

void emulation_store(void* global, const void* shared, int bytes) {
  check_aligned(global, 16);
  check_aligned(shared, 16);
  if (bytes <= 0 || bytes % 16 != 0) breach("a bulk copy has a multiple of 16 bytes, got %d", bytes);
  check_global(reinterpret_cast<uintptr_t>(global), bytes, true);
  fibers[current].stores.push_back({global, shared_offset(shared, bytes), static_cast<size_t>(bytes)});
}

// A piece of a box of a tensor map.
void emulation_store_piece(void* global, size_t from, int bytes) {
  check_global(reinterpret_cast<uintptr_t>(global), bytes, true);
  shared_offset(shared_storage + from, bytes);
  fibers[current].stores.push_back({global, from, static_cast<size_t>(bytes)});
}

void emulation_store_commit() {
  Fiber& fiber = fibers[current];
  fiber.store_groups.push_back(std::move(fiber.stores));
  fiber.stores.clear();
}

void emulation_store_wait(int pending) {
  auto& groups = fibers[current].store_groups;
  for (; static_cast<int>(groups.size()) > pending; groups.pop_front())
    for (const Store& store : groups.front()) {
      for (size_t byte = store.from; byte < store.from + store.bytes; byte += WORD) read_by_engine(byte);
      memcpy(store.global, shared_storage + store.from, store.bytes);
    }
}

unsigned emulation_shared_address(const void* pointer) { return static_cast<unsigned>(shared_offset(pointer, 1)); }

void emulation_wgmma_fence() { fibers[current].fenced = true; }

void emulation_wgmma(float* sums, int width, int sign, bool accumulates, unsigned long long a, unsigned long long b,
                     bool transposes_a, bool transposes_b, int type_a, int type_b) {
  Fiber& fiber = fibers[current];
  if (!fiber.fenced) breach("a wgmma needs a fence after the last wait");
  if (fiber.sums.count(sums) == 0) {
    fiber.sums[sums].assign(sums, sums + width);
    memset(sums, 0xff, width * sizeof(float));
  }
  fiber.products.push_back({sums, width, sign, accumulates, a, b, transposes_a, transposes_b, type_a, type_b});
}

void emulation_wgmma_commit() {
  Fiber& fiber = fibers[current];
  fiber.product_groups.push_back(std::move(fiber.products));
  fiber.products.clear();
}

void emulation_wgmma_wait(int pending) {
  Fiber& fiber = fibers[current];
  auto& groups = fiber.product_groups;
  for (; static_cast<int>(groups.size()) > pending; groups.pop_front())
    for (const Product& product : groups.front()) multiply(product, fiber.sums[product.sums]);
  if (!groups.empty()) return;
  for (const auto& [place, values] : fiber.sums) memcpy(place, values.data(), values.size() * sizeof(float));
  fiber.sums.clear();
  fiber.fenced = false;
}

// ---- What the harness asks for.

void emulation_forget_ranges() { ranges.clear(); }

void emulation_add_range(const char* name, const void* begin, size_t bytes, int writable) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin);
  ranges.push_back({name, first, first + bytes, writable != 0});
}

const char* emulation_message() { return message; }

// Whether blocks run with the last first, as they may.
void emulation_run_backwards(bool value) { backwards = value; }

// Launches a kernel: 0, or 1 after a breach, whose message is kept.
int emulation_run_grid(void (*function)(void*), void* arguments, const unsigned* grid, const unsigned* block, size_t shared,
                       long long limit) {
  message[0] = 0;
  kernel = function;
  kernel_arguments = arguments;
  shared_bytes = shared;
  accesses = 0;
  stored.clear();
  unfenced.clear();
  most_accesses = limit;
  const unsigned threads = block[0] * block[1] * block[2];
  if (shared > MOST_SHARED || threads == 0 || threads > 1024) {
    snprintf(message, sizeof(message),
             "a launch has 1 to 1024 threads and at most %zu bytes of shared memory, got %u and %zu", MOST_SHARED,
             threads, shared);
    return 1;
  }
  stacks_bytes = threads * STACK_BYTES;
  void* const memory =
      mmap(nullptr, stacks_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    snprintf(message, sizeof(message), "the stacks of %u threads need %zu bytes of memory", threads, stacks_bytes);
    return 1;
  }
  stacks = static_cast<char*>(memory);
  blockDim = {block[0], block[1], block[2]};
  gridDim = {grid[0], grid[1], grid[2]};
  bool right = true;
  const unsigned blocks = grid[0] * grid[1] * grid[2];
  for (unsigned number = 0; right && number < blocks; number++) {
    const unsigned index = backwards ? blocks - 1 - number : number;
    blockIdx = {index % grid[0], index / grid[0] % grid[1], index / grid[0] / grid[1]};
    right = run_block(static_cast<int>(threads));
  }
  munmap(stacks, stacks_bytes);
  stacks = nullptr;
  stacks_bytes = 0;
  return right ? 0 : 1;
}

// ---- The hooks of -fsanitize=thread.

#define ACCESS(BYTES)                                                                   \
  void __tsan_read##BYTES(void* p) { check_aligned(p, BYTES), check(p, BYTES, false); } \
  void __tsan_write##BYTES(void* p) { check_aligned(p, BYTES), check(p, BYTES, true); } \
  void __tsan_unaligned_read##BYTES(void* p) { check(p, BYTES, false); }                \
  void __tsan_unaligned_write##BYTES(void* p) { check(p, BYTES, true); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)

void __tsan_read_range(void* p, size_t bytes) { check(p, bytes, false); }
void __tsan_write_range(void* p, size_t bytes) { check(p, bytes, true); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

// ---- The hooks of -fsanitize=alignment,bounds,shift,integer-divide-by-zero,signed-integer-overflow: what they are
// given begins with the place in the source.

struct Place {
  const char* file;
  unsigned line, column;
};

#define BROKEN_RULE(NAME, ...) void __ubsan_handle_##NAME(Place* place, __VA_ARGS__)

BROKEN_RULE(type_mismatch_v1, uintptr_t address) {
  breach("an access at line %u is misaligned: the address ends in %#x", place->line,
         static_cast<unsigned>(address & 0xff));
}
BROKEN_RULE(out_of_bounds, uintptr_t index) {
  breach("an array index at line %u is out of bounds: %lld", place->line, static_cast<long long>(index));
}
BROKEN_RULE(shift_out_of_bounds, uintptr_t, uintptr_t) { breach("a shift at line %u is out of bounds", place->line); }
BROKEN_RULE(divrem_overflow, uintptr_t, uintptr_t) { breach("a division at line %u is by zero", place->line); }
BROKEN_RULE(add_overflow, uintptr_t, uintptr_t) { breach("an addition at line %u overflows", place->line); }
BROKEN_RULE(sub_overflow, uintptr_t, uintptr_t) { breach("a subtraction at line %u overflows", place->line); }
BROKEN_RULE(mul_overflow, uintptr_t, uintptr_t) { breach("a multiplication at line %u overflows", place->line); }
BROKEN_RULE(negate_overflow, uintptr_t) { breach("a negation at line %u overflows", place->line); }

}  // extern "C"

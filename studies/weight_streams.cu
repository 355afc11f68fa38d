// Reads of an expert layer's weights from memory, by pattern: which bytes a CTA asks for, how many at a time, in which order.  Nothing is computed.
//
//     weight_streams PATTERNS TURNS      a line of PATTERNS is: name key=value ...; prints a line of JSON for each
//
// Linear1 has experts of 4096 x 7168 bytes, a tile being rows of gate and as many of up, Linear2 of 7168 x 2048; 229 of 256 are read.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#define CHECK(call) do { auto error = (call); if (error != 0) { fprintf(stderr, "line %d: error %d\n", __LINE__, int(error)); exit(1); } } while (0)

constexpr int EXPERTS = 256, MOST_STAGES = 64, MOST_SMEM = 226 * 1024, COPIERS = 128, LOADERS = 512, AT_A_TIME = 8;

struct Plan {
  int n, k;                                // of an expert's matrix
  int units, per_expert;                   // tiles, or runs of bytes, that are dealt to CTAs
  int height, split, h;                    // rows of a tile, whether half of them are of up, rows of a box of 128 bytes
  int burst, wide, by_column;              // K blocks asked for at once; whether they are one stage, of one box's rows; the order of boxes
  int stages, turn;                        // of the ring; units in turn and not dealt at run time
  int run, piece;                          // bytes that follow one another: of a unit, of a stage
};

__device__ __forceinline__ uint32_t shared_of(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void wait(uint32_t bar, uint32_t parity) {
  asm volatile("{\n.reg .pred p;\nL: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra L;\n}" ::"r"(bar), "r"(parity) : "memory");
}
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, uint32_t bar, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
__device__ __forceinline__ void load_piece(uint32_t to, const uint8_t* from, uint32_t bytes, uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}

// Stages of shared memory, which count as read as soon as they have arrived.
struct Ring {
  uint32_t base, bars;
  int stages, bytes, s = 0, parity = 1, used = 0;

  __device__ Ring(const void* ring, uint64_t* full, int stages, int bytes) : base(shared_of(ring)), bars(shared_of(full)), stages(stages), bytes(bytes) {
    for (int i = 0; i < stages; ++i) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bars + 8 * i));
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
  }
  __device__ int take() {  // the next stage, free, whose bytes are expected
    int taken = s;
    if (used >= stages) wait(bars + 8 * s, parity);
    else ++used;
    expect(bars + 8 * s, bytes);
    if (++s == stages) s = 0, parity ^= 1;
    return taken;
  }
  __device__ void finish() {
    for (int i = 0; i < used; ++i) {
      int last = used < stages ? i : s;
      wait(bars + 8 * last, used < stages ? 0 : parity);
      if (used == stages && ++s == stages) s = 0, parity ^= 1;
    }
  }
};

// A stage has 128 bytes of each row of a tile, and `burst` stages are asked for at once, box by box of rows or column by column; if `wide`, it
// has `burst` times 128 bytes of the rows of a box.
__global__ void __launch_bounds__(32) boxes(const __grid_constant__ CUtensorMap map, Plan p, const int* experts, unsigned* counter) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ uint64_t full[MOST_STAGES];
  if (threadIdx.x) return;
  int q = p.burst, count = p.height / p.h, box = p.h * 128, grid = gridDim.x, unit = blockIdx.x, apart = p.split ? p.n / 2 : p.h;
  Ring ring(memory, full, p.stages, (p.wide ? q : count) * box);
  int next = p.turn ? unit + grid : int(atomicAdd(counter, 1)) + grid, expert = experts[unit / p.per_expert];
  while (unit < p.units) {
    int after = p.turn ? next + grid : int(atomicAdd(counter, 1)) + grid;  // on their way while this one is read
    int expert_after = next < p.units ? experts[next / p.per_expert] : 0;
    int row = expert * p.n + unit % p.per_expert * (p.split ? p.height / 2 : p.height);
    for (int x = 0; x < p.k; x += q * 128) {
      if (p.wide) {
        for (int r = 0; r < count; ++r) {
          int t = ring.take();
          for (int c = 0; c < q; ++c) load_box(ring.base + t * ring.bytes + c * box, &map, ring.bars + 8 * t, x + c * 128, row + r * apart);
        }
        continue;
      }
      int first = ring.take();
      for (int c = 1; c < q; ++c) ring.take();
      for (int i = 0; i < count * q; ++i) {
        int r = p.by_column ? i % count : i / q, c = p.by_column ? i / count : i % q, t = first + c;
        if (t >= p.stages) t -= p.stages;
        load_box(ring.base + t * ring.bytes + r * box, &map, ring.bars + 8 * t, x + c * 128, row + r * apart);
      }
    }
    unit = next, next = after, expert = expert_after;
  }
  ring.finish();
}

// Bytes that follow one another, `run` for a CTA at a time, in pieces of a stage.
__global__ void __launch_bounds__(32) pieces(const uint8_t* from, Plan p, unsigned* counter) {
  extern __shared__ __align__(1024) uint8_t memory[];
  __shared__ uint64_t full[MOST_STAGES];
  if (threadIdx.x) return;
  Ring ring(memory, full, p.stages, p.piece);
  for (int unit = blockIdx.x, next; unit < p.units; unit = next) {
    next = (p.turn ? unit : int(atomicAdd(counter, 1))) + gridDim.x;
    for (int i = 0; i < p.run; i += p.piece) {
      int t = ring.take();
      load_piece(ring.base + t * ring.bytes, from + int64_t(unit) * p.run + i, p.piece, ring.bars + 8 * t);
    }
  }
  ring.finish();
}

// A CTA for each tile, 128 bytes of each row at a time by copies of 16 bytes, as Triton's pipelines load them.
__global__ void __launch_bounds__(COPIERS) copies(const uint8_t* from, Plan p, const int* experts) {
  extern __shared__ __align__(1024) uint8_t memory[];
  int expert = experts[blockIdx.x / p.per_expert], blocks = p.k / 128;
  const uint8_t* first = from + (int64_t(expert) * p.n + blockIdx.x % p.per_expert * p.height) * p.k;
  auto load = [&](int k) {
    for (int i = threadIdx.x; k < blocks && i < p.height * 8; i += COPIERS)
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_of(memory) + (k % p.stages * p.height * 8 + i) * 16),
                   "l"(first + int64_t(i / 8) * p.k + k * 128 + i % 8 * 16) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int k = 0; k < p.stages - 1; ++k) load(k);
  for (int k = 0; k < blocks; ++k) {
    if (p.stages == 3) asm volatile("cp.async.wait_group 1;" ::: "memory");
    else asm volatile("cp.async.wait_group 2;" ::: "memory");
    __syncthreads();
    load(k + p.stages - 1);
  }
}

// 16 bytes a thread, eight loads under way, in the order of addresses.
__global__ void __launch_bounds__(LOADERS) loads(const uint4* from, int64_t count, unsigned* to) {
  unsigned sum = 0;
  int64_t stride = int64_t(gridDim.x) * LOADERS, i = int64_t(blockIdx.x) * LOADERS + threadIdx.x;
  for (; i + (AT_A_TIME - 1) * stride < count; i += AT_A_TIME * stride) {
    uint4 v[AT_A_TIME];
#pragma unroll
    for (int j = 0; j < AT_A_TIME; ++j)
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v[j].x), "=r"(v[j].y), "=r"(v[j].z), "=r"(v[j].w) : "l"(from + i + j * stride));
#pragma unroll
    for (int j = 0; j < AT_A_TIME; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x12345678) *to = sum;
}

__global__ void fill(uint4* to, int64_t count) {
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    uint64_t a = (i + 1) * 0x9E3779B97F4A7C15ull, b;
    a ^= a >> 29, a *= 0xBF58476D1CE4E5B9ull, a ^= a >> 32, b = a * 0x94D049BB133111EBull, b ^= b >> 31;
    to[i] = make_uint4(unsigned(a), unsigned(a >> 32), unsigned(b), unsigned(b >> 32));
  }
}

struct Pattern {
  std::string name, kind;
  Plan plan;
  CUtensorMap map;
  int smem, grid;
  double bytes;
  std::vector<double> us;
};

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                            const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

CUtensorMap make_map(Encode encode, void* base, const Plan& p, int promotion) {
  CUtensorMap map;
  cuuint64_t dims[2] = {cuuint64_t(p.k), cuuint64_t(p.n) * EXPERTS}, strides[1] = {cuuint64_t(p.k)};
  cuuint32_t box[2] = {128, cuuint32_t(p.h)}, ones[2] = {1, 1};
  auto l2 = promotion == 256 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : promotion == 128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_64B;
  CHECK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, base, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, l2,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

int main(int argc, char** argv) {
  if (argc != 3) return fprintf(stderr, "weight_streams PATTERNS TURNS\n"), 2;
  int sms;
  CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  Encode encode;
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", reinterpret_cast<void**>(&encode), 12000, cudaEnableDefault, &found));
  int64_t size = int64_t(EXPERTS) * 4096 * 7168;
  uint8_t* weights;
  CHECK(cudaMalloc(&weights, size));
  fill<<<1024, 256>>>(reinterpret_cast<uint4*>(weights), size / 16);
  std::vector<int> met;
  for (int expert = 0; expert < EXPERTS; ++expert)
    if (expert * 27 % EXPERTS >= 27) met.push_back(expert);
  int* experts;
  CHECK(cudaMalloc(&experts, met.size() * sizeof(int)));
  CHECK(cudaMemcpy(experts, met.data(), met.size() * sizeof(int), cudaMemcpyHostToDevice));
  unsigned* counter;
  CHECK(cudaMalloc(&counter, sizeof(unsigned)));
  for (const void* kernel : {reinterpret_cast<const void*>(boxes), reinterpret_cast<const void*>(pieces), reinterpret_cast<const void*>(copies)})
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST_SMEM));

  std::vector<Pattern> patterns;
  std::ifstream file(argv[1]);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Pattern one;
    std::map<std::string, std::string> given;
    words >> one.name;
    for (std::string word; words >> word;) given[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    auto number = [&](const char* key, int otherwise) { return given.count(key) ? std::stoi(given[key]) : otherwise; };
    bool first = number("linear", 1) == 1;
    Plan& p = one.plan;
    one.kind = given.count("kind") ? given["kind"] : "boxes";
    p.n = first ? 4096 : 7168, p.k = first ? 7168 : 2048;
    p.split = number("split", first && one.kind == "boxes"), p.height = number("height", p.split ? 256 : 128), p.h = number("h", std::min(p.height, 128));
    p.burst = number("burst", 1), p.wide = number("wide", 0), p.by_column = number("by_column", 0), p.stages = number("stages", 6), p.turn = number("turn", 0);
    p.piece = number("piece", 32768), p.run = number("run", p.piece);
    p.per_expert = p.n / p.height, p.units = int(met.size()) * p.per_expert;
    one.bytes = double(met.size()) * p.n * p.k, one.grid = sms * number("ctas", 1);
    if (one.kind == "boxes") one.map = make_map(encode, weights, p, number("l2", 256)), one.smem = p.stages * (p.wide ? p.burst : p.height / p.h) * p.h * 128;
    if (one.kind == "pieces") p.units = int(one.bytes / p.run), one.bytes = double(p.units) * p.run, one.smem = p.stages * p.piece;
    if (one.kind == "copies") one.grid = p.units, one.smem = p.stages * p.height * 128;
    if (one.kind == "loads") one.smem = 0;
    if (one.smem > MOST_SMEM || p.stages > MOST_STAGES || p.k % (p.burst * 128) || (!p.wide && p.burst > p.stages)) return fprintf(stderr, "%s\n", line.c_str()), 2;
    patterns.push_back(one);
  }

  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  auto launch = [&](const Pattern& one) {
    CHECK(cudaMemsetAsync(counter, 0, sizeof(unsigned)));
    if (one.kind == "boxes") boxes<<<one.grid, 32, one.smem>>>(one.map, one.plan, experts, counter);
    if (one.kind == "pieces") pieces<<<one.grid, 32, one.smem>>>(weights, one.plan, counter);
    if (one.kind == "copies") copies<<<one.grid, COPIERS, one.smem>>>(weights, one.plan, experts);
    if (one.kind == "loads") loads<<<one.grid, LOADERS>>>(reinterpret_cast<uint4*>(weights), int64_t(one.bytes / 16), counter);
  };
  std::mt19937 random(0);
  std::vector<Pattern*> order;
  for (auto& one : patterns) order.push_back(&one);
  for (int turn = 0; turn < atoi(argv[2]); ++turn) {
    std::shuffle(order.begin(), order.end(), random);
    for (Pattern* one : order) {
      launch(*one);  // uncounted
      CHECK(cudaEventRecord(begin));
      launch(*one);
      launch(*one);
      CHECK(cudaEventRecord(end));
      CHECK(cudaDeviceSynchronize());
      float ms;
      CHECK(cudaEventElapsedTime(&ms, begin, end));
      one->us.push_back(ms * 1000 / 2);
    }
  }
  for (auto& one : patterns) {
    std::sort(one.us.begin(), one.us.end());
    printf("{\"name\": \"%s\", \"bytes\": %.0f, \"us\": {\"median\": %.2f, \"low\": %.2f, \"high\": %.2f}}\n", one.name.c_str(), one.bytes,
           one.us[one.us.size() / 2], one.us.front(), one.us.back());
  }
}

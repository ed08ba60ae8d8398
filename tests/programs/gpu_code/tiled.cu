// What tiled_sm_70.cubin and tiled_sm_80.cubin were made of, by NVRTC 12.9 (--gpu-architecture=sm_70, sm_80).
extern "C" __global__ void __launch_bounds__(64) tiled(float* __restrict__ out, const float4* __restrict__ in) {
  __shared__ float tile[256];
  float sum = 0.0f;
  #pragma unroll 1
  for (int outer = 0; outer < 12; ++outer) {
    __syncthreads();
    float4 four = in[outer * 64 + threadIdx.x];
    tile[threadIdx.x * 4] = four.x; tile[threadIdx.x * 4 + 1] = four.y;
    tile[threadIdx.x * 4 + 2] = four.z; tile[threadIdx.x * 4 + 3] = four.w;
    __syncthreads();
    #pragma unroll 1
    for (int inner = 0; inner < 40; ++inner) sum += tile[inner] * tile[inner + threadIdx.x];
  }
  if (threadIdx.x < 50) out[threadIdx.x] = sum;
}

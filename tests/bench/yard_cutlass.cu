/* yard_cutlass.cu - the kernels of CUTLASS that yard.cu measures: of those that were tried, the
 * fastest for a prompt's products (results-h200.md). */
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>
#include <cutlass/version.h>

#include "tests/bench/yard.h"

typedef cutlass::bfloat16_t number;
typedef cutlass::layout::RowMajor row_major;       /* x, y */
typedef cutlass::layout::ColumnMajor column_major; /* w^T */
enum { EIGHT = 8 /* numbers of 16 bytes: the alignment of all three matrices */ };

/* Device: a kernel of CUTLASS with its launch. */
template <class Device> static bool launch(void *prepared, cudaStream_t stream)
{
    return ((Device *)prepared)->run(stream) == cutlass::Status::kSuccess;
}
template <class Device> static void *prepare(const typename Device::Arguments &arguments)
{
    void *workspace = nullptr;
    const size_t bytes = Device::get_workspace_size(arguments);
    if (bytes && cudaMalloc(&workspace, bytes) != cudaSuccess)
        return nullptr;
    Device *const product = new Device();
    if (Device::can_implement(arguments) == cutlass::Status::kSuccess &&
        product->initialize(arguments, workspace) == cutlass::Status::kSuccess)
        return product;
    delete product;
    cudaFree(workspace);
    return nullptr;
}

/* ---- 9.0: copies by TMA, warp-specialized, persistent, clusters of two ----------------------- */

template <int M, int N, class Mainloop, class Epilogue> struct specialized {
    typedef cute::Shape<cute::Int<M>, cute::Int<N>, cute::_64> tile;
    typedef cute::Shape<cute::_2, cute::_1, cute::_1> cluster;
    typedef typename cutlass::epilogue::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, tile, cluster,
        cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, row_major, EIGHT,
        number, row_major, EIGHT, Epilogue>::CollectiveOp epilogue;
    typedef typename cutlass::gemm::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, number, row_major, EIGHT, number,
        column_major, EIGHT, float, tile, cluster,
        cutlass::gemm::collective::StageCountAutoCarveout<
            (int)sizeof(typename epilogue::SharedStorage)>,
        Mainloop>::CollectiveOp mainloop;
    typedef cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, mainloop,
                                                 epilogue, cutlass::gemm::PersistentScheduler>
        kernel;
    typedef cutlass::gemm::device::GemmUniversalAdapter<kernel> device;

    static void *prepare(const void *x, const void *w, void *y, int rows, int out, int in)
    {
        using cute::make_shape;
        using cutlass::make_cute_packed_stride;
        cutlass::KernelHardwareInfo gpu;
        cudaGetDevice(&gpu.device_id);
        gpu.sm_count =
            cutlass::KernelHardwareInfo::query_device_multiprocessor_count(gpu.device_id);
        typename device::Arguments a{
            cutlass::gemm::GemmUniversalMode::kGemm,
            {rows, out, in, 1},
            {(const number *)x,
             make_cute_packed_stride(typename kernel::StrideA{}, make_shape(rows, in, 1)),
             (const number *)w,
             make_cute_packed_stride(typename kernel::StrideB{}, make_shape(out, in, 1))},
            {{1.f, 0.f},
             nullptr,
             {},
             (number *)y,
             make_cute_packed_stride(typename kernel::StrideD{}, make_shape(rows, out, 1))},
            gpu};
        a.scheduler.max_swizzle_size = 8;
        return ::prepare<device>(a);
    }
};
typedef specialized<128, 256, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                    cutlass::epilogue::TmaWarpSpecializedCooperative>
    cooperative;
typedef specialized<128, 128, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                    cutlass::epilogue::TmaWarpSpecialized>
    ping_pong;

/* ---- 8.0: copies by cp.async, a block a tile, warps of 64 x 64 ------------------------------- */

template <int M, int N, int STAGES> struct tiled {
    template <int... X> using shape = cutlass::gemm::GemmShape<X...>;
    typedef cutlass::gemm::device::Gemm<
        number, row_major, number, column_major, number, row_major, float,
        cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, shape<M, N, 32>, shape<64, 64, 32>,
        shape<16, 8, 16>, cutlass::epilogue::thread::LinearCombination<number, EIGHT, float, float>,
        cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, STAGES, EIGHT, EIGHT>
        device;

    static void *prepare(const void *x, const void *w, void *y, int rows, int out, int in)
    {
        return ::prepare<device>({{rows, out, in},
                                  {(const number *)x, in},
                                  {(const number *)w, in},
                                  {(number *)y, out},
                                  {(number *)y, out},
                                  {1.f, 0.f}});
    }
};

#define KERNEL(name, wgmma, type) {name, wgmma, type::prepare, launch<type::device>}
typedef tiled<128, 128, 5> square;
typedef tiled<128, 256, 4> wide;
const struct cutlass_kernel cutlass_kernels[CUTLASS_KERNELS] = {
    KERNEL("CUTLASS cooperative 128x256x64", true, cooperative),
    KERNEL("CUTLASS ping-pong 128x128x64", true, ping_pong),
    KERNEL("CUTLASS 128x128x32, 5 stages", false, square),
    KERNEL("CUTLASS 128x256x32, 4 stages", false, wide),
};
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
const char cutlass_version[] = TEXT(CUTLASS_MAJOR) "." TEXT(CUTLASS_MINOR) "." TEXT(CUTLASS_PATCH);

"""Names: our table against real names, look-alikes and hostile ones; people's own tables."""

# ruff: noqa: E501 (kernel names are as long as they are)

from __future__ import annotations

import importlib.util
import pickle
import time
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose import name_patterns
from diagnose.errors import InputNotFoundError, UsageError
from diagnose.name_patterns import MAX_FUNCTION, Pattern, function_name
from diagnose.names import Classifier
from diagnose.schema import NULL, Activity, Call, Kind

COMMUNICATION, COMPUTE, MEMORY = Activity.COMMUNICATION, Activity.COMPUTE, Activity.MEMORY
CLASSIFIER = Classifier.load()
OURS = CLASSIFIER.patterns


def _entries() -> list[tuple[str, Pattern]]:
    sections = {
        "kernel": OURS.kernels,
        "memcpy": OURS.copies,
        "memset": OURS.fills,
        "call": OURS.calls,
        "host_op": OURS.host_ops,
        "family": OURS.families,
    }
    return [(section, entry) for section, found in sections.items() for entry in found]


def _first(section: str, name: str) -> Pattern | None:
    same = [entry for other, entry in _entries() if other == section]
    named = function_name(name) if section in ("kernel", "family") else name
    return next((entry for entry in same if entry.match(named)), None)


@pytest.mark.parametrize(("section", "entry"), _entries(), ids=lambda value: str(value)[:60])
def test_example_is_decided_by_its_own_entry(section: str, entry: Pattern) -> None:
    assert entry.example, entry.pattern
    assert entry.since, entry.pattern
    assert _first(section, entry.example) is entry


def test_no_pattern_is_listed_twice() -> None:
    for (a, first), (b, second) in combinations(_entries(), 2):
        assert (a, first.pattern) != (b, second.pattern)


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        # NCCL
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclKernel_AllReduce_TREE_LL_Sum_half(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclDevKernel_AllReduce_bf16_RING(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)", "send_recv"),
        ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)", "all_reduce"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_f8e5m2(ncclSymkDevWorkArgs4K)", "all_reduce"),
        ("ncclSymkDevKernel_ReduceScatter_RailA2A_LsaLD_sum_bf16", "reduce_scatter"),
        ("ncclBroadcastRingLLKernel_copy_i8(ncclColl)", "broadcast"),
        ("ncclReduceScatterRingLLKernel_sum_f16(ncclColl)", "reduce_scatter"),
        # RCCL does not say
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", None),
        ("ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)", None),
        ("_Z23ncclDevKernel_Generic_124ncclDevKernelArgsStorageILm4096EE", None),
        ("mscclKernel_Sum_hip_bfloat16_Simple_false.kd", None),
        # inference
        ("void sglang::cross_device_reduce_2stage<__half, 8>(sglang::RankData*, sglang::RankSignals)", "all_reduce"),
        ("_ZN5aiter26cross_device_reduce_2stageIDF16bLi8ELb0EEEvPNS_8RankDataE", "all_reduce"),
        ("_ZN5aiter30allreduce_fusion_kernel_1stageIDF16bLi8EEEv", "all_reduce"),
        ("void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)", "reduce_scatter"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<(x)1, 8>(y)", "all_reduce"),
        ("void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<(unsigned char)2>(x)", "all_reduce"),
        ("void tensorrt_llm::kernels::lowPrecisionTwoShotAllReduceKernel<__half, 8>(x)", "all_reduce"),
        ("void tensorrt_llm::kernels::moe_comm::moeA2ACombineKernel<8>(x)", "combine"),
        ("void (anonymous namespace)::all_reduce_two_shot_kernel<__half, 4u>(x)", "all_reduce"),
        # PyTorch symmetric memory
        ("void <unnamed>::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(x)", "all_reduce"),
        ("void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)", "all_gather"),
        ("void c10d::symmetric_memory::wait_signal_kernel(unsigned int**)", "send_recv"),
        ("c10d::nvshmem_extension::allToAllV(void*, void*, long*, unsigned long, int, int)", "all_to_all"),
        # experts
        ("void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int)", None),
        ("void deep_ep::internode_ll::clean_low_latency_buffer<1024>(int*, int, int*, int)", None),
        ("deep_ep::intranode::barrier<8>(int**, int)", "barrier"),
        ("_ZN7deep_ep12internode_ll7combineILi3ELi10ELi7168EEEvPvS1_", "combine"),
        ("void primus_turbo::deep_ep::intranode::dispatch<8, 768>(int4*)", "dispatch"),
        ("void deep_ep::elastic::dispatch_impl<1, 2, 3>(void*)", "dispatch"),
        # user buffers
        ("userbuffers_fp16_sum_inplace_gpu_mc_rs_oop_stride(int, int)", "reduce_scatter"),
        ("kuserbuffers_pushsendrecv(int*, int*, int, int, int*, int*)", "send_recv"),
        # elsewhere
        ("void alltoall_on_stream_kernel<long>(int, long*, long const*, unsigned long)", "all_to_all"),
        ("void fcollect_on_stream_kernel<int>(int, int*, int const*, unsigned long)", "all_gather"),
        ("hcom_reduceScatter__210_0_1", "reduce_scatter"),
    ],
)  # fmt: skip
def test_communication(name: str, collective: str | None) -> None:
    assert CLASSIFIER.activity(name, Kind.KERNEL) == (COMMUNICATION, True)
    assert CLASSIFIER.collective(name) == collective


@pytest.mark.parametrize(
    "name",
    [
        "triton_per_fused_all_gather_into_tensor_wait_tensor_7",
        "triton_red_fused__to_copy_all_gather_into_tensor_mean_pow_wait_tensor_3",
        "triton_poi_fused_all_to_all_single_clone_permute_view_0",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, all_reduce>>(int)",
        "void splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<unsigned int>(int)",
        "void at::native::batch_norm_backward_reduce_kernel<float>(int)",
        "void at::native::batch_norm_reduce_statistics_kernel<float, float, int>(int)",
        "void cutlass::device_kernel<flash::CollectiveMainloop<cutlass::arch::ClusterBarrier>>(int)",
        "void cutlass::Kernel2<nccl::AllReduce>(all_reduce::Params)",
        "void flash_fwd_splitkv_mla_combine_kernel<float>(int)",
        "void deep_ep::elastic::combine_reduce_epilogue_impl<4, 8>(void*)",
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(int)",
        "void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)",
        "void wallReduceKernel<float>(float*)",
        "smallReduceKernel",
        "overall_reduce_max",
        "void aiter::local_device_load_rmsnorm<__hip_bfloat16>(int)",
        "at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**)",
        "nvjet_sm90_tst_128x256_64x4_4x2_h_bz_coopA_NNN",
        "hip_softmax_kernel",
        "my_dma_free_kernel(int)",
        "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64.kd",
        "",
        "   ",
    ],
)
def test_not_communication(name: str) -> None:
    assert CLASSIFIER.activity(name, Kind.KERNEL) == (COMPUTE, True)
    assert CLASSIFIER.collective(name) is None


@pytest.mark.parametrize(
    ("name", "activity"),
    [
        ("kernel_consumer_gemm_persistent_skip_local", COMPUTE),
        ("fused_matmul_reduce_scatter_kernel", COMPUTE),
        ("void acme::ringAllGather<float>(float*)", COMMUNICATION),
        ("customAllreduceV2", COMMUNICATION),
        ("my_lib::inplace_alltoall<4>", COMMUNICATION),
        (
            "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<__nv_bfloat16>(x)",
            COMMUNICATION,
        ),
    ],
)
def test_uncertain(name: str, activity: Activity) -> None:
    assert CLASSIFIER.activity(name, Kind.KERNEL) == (activity, False)


@pytest.mark.parametrize(
    ("name", "kind", "activity"),
    [
        ("Memcpy PtoP (Device -> Device)", Kind.MEMCPY, COMMUNICATION),
        ("Memcpy DtoD (Device -> Device)", Kind.MEMCPY, MEMORY),
        ("Memcpy HtoD (Pageable -> Device)", Kind.MEMCPY, MEMORY),
        ("Memcpy DtoH (Device -> Pinned)", Kind.MEMCPY, MEMORY),
        ("CopyDeviceToDevice", Kind.MEMCPY, MEMORY),
        ("nccl\nodd", Kind.MEMCPY, MEMORY),
        ("Memset (Unknown)", Kind.MEMSET, MEMORY),
        ("__amd_rocclr_fillBufferAligned.kd", Kind.KERNEL, MEMORY),
        ("__amd_rocclr_copyBuffer", Kind.KERNEL, MEMORY),
        ("memcpy128", Kind.KERNEL, MEMORY),
    ],
)
def test_copies_and_fills(name: str, kind: Kind, activity: Activity) -> None:
    assert CLASSIFIER.activity(name, kind) == (activity, True)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("void a::b<c<d>, (e)1>(f, g<h>)", "a::b"),
        ("void a::b<int>::c<float>::d(int)", "a::b::c::d"),
        ("a::(anonymous namespace)::b(int)", "a::b"),
        ("void <unnamed>::b<1>(int)", "b"),
        ("::a::b(int)", "a::b"),
        ("std::enable_if<(sizeof(int) > 2), void>::type a::b<int>(int)", "a::b"),
        ("void a::b(int)::{lambda(int)#1}::operator()(int) const", "a::b"),
        ("kernel.kd", "kernel"),
        ("void kernel<1>(int) [clone .kd]", "kernel"),
        ("_ZN2ab3cdeILi8EEEvPi", "ab::cde"),
        ("_ZN12_GLOBAL__N_13abcEv", "abc"),
        ("_ZN6deep_xL3abcEv", "deep_x"),
        ("_Z3abci", "abc"),
        ("_Z99abc", "abc"),
        ("void a::b<c<d, e", "a::b"),
        ("plain_name", "plain_name"),
        ("", ""),
    ],
)
def test_function_name(name: str, function: str) -> None:
    assert function_name(name) == function


@given(st.text(alphabet="ab:<>(), _Z1N", max_size=60))
def test_any_name_gets_an_answer(name: str) -> None:
    assert isinstance(function_name(name), str)
    assert CLASSIFIER.activity(name, Kind.KERNEL)[0] in Activity
    assert CLASSIFIER.call(name) in Call


def test_hostile_names_cost_little() -> None:
    size = 1_000_000
    names = [
        "a" * size,
        "ncclDevKernel_" + "A" * size + "-",
        "all_reduce" * (size // 10) + "!",
        "all_gather_gemm_" * (size // 16) + "!",
        "deep_ep::" * (size // 9),
        "userbuffers_a" + "_ag_" * (size // 4) + "!",
        "<" * size,
        "(anonymous namespace)::" * (size // 23),
        "_ZN" + "1a" * (size // 2),
        "_Z" + "9" * size,
    ]
    begin = time.process_time()
    for name in names:
        Classifier(OURS).activity(name, Kind.KERNEL)
    assert len(function_name(names[0])) == MAX_FUNCTION
    assert time.process_time() - begin < 2.0


@pytest.mark.parametrize(
    ("written", "one"),
    [
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("all_gather", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_all", "all_to_all"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("broadcast", "broadcast"),
        ("_broadcast_oop", "broadcast"),
        ("_reduce_oop", "reduce"),
        ("reduce", "reduce"),
        ("send", "send_recv"),
        ("recv", "send_recv"),
        ("sendrecv", "send_recv"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("barrier", "barrier"),
        ("coalesced", None),
        ("wait", None),
        ("init", None),
        ("", None),
    ],
)
def test_one_spelling(written: str, one: str | None) -> None:
    assert CLASSIFIER.normalise(written) == one


@pytest.mark.parametrize(
    ("collective", "taken", "given", "dtype", "size"),
    [
        ("all_reduce", 10, 10, "BFloat16", 20),
        ("all_gather", 10, 80, "Float", 320),
        ("reduce_scatter", 80, 10, "Float", 320),
        ("all_to_all", 30, 50, "Half", 100),
        ("gather", 10, 80, "Int", 320),
        ("scatter", 80, 10, "Int", 320),
        ("broadcast", 3, 3, "Long", 24),
        ("send_recv", 7, 7, "Byte", 7),
        ("all_gather", 0, 0, "BFloat16", 0),
        ("all_gather", 10, None, "Float", None),
        ("reduce_scatter", None, 10, "Float", None),
        ("all_reduce", None, 10, "Float", 40),
        ("all_reduce", NULL, 10, "Float", 40),
        ("all_reduce", None, None, "Float", None),
        ("all_reduce", NULL, NULL, "Float", None),
        ("all_reduce", 10, 10, None, None),
        ("all_reduce", 10, 10, "NoSuchType", None),
        (None, 10, 10, "Float", 40),
        (None, 10, 80, "Float", None),
    ],
)
def test_message_bytes(
    collective: str | None,
    taken: int | None,
    given: int | None,
    dtype: str | None,
    size: int | None,
) -> None:
    assert CLASSIFIER.message_bytes(collective, taken, given, dtype) == size


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("Float8_e4m3fn", 1),
        ("Float8_e5m2fnuz", 1),
        ("c10::Float8_e4m3fn", 1),
        ("Bool", 1),
        ("Char", 1),
        ("Short", 2),
        ("c10::BFloat16", 2),
        ("torch.bfloat16", 2),
        ("UInt16", 2),
        ("ComplexHalf", 4),
        ("float", 4),
        ("Double", 8),
        ("c10::complex<float>", 8),
        ("ComplexDouble", 16),
        ("int64", 8),
        ("unsigned char", 1),
    ],
)
def test_element_sizes(dtype: str, size: int) -> None:
    assert CLASSIFIER.element_bytes(dtype) == size


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cudaLaunchKernel", Call.LAUNCH),
        ("cudaLaunchKernelExC_v11060", Call.LAUNCH),
        ("cuLaunchKernelEx", Call.LAUNCH),
        ("cudaLaunchCooperativeKernel", Call.LAUNCH),
        ("hipExtModuleLaunchKernel", Call.LAUNCH),
        ("hipModuleLaunchKernel", Call.LAUNCH),
        ("hipExtLaunchMultiKernelMultiDevice", Call.LAUNCH),
        ("hipLaunchByPtr", Call.LAUNCH),
        ("cudaLaunchHostFunc", Call.OTHER),
        ("cudaGraphLaunch_v10000", Call.GRAPH_LAUNCH),
        ("hipGraphLaunch", Call.GRAPH_LAUNCH),
        ("cudaGraphInstantiate", Call.OTHER),
        ("cudaMemcpyAsync", Call.COPY),
        ("hipMemcpyWithStream", Call.COPY),
        ("cuMemcpyHtoDAsync_v2", Call.COPY),
        ("cudaMemsetAsync", Call.FILL),
        ("cuMemsetD8Async", Call.FILL),
        ("cudaDeviceSynchronize", Call.SYNCHRONIZE),
        ("cudaStreamSynchronize", Call.SYNCHRONIZE),
        ("cudaEventSynchronize", Call.SYNCHRONIZE),
        ("cuCtxSynchronize", Call.SYNCHRONIZE),
        ("hipStreamSynchronize", Call.SYNCHRONIZE),
        ("cudaEventRecordWithFlags", Call.EVENT),
        ("cudaEventQuery", Call.EVENT),
        ("cudaStreamWaitEvent", Call.EVENT),
        ("cudaMalloc", Call.ALLOCATE),
        ("cudaFreeAsync", Call.ALLOCATE),
        ("cuMemCreate", Call.ALLOCATE),
        ("cudaHostAlloc", Call.ALLOCATE),
        ("cudaStreamIsCapturing", Call.OTHER),
        ("cudaGetErrorString", Call.OTHER),
        ("cudaMemGetInfo", Call.OTHER),
        ("INVALID", Call.OTHER),
        ("myCudaLaunchKernel", Call.OTHER),
    ],
)
def test_calls(name: str, call: Call) -> None:
    assert CLASSIFIER.call(name) == call


def test_operators_whose_copies_are_collectives() -> None:
    yes = ["record_param_comms", "symm_mem::fused_all_gather_matmul", "symm_mem::nvshmem_put"]
    no = ["aten::copy_", "symm_mem::memset32_", "symm_mem::_async_input_mm", "my::symm_mem", ""]
    assert [CLASSIFIER.launches_collective(name) for name in yes] == [True] * 3
    assert [CLASSIFIER.launches_collective(name) for name in no] == [False] * 5
    for name in yes:
        assert name.startswith(CLASSIFIER.host_prefixes)
    assert not "aten::copy_".startswith(CLASSIFIER.host_prefixes)


def test_survives_pickling() -> None:
    # Ranks are read in several processes.
    again = pickle.loads(pickle.dumps(CLASSIFIER))
    assert again.activity("ncclDevKernel_SendRecv()", Kind.KERNEL) == (COMMUNICATION, True)


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_own_file_wins(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        r"""
        [[kernel]]
        pattern = 'my_ring_(?P<collective>gatherAll)_v\d+'
        class = "communication"
        example = "void mine::my_ring_gatherAll_v2<float>(float*)"
        [[kernel]]
        pattern = 'cross_device_reduce_1stage'
        class = "compute"
        certain = false
        [[host_op]]
        pattern = 'my_ops::\w+'
        [[call]]
        pattern = 'myLaunch'
        call = "launch"
        [collectives]
        all_gather = ["gather_all"]
        [element_bytes]
        2 = ["posit16"]
        """,
    )
    mine = Classifier.load(path)
    assert mine.collective("mine::my_ring_gatherAll_v3()") == "all_gather"
    assert mine.activity("void vllm::cross_device_reduce_1stage<1>()", Kind.KERNEL) == (
        COMPUTE,
        False,
    )
    assert mine.activity("ncclDevKernel_SendRecv()", Kind.KERNEL) == (COMMUNICATION, True)
    assert mine.launches_collective("my_ops::push")
    assert "my_ops::" in mine.host_prefixes
    assert mine.call("myLaunch") == Call.LAUNCH
    assert mine.normalise("_allgather_base") == "all_gather"
    assert mine.message_bytes("all_reduce", 3, 3, "posit16") == 6
    # Ours is as it was.
    assert not Classifier.load().launches_collective("my_ops::push")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[kernel]]\npattern = 'a('\nclass = 'compute'", "kernel entry 1: pattern 'a('"),
        ("[[kernel]]\nclass = 'compute'", "kernel entry 1: pattern is missing"),
        ("[[kernel]]\npattern = 'a'", "kernel entry 1: class is missing"),
        ("[[kernel]]\npattern = 'a'\nclass = 'comm'", "kernel entry 1: class is 'comm'"),
        ("[[kernel]]\npattern = 1\nclass = 'compute'", "kernel entry 1: pattern is 1"),
        ("[[kernel]]\npattern = 'a'\nclass = 'compute'\ncolor = 1", "unknown field 'color'"),
        ("[[kernel]]\npattern = 'a'\nclass = 'compute'\ncertain = 0", "certain is 0"),
        (
            "[[kernel]]\npattern = 'a'\nclass = 'compute'\n[[kernel]]\n"
            "pattern = 'b'\nclass = 'compute'\nexample = 'bc'",
            "kernel entry 2: the example 'bc' does not match",
        ),
        ("[[call]]\npattern = 'a'", "call entry 1: call is missing"),
        ("[[call]]\npattern = 'a'\ncall = 'fly'", "call entry 1: call is 'fly'"),
        ("[[host_op]]\npattern = '.*'", "host_op entry 1: pattern '.*' does not begin with"),
        ("[[kernels]]\npattern = 'a'", "unknown section 'kernels'"),
        ("kernel = 3", "kernel is not a list of tables"),
        ("[collectives]\nall_reduce = 'x'", "collectives: all_reduce is 'x'"),
        ("[element_bytes]\ntwo = ['x']", "element_bytes: two"),
        ("[[kernel]", "not TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = _file(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        Classifier.load(path)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match=r"absent\.toml"):
        Classifier.load(tmp_path / "absent.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        Classifier.load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(UsageError, match="byte 5 is not UTF-8"):
        Classifier.load(tmp_path / "latin.toml")


def test_page_is_current() -> None:
    root = Path(name_patterns.__file__).parents[1]
    script = root / "docs/generate_classification.py"
    spec = importlib.util.spec_from_file_location("generate_classification", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--check"]) == 0, "run: python docs/generate_classification.py"
    assert "triton_poi_fused_all_reduce_0" in module.tables()

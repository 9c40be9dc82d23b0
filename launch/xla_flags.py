"""Published flags of the XLA compiler by kind of chip; the launchers set them if --xla_flags is given.

The TPU flags have not been measured with bertfam, and `bertfam plan` compiles without them. On one GPU several flags brought no
gain, so the only GPU flag overlaps communication between GPUs. Newer XLA does this by itself: with jax 0.11.2 the program is
the same. Flags of MaxText that libtpu rejects today are left out: fusing asynchronous all-gathers on chips other than v5e fails
with "not supported ... incorrect results, hang" (libtpu 0.0.52, compiling for v4, v5p, v6e).
"""

_OVERLAP_ALL_REDUCE = (
    "--xla_tpu_enable_data_parallel_all_reduce_opt=true",
    "--xla_tpu_data_parallel_opt_different_sized_ops=true",
)

FLAGS = {
    # github.com/AI-Hypercomputer/maxtext: src/MaxText/configs/v4/22b.sh
    "v4": ("--xla_enable_async_all_gather=true",),
    # ... src/MaxText/configs/v5e/16b.sh
    "v5e": (
        *_OVERLAP_ALL_REDUCE,
        "--xla_tpu_enable_async_collective_fusion=true",
        "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
        "--xla_tpu_enable_async_collective_fusion_multiple_steps=true",
        "--xla_tpu_overlap_compute_collective_tc=true",
        "--xla_enable_async_all_gather=true",
    ),
    # ... src/MaxText/configs/v5p/128b.sh
    "v5p": (
        *_OVERLAP_ALL_REDUCE,
        "--xla_tpu_megacore_fusion_allow_ags=false",
        "--xla_enable_async_collective_permute=true",
        "--xla_tpu_enable_ag_backward_pipelining=true",
        "--xla_enable_async_all_gather=true",
    ),
    # ... src/MaxText/configs/trillium/llama2_7b_4096.sh
    "v6e": (
        "--xla_tpu_scoped_vmem_limit_kib=98304",
        "--xla_tpu_overlap_compute_collective_tc=true",
        "--xla_enable_async_all_gather=true",
    ),
    # docs.nvidia.com/jax-toolbox/environment-variables: set in NVIDIA's JAX images
    "gpu": ("--xla_gpu_enable_latency_hiding_scheduler=true",),
}


def environment(kind: str, enabled: bool) -> dict[str, str]:
    """Return the variables that set the flags for a kind of chip; {} if they are not enabled."""
    return {"XLA_FLAGS" if kind == "gpu" else "LIBTPU_INIT_ARGS": " ".join(FLAGS[kind])} if enabled else {}

"""Every Triton kernel compiles for every GPU generation, without a GPU."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

# largest shared memory of a thread block, bytes, by compute capability
SHARED_BYTES = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10}
# one register: on 8.0 Triton 3.7 stores a value before the loop over keys and loads it after the
# loop, and so fits four warps into 128 registers
SPILLED_BYTES = 8
HALF = {75: "fp16"}  # and bf16 on newer GPUs; T5 in fp16 has an fp32 residual stream


def signatures(half, descriptors):
    """Argument types and constants of the kernels in IgT5 and ESM-2 650M, with warps and stages."""
    import torch

    from abag.embed.kernels.attention import _POINTER_TILES, _TILES
    from abag.embed.kernels.triton_kernels import AttentionShape, _row_launch, rotary_launch

    row = {width: _row_launch(width) for width in (1024, 1280)}
    warps = {width: launch.pop("num_warps") for width, launch in row.items()}
    x = f"*{half}"
    f = "*fp32"
    norm = {"x_ptr": x, "delta_ptr": x, "weight_ptr": f, "out_ptr": x}
    norm |= {"scale": "fp32", "eps": "fp32"}
    yield "_add_rms_norm_kernel", norm, row[1024], warps[1024], 3
    yield "_add_rms_norm_kernel", norm | {"x_ptr": f}, row[1024], warps[1024], 3
    norm = {"x_ptr": x, "shift_ptr": f, "weight_ptr": f, "bias_ptr": f, "out_ptr": x, "eps": "fp32"}
    yield "_layer_norm_kernel", norm, row[1280], warps[1280], 3
    norm = {name: norm[name] for name in norm if name not in ("weight_ptr", "bias_ptr")}
    without = {"weight_ptr": None, "bias_ptr": None}
    yield "_layer_norm_kernel", norm, row[1280] | without, warps[1280], 3
    gelu = {"x_ptr": x, "bias_ptr": x, "tokens": "i32"}
    yield "_gelu_kernel", gelu, {"WIDTH": 5120, "ROWS": 8, "COLUMNS": 512}, 4, 3
    rotary = rotary_types(half)
    launch = rotary_launch(20, torch.empty(1, 32), per_warp=512)  # keys and their bias
    warps = launch.pop("num_warps")
    yield "_rotary_kernel", rotary | {"bias_ptr": x}, launch | {"weight_ptr": None}, warps, 3
    launch = rotary_launch(40, torch.empty(1, 32), per_warp=512)  # queries and keys
    warps = launch.pop("num_warps")
    yield "_rotary_kernel", rotary, launch | without, warps, 3
    launch = rotary_launch(40, torch.empty(1, 12), per_warp=512)  # ESM-2 35M and AbLang2
    warps = launch.pop("num_warps")
    yield "_rotary_kernel", rotary, launch | without, warps, 3
    for biased, heads, width, block, turned in (
        (True, 32, 128, 128, False),
        (False, 20, 64, 64, False),
        (False, 20, 64, 64, True),
        (False, 20, 24, 32, False),
    ):
        chosen = _TILES if descriptors else _POINTER_TILES
        m, n, warps, stages = chosen["biased" if biased else "plain"]
        blocks = {
            "qkv_q": (m, block // 2 if turned else block),
            "qkv": (n, block),
            "qkv_half": (n // 2, block),
        }
        if biased:
            blocks |= {"bias": (m, n), "bias_half": (m, n // 2)}
        tensors = {name: f"tensordesc<{half}[{r}, {c}]>" for name, (r, c) in blocks.items()}
        tensors = tensors if descriptors else dict.fromkeys(blocks, x)
        tiles = dict.fromkeys(("tile_first_ptr", "tile_start_ptr", "tile_stop_ptr"), "*i32")
        reach = 192 if biased else 0
        constants = {"SHAPE": AttentionShape(heads, width, block, m, n, reach, descriptors)}
        if not biased:
            constants |= {"bias": None, "bias_half": None}
        attend = {**tensors, "out_ptr": x, **tiles, "scale": "fp32"}
        if turned:
            attend |= {"cos_ptr": f, "sin_ptr": f, "query_bias_ptr": x}
        else:
            constants |= {"cos_ptr": None, "sin_ptr": None, "query_bias_ptr": None}
        yield "_attention_kernel", attend, constants, warps, stages


def rotary_types(half):
    """Types of the arguments that each use of the kernel has."""
    types = {"qkv_ptr": f"*{half}", "position_ptr": "*i32", "cos_ptr": "*fp32", "sin_ptr": "*fp32"}
    return types | {"token_stride": "i32", "eps": "fp32"}


def gated_signatures(half):
    """As `signatures`, of the kernels of Ankh Large and ESM C 300M, 600M and 6B."""
    import torch

    from abag.embed.kernels.triton_kernels import rotary_launch

    x = f"*{half}"
    gate = {"x_ptr": x, "out_ptr": x, "tokens": "i32"}
    for silu, width in ((False, 3840), (True, 2560)):
        constants = {"SILU": silu, "WIDTH": width, "ROWS": 8, "COLUMNS": 512}
        yield "_gate_kernel", gate, constants, 4, 3
    rotary = rotary_types(half) | {"weight_ptr": "*fp32"}
    for heads in (15, 18, 40):
        launch = rotary_launch(heads, torch.empty(1, 32), per_warp=1024)
        warps = launch.pop("num_warps")
        yield "_rotary_kernel", rotary, launch | {"bias_ptr": None}, warps, 3


def shape_signatures(half):
    """As `signatures`, of the kernels whose widths are those of Ankh 3, AMPLIFY and gLM2."""
    import torch

    sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
    from encoding import ALIASES, FAMILIES
    from shapes import SHAPES

    from abag.embed.kernels.triton_kernels import _row_launch, rotary_launch

    x = f"*{half}"
    f = "*fp32"
    wide = f if half == "fp16" else x  # fp16 could not hold the residual stream
    norm = {"x_ptr": wide, "delta_ptr": x, "weight_ptr": f, "out_ptr": x}
    norm |= {"scale": "fp32", "eps": "fp32"}
    gate = {"x_ptr": x, "out_ptr": x, "tokens": "i32"}
    for name, config in SHAPES.items():
        if not name.startswith(("ankh3", "amplify", "glm2")):
            continue
        shape = FAMILIES[ALIASES[name].family].shape(config)
        launch = _row_launch(shape.width)
        warps = launch.pop("num_warps")
        yield "_add_rms_norm_kernel", norm, launch, warps, 3
        constants = {"WIDTH": shape.feed_forward_width, "ROWS": 8, "COLUMNS": 512}
        yield "_gate_kernel", gate, {"SILU": True, **constants}, 4, 3
        if not name.startswith("ankh3"):
            angles = torch.empty(1, shape.head_width // 2)
            launch = rotary_launch(shape.heads, angles, per_warp=512)
            warps = launch.pop("num_warps")
            without = {"bias_ptr": None, "weight_ptr": None}
            yield "_rotary_kernel", rotary_types(half), launch | without, warps, 3


def compile_all(capability, only):
    """Compile kernels by name for one target.

    Prints name, shared bytes, registers, stack bytes and whether tensor cores are used.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from abag.embed.kernels import triton_kernels as kernels

    half = HALF.get(capability, "bf16")
    cases = [*signatures(half, capability >= 90), *gated_signatures(half), *shape_signatures(half)]
    bundled = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    for name, types, constants, warps, stages in cases:
        if not re.fullmatch(only, name):
            continue
        signature = types | dict.fromkeys(constants, "constexpr")
        kernel = getattr(kernels, name)
        # as launched: tensors and the rows of queries, keys and values are aligned
        kinds = [types.get(argument, "") for argument in kernel.arg_names]
        aligned = [i for i, kind in enumerate(kinds) if kind.startswith("*")]
        aligned += [i for i, name in enumerate(kernel.arg_names) if name == "token_stride"]
        hints = {(i,): [["tt.divisibility", 16]] for i in aligned}
        built = triton.compile(
            ASTSource(kernel, signature, constants, hints),
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": warps, "num_stages": stages},
        )
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(built.asm["cubin"])
            file.flush()
            command = [bundled, "-res-usage", file.name]
            used = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        registers, stack = (int(re.search(rf"{k}:(\d+)", used)[1]) for k in ("REG", "STACK"))
        product = bool(re.search(r"\bw?g?mma\b", built.asm["ptx"]))
        print(json.dumps([name, built.metadata.shared, registers, stack, product]))


ALL = ".*"
ATTENTION = "_attention_kernel"
OTHERS = "(?!_attention_kernel).*"


# attention for 7.5, which is not used, takes 90 s to compile
@pytest.mark.ci
@pytest.mark.parametrize(("capability", "only"), [
    (75, OTHERS), (80, ALL), (90, ALL),
    *(pytest.param(c, ALL, marks=pytest.mark.slow) for c in (86, 89)),
    pytest.param(75, ATTENTION, marks=pytest.mark.slow),
])  # fmt: skip
def test_every_kernel_compiles_and_fits_the_gpu(capability, only, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", __file__, str(capability), only]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    from abag.embed.kernels import triton_kernels

    kernels = {
        name
        for name in vars(triton_kernels)
        if name.endswith("_kernel") and re.fullmatch(only, name)
    }
    assert {name for name, *_ in compiled} == kernels
    for name, shared_bytes, registers, stack_bytes, tensor_cores in compiled:
        attends = name == "_attention_kernel"
        # Triton multiplies on tensor cores from 8.0 on: the T4 uses grouped SDPA instead
        assert tensor_cores == (attends and capability >= 80), name
        if attends and capability < 80:
            continue
        assert shared_bytes <= SHARED_BYTES[capability], name
        assert registers <= 255, name
        assert stack_bytes <= SPILLED_BYTES, f"{name} spills registers"


if __name__ == "__main__":
    compile_all(int(sys.argv[1]), sys.argv[2])

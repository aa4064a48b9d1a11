"""Matrix products on Hopper GPUs by one algorithm of cuBLASLt.

An H100 or H200 that multiplies matrices without pause runs at its power limit. There cuBLAS's own
choice, tiles of 128 x 256 and larger, is up to a sixth slower than tiles of 128 x 160 for products
with at least as many outputs as inputs, above all with an epilogue
(benchmarks/results/products_h200_2026-11-22.md). torch offers no way to choose. Where the algorithm
is not available, torch computes the product: only speed differs.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from abag.core.device import current_device

Epilogue = Literal["none", "relu", "gelu"]

# The constants below are those of cublasLt.h.
_EPILOGUES: dict[Epilogue, tuple[int, int]] = {"none": (1, 4), "relu": (2, 6), "gelu": (32, 36)}
"""Without a bias, and with one; GELU is the tanh form."""
_TYPES = {torch.float16: 2, torch.bfloat16: 14}
_FP32 = 0
_FP32_SUMS = 68
# attributes of a product
_TRANSPOSE_FIRST = 3
_EPILOGUE = 7
_BIAS_POINTER = 8
_ALGORITHM = 66  # kernels named nvjet
_CONFIG = {1: 29, 5: 1, 6: 35, 8: 3}
"""Attributes of the algorithm: tiles of 128 x 160, variant 1, its own choice of stages, clusters
of 2 x 1."""
_WORKSPACE_BYTES = 1 << 20  # the algorithm takes 4
_MIN_TOKENS = 4096  # fewer do not fill the GPU with these tiles
_ALIGNED = 256  # bytes; cuBLASLt assumes it unless told otherwise


class WideProducts:
    """Products ``epilogue(x W^T + b)`` with as many outputs as inputs, or more."""

    def __init__(self, device: torch.device) -> None:
        self._lt = ctypes.CDLL(f"libcublasLt.so.{_cuda_major()}")  # torch has loaded it
        self._handle = ctypes.c_void_p()
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._products: dict[tuple[object, ...], _Product | None] = {}
        with current_device(device):
            _require(self._lt.cublasLtCreate(ctypes.byref(self._handle)))

    def __call__(
        self,
        x_TK: Tensor,
        weight_NK: Tensor,
        bias_N: Tensor | None = None,
        *,
        epilogue: Epilogue = "none",
        add_to: Tensor | None = None,
    ) -> Tensor | None:
        """Return the product, shape (T, N), or None if torch should compute it.

        Parameters
        ----------
        x_TK : Tensor, shape=(T, K), dtype=float16 or bfloat16
        weight_NK : Tensor, shape=(N, K)
            In the type of `x_TK`, as are `bias_N` and `add_to`.
        bias_N : Tensor, shape=(N,), optional
        epilogue : {"none", "relu", "gelu"}
            Applied to the product and its bias; GELU is the tanh form.
        add_to : Tensor, shape=(T, N), optional
            Contiguous; it is added to the product and overwritten by the sum.
        """
        tokens = len(x_TK)
        outputs, inputs = weight_NK.shape
        if tokens < _MIN_TOKENS or outputs < inputs:
            return None
        out = x_TK.new_empty(tokens, outputs) if add_to is None else add_to
        tensors = (x_TK, weight_NK, out) if bias_N is None else (x_TK, weight_NK, out, bias_N)
        for x in tensors:
            if x.dtype is not x_TK.dtype or not x.is_contiguous() or x.data_ptr() % _ALIGNED:
                return None
        has_bias = bias_N is not None
        add = add_to is not None
        key = (tokens, outputs, inputs, x_TK.dtype, epilogue, has_bias, add)
        if key not in self._products:
            if len(self._products) > 64:  # few token counts come again
                self._products.clear()
            code = _EPILOGUES[epilogue][has_bias]
            prepared = _Product(self._lt, self._handle, _TYPES[x_TK.dtype], code, add=add)
            is_there = prepared.supports(tokens, outputs, inputs)
            self._products[key] = prepared if is_there else None
        product = self._products[key]
        if product is None:
            return None
        product.run(x_TK, weight_NK, bias_N, out, self._workspace)
        return out


class _Product:
    """One product of given sizes. Row-major matrices are cuBLASLt's column-major transposes."""

    def __init__(
        self, lt: ctypes.CDLL, handle: ctypes.c_void_p, dtype: int, epilogue: int, *, add: bool
    ) -> None:
        self._lt = lt
        self._handle = handle
        self._type = dtype
        self._add = ctypes.c_float(add)
        self._operation = ctypes.c_void_p()
        _require(lt.cublasLtMatmulDescCreate(ctypes.byref(self._operation), _FP32_SUMS, _FP32))
        self._set(_TRANSPOSE_FIRST, ctypes.c_int(1))
        self._set(_EPILOGUE, ctypes.c_int(epilogue))
        self._algorithm = (ctypes.c_uint64 * 8)()
        self._layouts: list[ctypes.c_void_p] = []

    def __del__(self) -> None:
        """Free what cuBLASLt allocated."""
        for layout in self._layouts:
            self._lt.cublasLtMatrixLayoutDestroy(layout)
        self._lt.cublasLtMatmulDescDestroy(self._operation)

    def supports(self, tokens: int, outputs: int, inputs: int) -> bool:
        """Prepare the sizes; return whether cuBLASLt has the algorithm for them."""
        for rows, columns in ((inputs, outputs), (inputs, tokens), (outputs, tokens)):
            self._add_layout(rows, columns)
        if not self._choose_algorithm():
            return False
        weight, x, out = self._layouts
        algorithm = ctypes.byref(self._algorithm)
        result = (ctypes.c_uint64 * 16)()  # cublasLtMatmulHeuristicResult_t has 96 bytes
        refused = self._lt.cublasLtMatmulAlgoCheck(
            self._handle, self._operation, weight, x, out, out, algorithm, ctypes.byref(result)
        )
        workspace_bytes = result[8]
        return not refused and workspace_bytes <= _WORKSPACE_BYTES

    def _add_layout(self, rows: int, columns: int) -> None:
        layout = ctypes.c_void_p()
        _require(
            self._lt.cublasLtMatrixLayoutCreate(
                ctypes.byref(layout),
                self._type,
                ctypes.c_uint64(rows),
                ctypes.c_uint64(columns),
                ctypes.c_int64(rows),
            )
        )
        self._layouts.append(layout)

    def _choose_algorithm(self) -> bool:
        """Describe the algorithm to cuBLASLt; return whether it has it."""
        half = self._type
        types = (_FP32_SUMS, _FP32, half, half, half, half, _ALGORITHM)
        algorithm = ctypes.byref(self._algorithm)
        if self._lt.cublasLtMatmulAlgoInit(self._handle, *types, algorithm):
            return False
        for attribute, value in _CONFIG.items():
            # the last attribute, the shape of clusters, has 2 bytes
            number = ctypes.c_uint16(value) if attribute == 8 else ctypes.c_uint32(value)
            size = ctypes.c_size_t(ctypes.sizeof(number))
            status = self._lt.cublasLtMatmulAlgoConfigSetAttribute(
                algorithm, attribute, ctypes.byref(number), size
            )
            if status:
                return False
        return True

    def run(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, workspace: Tensor
    ) -> None:
        """Start the product on the current stream."""
        if bias is not None:
            self._set(_BIAS_POINTER, ctypes.c_void_p(bias.data_ptr()))
        unit = ctypes.c_float(1)
        operands = (weight, x, out, workspace)
        weight_at, x_at, out_at, workspace_at = (ctypes.c_void_p(t.data_ptr()) for t in operands)
        left, right, result = self._layouts
        stream = torch.cuda.current_stream(x.device).cuda_stream
        _require(
            self._lt.cublasLtMatmul(
                self._handle,
                self._operation,
                ctypes.byref(unit),
                weight_at,
                left,
                x_at,
                right,
                ctypes.byref(self._add),
                out_at,
                result,
                out_at,
                result,
                ctypes.byref(self._algorithm),
                workspace_at,
                ctypes.c_size_t(_WORKSPACE_BYTES),
                ctypes.c_void_p(stream),
            )
        )

    def _set(self, attribute: int, value: ctypes.c_int | ctypes.c_void_p) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _require(
            self._lt.cublasLtMatmulDescSetAttribute(
                self._operation, attribute, ctypes.byref(value), size
            )
        )


@cache
def wide_products(device: torch.device) -> WideProducts | None:
    """Return the products of a Hopper GPU; None elsewhere or with another cuBLASLt."""
    if device.type != "cuda" or _cuda_major() < 13:  # the algorithm was found in cuBLAS 13
        return None
    if torch.cuda.get_device_capability(device) != (9, 0):
        return None
    try:
        return WideProducts(device)
    except (OSError, RuntimeError):  # only speed is lost
        return None


def _cuda_major() -> int:
    return int((torch.version.cuda or "0").split(".")[0])


def _require(status: int) -> None:
    if status:
        msg = f"cuBLASLt: status {status}"
        raise RuntimeError(msg)

"""Products by cuBLASLt itself, for bench_steps.py: epilogues without a bias, and every algorithm."""

from __future__ import annotations

import ctypes

import torch

EPILOGUES = {"": 1, "relu": 2, "bias": 4, "relu, bias": 6, "gelu": 32, "gelu, bias": 36}
_TYPES = {torch.bfloat16: 14, torch.float16: 2}
_WORKSPACE_BYTES = 32 << 20


class _Result(ctypes.Structure):
    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class Product:
    """``epilogue(x W^T + b)`` into one output, by any of the algorithms that cuBLASLt proposes."""

    def __init__(self, x_TD, weight_FD, bias_F=None, *, epilogue=""):
        self._lt = lt = ctypes.CDLL("libcublasLt.so.13")
        self._x, self._w, self._bias = x_TD, weight_FD, bias_F
        (tokens, width), rows = x_TD.shape, len(weight_FD)
        self.out = x_TD.new_empty(tokens, rows)
        self._workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=x_TD.device)
        self._handle, self._desc, preference = (ctypes.c_void_p() for _ in range(3))
        self._check(lt.cublasLtCreate(ctypes.byref(self._handle)))
        self._check(lt.cublasLtMatmulDescCreate(ctypes.byref(self._desc), 68, 0))  # fp32 sums
        self._set(3, ctypes.c_int(1))  # weights transposed
        self._set(7, ctypes.c_int(EPILOGUES[epilogue]))
        if bias_F is not None:
            self._set(8, ctypes.c_void_p(bias_F.data_ptr()))
        half = _TYPES[x_TD.dtype]
        self._layouts = [
            self._layout(half, *s) for s in ((width, rows), (width, tokens), (rows, tokens))
        ]
        self._check(lt.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
        most = ctypes.c_size_t(_WORKSPACE_BYTES)
        self._check(lt.cublasLtMatmulPreferenceSetAttribute(preference, 1, ctypes.byref(most), 8))
        results, count = (_Result * 8)(), ctypes.c_int()
        a, b, c = self._layouts
        self._check(
            lt.cublasLtMatmulAlgoGetHeuristic(
                self._handle, self._desc, a, b, c, c, preference, 8, results, ctypes.byref(count)
            )
        )
        self.algorithms = list(results[: count.value])

    def _check(self, status):
        if status:
            msg = f"cuBLASLt: status {status}"
            raise RuntimeError(msg)

    def _set(self, attribute, value):
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._check(
            self._lt.cublasLtMatmulDescSetAttribute(
                self._desc, attribute, ctypes.byref(value), size
            )
        )

    def _layout(self, kind, rows, columns):
        layout = ctypes.c_void_p()
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        self._check(self._lt.cublasLtMatrixLayoutCreate(ctypes.byref(layout), kind, *sizes))
        return layout

    def __call__(self, algorithm):
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        a, b, c = self._layouts
        pointers = [
            ctypes.c_void_p(t.data_ptr()) for t in (self._w, self._x, self.out, self._workspace)
        ]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._check(
            self._lt.cublasLtMatmul(
                self._handle, self._desc, ctypes.byref(one), pointers[0], a, pointers[1], b,
                ctypes.byref(zero), pointers[2], c, pointers[2], c, ctypes.byref(algorithm.algo),
                pointers[3], ctypes.c_size_t(_WORKSPACE_BYTES), stream,
            )
        )  # fmt: skip
        return self.out

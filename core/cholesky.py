"""Cholesky factors of large matrices, in place, while other threads run.

The functions of ``scipy.linalg`` hold the lock of the interpreter, so a factorisation in one thread
stops all others; the folds of a fit would not run side by side. These call the same routines of
LAPACK, which ``scipy.linalg.cython_lapack`` exports for other languages, through ctypes, which
releases the lock. The routines are reentrant; every thread has a matrix of its own.

Matrices are square, float64 and in the order of LAPACK (Fortran); only lower triangles are used.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from abag.core.arrays import Floats

if TYPE_CHECKING:
    from collections.abc import Callable


LOWER, NOT_UNIT = b"L", b"N"


def factorise(matrix: Floats) -> None:
    """Overwrite the lower triangle of a positive definite matrix by that of its Cholesky factor.

    Raises
    ------
    numpy.linalg.LinAlgError
        If the matrix is not positive definite.
    """
    if _call("dpotrf", LOWER, len(matrix), matrix, len(matrix)):
        msg = "the matrix is not positive definite"
        raise np.linalg.LinAlgError(msg)


def solve(lower: Floats, targets: Floats) -> Floats:
    """Solve for one or several right-hand sides, of shape (N,) or (N, K), with a factor."""
    solved = np.array(targets, np.float64, order="F")
    columns = 1 if solved.ndim == 1 else solved.shape[1]
    _call("dpotrs", LOWER, len(lower), columns, lower, len(lower), solved, len(lower))
    return solved


def solve_triangle(lower: Floats, targets: Floats, *, transposed: bool = False) -> Floats:
    """Solve for right-hand sides, of shape (N, K), with the factor alone, or with its transpose."""
    solved, order = np.array(targets, np.float64, order="F"), b"T" if transposed else b"N"
    rows, columns = solved.shape
    _call("dtrtrs", LOWER, order, NOT_UNIT, rows, columns, lower, rows, solved, rows)
    return solved


def invert(lower: Floats) -> None:
    """Overwrite a factor by the lower triangle of the inverse of its matrix."""
    _call("dpotri", LOWER, len(lower), lower, len(lower))


def invert_triangle(lower: Floats) -> None:
    """Overwrite the lower triangle of a factor by its inverse."""
    _call("dtrtri", LOWER, NOT_UNIT, len(lower), lower, len(lower))


def _call(name: str, *arguments: bytes | int | Floats) -> int:
    """Call a routine of LAPACK; return its last argument, ``info``."""
    info = ctypes.c_int64()
    _routine(name)(*map(_pointer, arguments), ctypes.byref(info))
    return info.value


def _pointer(argument: bytes | int | Floats) -> object:
    if isinstance(argument, int):
        # LAPACK's integers have 32 or 64 bits; the first half of this one serves the smaller.
        return ctypes.byref(ctypes.c_int64(argument))
    if isinstance(argument, bytes):
        return argument
    if not (argument.flags.f_contiguous and argument.flags.writeable):
        msg = "expected a matrix in the order of Fortran that may be overwritten"
        raise ValueError(msg)
    if argument.dtype != np.float64:
        msg = f"expected a matrix of float64, not {argument.dtype}"
        raise ValueError(msg)
    return argument.ctypes.data


@cache
def _routine(name: str) -> Callable[..., None]:
    """Return a routine that releases the lock of the interpreter."""
    from scipy.linalg import cython_lapack  # here: most commands need no LAPACK

    capsule, python = cython_lapack.__pyx_capi__[name], ctypes.pythonapi
    python.PyCapsule_GetName.restype = ctypes.c_char_p
    python.PyCapsule_GetName.argtypes = [ctypes.py_object]
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = python.PyCapsule_GetPointer(capsule, python.PyCapsule_GetName(capsule))
    signature = python.PyCapsule_GetName(capsule).decode()
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (signature.count(",") + 1))(address)

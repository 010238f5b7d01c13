"""aclnn operators through their C interface: two phases, refusals in phase 1, capture and replay."""

import ctypes as c

import numpy as np
import pytest
import torch  # noqa: F401  (libtorch, which libopapi.so uses, must be in the process)

import cann_host

FLOAT, INT64, DOUBLE, BF16 = 0, 9, 11, 27
PARAM_NULLPTR, PARAM_INVALID, INNER = 161001, 161002, 561000
DEVICE_TO_HOST, HOST_TO_DEVICE = 2, 1


@pytest.fixture(scope="module")
def acl() -> c.CDLL:
    c.CDLL(str(cann_host.root() / "lib64/libascendcl.so"), mode=c.RTLD_GLOBAL)
    lib = c.CDLL(str(cann_host.root() / "lib64/libopapi.so"), mode=c.RTLD_GLOBAL)
    lib.aclGetRecentErrMsg.restype = c.c_char_p
    for name in ("aclCreateTensor", "aclCreateScalar"):
        getattr(lib, name).restype = c.c_void_p
    assert lib.aclrtSetDevice(0) == 0
    return lib


class Tensor:
    """Device memory with a descriptor."""

    def __init__(self, acl: c.CDLL, array: np.ndarray, dtype: int = FLOAT) -> None:
        self.acl, self.array = acl, np.ascontiguousarray(array)
        self.memory = c.c_void_p()
        assert acl.aclrtMalloc(c.byref(self.memory), c.c_size_t(max(self.array.nbytes, 1)), 0) == 0
        self.upload(self.array)
        sizes = (c.c_int64 * array.ndim)(*array.shape)
        rank = c.c_uint64(array.ndim)
        self.handle = c.c_void_p(
            acl.aclCreateTensor(sizes, rank, dtype, None, c.c_int64(0), 2, sizes, rank, self.memory)
        )

    def upload(self, array: np.ndarray) -> None:
        size = c.c_size_t(array.nbytes)
        assert self.acl.aclrtMemcpy(self.memory, size, array.ctypes.data_as(c.c_void_p), size, HOST_TO_DEVICE) == 0

    def download(self) -> np.ndarray:
        result = np.empty_like(self.array)
        size = c.c_size_t(result.nbytes)
        assert self.acl.aclrtMemcpy(result.ctypes.data_as(c.c_void_p), size, self.memory, size, DEVICE_TO_HOST) == 0
        return result


def scalar(acl: c.CDLL, value: float) -> c.c_void_p:
    return c.c_void_p(acl.aclCreateScalar(c.byref(c.c_double(value)), DOUBLE))


def phase1(acl: c.CDLL, op: str, *args: object) -> tuple[int, c.c_uint64, c.c_void_p]:
    size, executor = c.c_uint64(), c.c_void_p()
    return getattr(acl, f"aclnn{op}GetWorkspaceSize")(*args, c.byref(size), c.byref(executor)), size, executor


def run(acl: c.CDLL, op: str, *args: object, stream: object = None) -> int:
    code, size, executor = phase1(acl, op, *args)
    return code or getattr(acl, f"aclnn{op}")(None, size, executor, stream)


def error(acl: c.CDLL) -> str:
    return acl.aclGetRecentErrMsg().decode()


def test_two_phases(acl: c.CDLL) -> None:
    a, b = (np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32) for _ in range(2))
    x, y, out = Tensor(acl, a), Tensor(acl, b), Tensor(acl, np.zeros_like(a))
    assert run(acl, "Add", x.handle, y.handle, scalar(acl, 2), out.handle) == 0
    np.testing.assert_allclose(out.download(), a + 2 * b, rtol=1e-6)


def test_descriptors_may_die_between_the_phases(acl: c.CDLL) -> None:
    a = np.arange(6, dtype=np.float32)
    x, out = Tensor(acl, a), Tensor(acl, np.zeros_like(a))
    code, size, executor = phase1(acl, "Add", x.handle, x.handle, scalar(acl, 1), out.handle)
    assert code == 0
    assert acl.aclDestroyTensor(x.handle) == 0
    assert acl.aclnnAdd(None, size, executor, None) == 0
    np.testing.assert_array_equal(out.download(), 2 * a)


def test_null_argument(acl: c.CDLL) -> None:
    x = Tensor(acl, np.zeros(3, np.float32))
    assert phase1(acl, "Add", x.handle, None, scalar(acl, 1), x.handle)[0] == PARAM_NULLPTR
    assert "aclnnAdd" in (text := error(acl))
    assert "'other' is a null pointer" in text


def test_wrong_dtype(acl: c.CDLL) -> None:
    x = Tensor(acl, np.zeros((2, 2), np.int64), INT64)
    assert phase1(acl, "Mm", x.handle, x.handle, x.handle, c.c_int8(0))[0] == PARAM_INVALID
    assert "'self' is int64; this operator takes" in error(acl)


def test_wrong_shape(acl: c.CDLL) -> None:
    x, y = Tensor(acl, np.zeros((2, 3), np.float32)), Tensor(acl, np.zeros((2, 4), np.float32))
    assert phase1(acl, "Add", x.handle, y.handle, scalar(acl, 1), x.handle)[0] == PARAM_INVALID
    assert "not the broadcast of [2, 3], [2, 4]" in error(acl)


def test_unknown_dtype(acl: c.CDLL) -> None:
    x = Tensor(acl, np.zeros(3, np.float32), dtype=99)
    assert phase1(acl, "Exp", x.handle, x.handle)[0] == PARAM_INVALID
    assert "unknown aclDataType 99" in error(acl)


def test_impossible_sizes(acl: c.CDLL) -> None:
    sizes = (c.c_int64 * 2)(-1, 4)
    bad = c.c_void_p(
        acl.aclCreateTensor(sizes, c.c_uint64(2), FLOAT, None, c.c_int64(0), 2, sizes, c.c_uint64(2), None)
    )
    assert phase1(acl, "Exp", bad, bad)[0] == PARAM_INVALID
    assert "impossible shape [-1, 4]" in error(acl)


def test_phase2_without_executor(acl: c.CDLL) -> None:
    assert acl.aclnnAdd(None, c.c_uint64(0), None, None) == PARAM_NULLPTR
    assert "phase 2 was called without an executor" in error(acl)


def test_failure_while_running_names_operator_and_shapes(acl: c.CDLL) -> None:
    x, index = Tensor(acl, np.zeros((2, 3), np.float32)), Tensor(acl, np.full((1, 1), 7, np.int64), INT64)
    out = Tensor(acl, np.zeros((1, 1), np.float32))
    assert run(acl, "Gather", x.handle, c.c_int64(0), index.handle, out.handle) == INNER
    assert "aclnnGather(float32[2, 3], int64[1, 1], float32[1, 1])" in (text := error(acl))
    assert "out of bounds" in text


def test_capture_and_replay(acl: c.CDLL) -> None:
    a = np.arange(4, dtype=np.float32)
    x, out = Tensor(acl, a), Tensor(acl, np.zeros_like(a))
    stream, model = c.c_void_p(), c.c_void_p()
    assert acl.aclrtCreateStream(c.byref(stream)) == 0
    assert acl.aclmdlRICaptureBegin(stream, 2) == 0
    assert run(acl, "Add", x.handle, x.handle, scalar(acl, 1), out.handle, stream=stream) == 0
    assert acl.aclmdlRICaptureEnd(stream, c.byref(model)) == 0
    np.testing.assert_array_equal(out.download(), np.zeros(4))
    for factor in (1, 5):
        x.upload(a * factor)
        assert acl.aclmdlRIExecuteAsync(model, stream) == 0
        assert acl.aclrtSynchronizeStream(stream) == 0
        np.testing.assert_array_equal(out.download(), 2 * factor * a)
    assert acl.aclmdlRIDestroy(model) == 0

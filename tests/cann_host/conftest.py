"""Shared by the tests of cann_host."""

import pytest


@pytest.fixture(params=["baseline", "avx2", "avx512"])
def isa(request):
    """Runs a test of the host kernels with each instruction set that the machine has."""
    import kernels_library  # not above: it loads the kernels, which other tests do not need

    available = kernels_library.limit_isa(request.param)
    try:
        if not available:
            pytest.skip(f"this machine has no {request.param}")
        yield request.param
    finally:
        kernels_library.limit_isa("avx512")

"""The namespace, for one module's tests after the other."""

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.kubernetes.kubectl import NAMESPACE, Refused, kubectl

KEEP = os.environ.get("DUETIME_TEST_KEEP") == "1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def namespace() -> AsyncIterator[None]:
    """Not there before, nor afterwards."""
    with pytest.raises(Refused, match="NotFound"):
        await kubectl("get", "namespace", NAMESPACE)
    try:
        yield
    finally:
        if not KEEP:
            await kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_s=300)
            await kubectl("delete", "customresourcedefinition", "-l", "duetime.io/test=true", timeout_s=60)

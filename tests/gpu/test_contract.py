"""The cases of tests/contract, the same functions, against the GPU server: what the embedded server promises must hold here."""

from __future__ import annotations

import pytest

from tests.contract import test_completions as completions

pytestmark = pytest.mark.gpu

globals().update({name: case for name, case in vars(completions).items() if name.startswith("test_")})

"""The cases of tests/contract, the same functions, against the servers of this suite: what the embedded server promises must hold here."""

from __future__ import annotations

import inspect

import pytest

from tests.contract import test_chat, test_completions, test_dialects

pytestmark = pytest.mark.gpu

# Cases of simulated servers and their faults are left out: they ask for those by these names.
SIMULATED = {"simulated", "guise", "embedded"}

# Recordings are of one version of vLLM; another one has other fields.
RECORDED = "recorded"

for module, cases in (("completions", test_completions), ("chat", test_chat), ("dialects", test_dialects)):
    for name, case in vars(cases).items():
        if name.startswith("test_") and RECORDED not in name and not SIMULATED & {*inspect.signature(case).parameters}:
            # Two modules have cases of the same name.
            globals()[f"test_{module}_{name.removeprefix('test_')}"] = case

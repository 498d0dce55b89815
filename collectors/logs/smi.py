"""Memory tables of ``rocm-smi``, ``amd-smi`` and ``nvidia-smi``, alone or inside a log."""

from __future__ import annotations

import re

from collectors.logs.reading import LineReader
from collectors.logs.run_log import GIB, RunLog
from collectors.text import Line

MIB = 2**20


def _see(run: RunLog, device: int, used_gib: float, total_gib: float = 0.0) -> None:
    """Keeps what a device had in use; its number counts the devices of the node."""
    run.see_memory("device", -1, used_gib)
    run.capacity_gib = max(run.capacity_gib, total_gib)
    run.devices_per_node = max(run.devices_per_node, min(device + 1, 64))


class RocmSmi(LineReader):
    """``rocm-smi``: the concise table (VRAM in percent) and ``--showmeminfo vram`` (bytes), as
    text, CSV or JSON; ``amd-smi metric --mem-usage`` (MB)."""

    keywords = ("VRAM", "%", "card")

    _bytes = re.compile(
        r"(?:(?:GPU\[|card)(\d{1,3})[^V]{0,40})?VRAM Total (Used )?Memory \(B\)\"?"
        r"\s{0,4}: ?\"?(\d{1,15})"
    )
    _csv = re.compile(r"^\s{0,8}card(\d{1,3}),(\d{6,15}),(\d{1,15})")
    _concise = re.compile(r"^\s{0,8}(\d{1,3})\s.{10,300}?\s(\d{1,3})%\s{1,8}(\d{1,3})%\s{0,8}$")
    _amd_smi = re.compile(r"(USED|TOTAL)_VRAM: (\d{1,9}) MB")

    def read(self, line: Line, run: RunLog) -> None:
        text = line.text[:4096]
        if "VRAM%" in text:
            run.fact("rocm-smi table", "VRAM%")
        for device, used, size in self._bytes.findall(text):
            self._of_bytes(int(device or 0), bool(used), int(size), run)
        if match := self._csv.match(text):
            total, used = int(match[2]), int(match[3])
            _see(run, int(match[1]), used / GIB, total / GIB)
        elif "rocm-smi table" in run.facts and (match := self._concise.match(text)):
            fraction = int(match[2]) / 100
            if fraction <= 1:
                run.see_memory("device_fraction", -1, fraction)
                run.devices_per_node = max(run.devices_per_node, min(int(match[1]) + 1, 64))
        for kind, size in self._amd_smi.findall(text):
            self._of_bytes(0, kind == "USED", int(size) * MIB, run)

    def _of_bytes(self, device: int, used: bool, size: int, run: RunLog) -> None:
        if used:
            _see(run, device, size / GIB)
        else:
            run.capacity_gib = max(run.capacity_gib, size / GIB)


class NvidiaSmi(LineReader):
    """``nvidia-smi``: the table, ``--query-gpu=memory.used,memory.total`` as CSV, and ``-q``."""

    keywords = ("MiB",)

    _table = re.compile(r"(\d{1,8})MiB\s{0,4}/\s{0,4}(\d{1,8})MiB")
    _csv = re.compile(r"(?:^|,)\s{0,4}(\d{1,8}) MiB, {0,4}(\d{1,8}) MiB")
    _index = re.compile(r"^\s{0,4}(\d{1,3}),")
    _query = re.compile(r"^\s{2,16}(Total|Used)\s{2,40}: (\d{1,8}) MiB")

    def read(self, line: Line, run: RunLog) -> None:
        text = line.text[:2048]
        for used, total in self._table.findall(text):
            run.see_memory("device", -1, int(used) * MIB / GIB)
            run.capacity_gib = max(run.capacity_gib, int(total) * MIB / GIB)
        if match := self._csv.search(text):
            # Used is never above the total, whatever the order of the query.
            used, total = sorted((int(match[1]), int(match[2])))
            index = self._index.match(text)
            _see(run, int(index[1]) if index else 0, used * MIB / GIB, total * MIB / GIB)
        if match := self._query.match(text):
            size = int(match[2]) * MIB / GIB
            if match[1] == "Total":
                run.capacity_gib = max(run.capacity_gib, size)
            else:
                run.see_memory("device", -1, size)


class NvidiaSmiNames(LineReader):
    """The line of an ``nvidia-smi`` table that names a device: its number counts the devices."""

    keywords = ("NVIDIA", "Tesla")

    _name = re.compile(r"^\s{0,4}\|\s{1,4}(\d{1,3})\s{1,4}(?:NVIDIA|Tesla)")

    def read(self, line: Line, run: RunLog) -> None:
        if match := self._name.match(line.text):
            run.devices_per_node = max(run.devices_per_node, min(int(match[1]) + 1, 64))

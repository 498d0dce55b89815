"""LineReader: what recognises one kind of line; the readers that any framework's log shares."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import ClassVar

from collectors.logs.run_log import RunLog
from collectors.text import Line, first_number, parsed_number


class LineReader(ABC):
    """Reads one kind of line into a RunLog.

    ``keywords`` are cheap: ``read`` is called only for a line that holds one of them. Lines come
    from strangers: ``read`` bounds what it keeps and what its patterns may try.
    """

    keywords: ClassVar[tuple[str, ...]]

    @abstractmethod
    def read(self, line: Line, run: RunLog) -> None:
        """Takes what the line says into ``run``; a line that says nothing is no error."""


class Arguments(LineReader):
    """The argument dump of Megatron and its descendants: ``name .......... value``.

    A name of 48 letters or more has no dots, only two blanks (megatron/training/arguments.py).
    """

    keywords = (" arguments ---", "end of arguments", " ..", "  ")

    _longest_name = 90
    _without_dots = 40

    def read(self, line: Line, run: RunLog) -> None:
        text = line.text[:8192]
        if "end of arguments" in text:
            run.in_arguments = False
        elif " arguments ---" in text:
            run.in_arguments = True
        elif run.in_arguments:
            before, dots, value = text.partition(" ..")
            if not dots:
                before, _, value = text.strip().partition("  ")
            name = before.rpartition(" ")[2]
            long_enough = bool(dots) or len(name) >= self._without_dots
            if name.isidentifier() and long_enough and len(name) <= self._longest_name:
                run.argument(name, value.lstrip(".").strip())


class CommandLine(LineReader):
    """The launch command, where the log shows it: the config of a log without argument dump."""

    keywords = ("--num-layers",)

    def read(self, line: Line, run: RunLog) -> None:
        start = line.text.find(" --")
        if start >= 0 and "--hidden-size" in line.text:
            run.fact("command", line.text[start:].strip()[:16384])


_RECORD = re.compile(r"(?<![a-z])iteration\s{1,24}(\d{1,12})\s{0,4}/\s{0,24}(?:\d{1,12}|infinity)")


class RecordReader(LineReader):
    """Reads lines that hold one iteration each; the same one of another rank counts once."""

    def __init__(self) -> None:
        self._recent: list[float] = []

    def keep(self, number: float, values: dict[str, float], run: RunLog) -> None:
        """Keeps an iteration unless it was seen among the last ones."""
        if number in self._recent and len(run.iterations):
            run.note("iterations that several ranks printed were taken once")
            return
        self._recent = [*self._recent[-63:], number] if len(run.iterations) else [number]
        if not run.iterations.add(number, values):
            run.note("the log has more iterations than are kept; the first ones count")


class IterationLines(RecordReader):
    """``iteration 3/ 100 | elapsed time per iteration (ms): 512.3 | ... |`` of the Megatron family.

    A field counts only where the bar behind it is there: what was cut says nothing. Two records
    that were printed into one line are two.
    """

    keywords = ("iteration",)

    fields: ClassVar[dict[str, tuple[str, float]]] = {
        "elapsed time per iteration (ms)": ("step_time_s", 1e-3),
        "elapsed time per iteration (s)": ("step_time_s", 1.0),
        "throughput per gpu (tflop/s/gpu)": ("tflops", 1.0),
        "compute per gpu (tflop/s/gpu)": ("tflops", 1.0),
        "approx flops per gpu": ("tflops", 1.0),
        "tflops": ("tflops", 1.0),
        "tokens per gpu (tokens/s/gpu)": ("tokens_per_s_per_gpu", 1.0),
        "tokens/s/gpu inst/harmonic mean": ("tokens_per_s_per_gpu", 1.0),
        "tokens per gpu per second (tgs)": ("tokens_per_s_per_gpu", 1.0),
        "samples per second": ("samples_per_s", 1.0),
        "samples/sec": ("samples_per_s", 1.0),
        "global batch size": ("global_batch_size", 1.0),
    }
    memory_fields = (
        "hip mem usage/free/total/usage_ratio",
        "rocm mem usage/free/total/usage_ratio",
        "rocm max mem usage/usage_ratio",
    )
    _sizes = re.compile(r"(\d[\d.,]{0,20}) ?Gi?B")

    def read(self, line: Line, run: RunLog) -> None:
        starts = list(_RECORD.finditer(line.text))
        for index, match in enumerate(starts):
            begin = 0 if index == 0 else match.start()
            end = starts[index + 1].start() if index + 1 < len(starts) else len(line.text)
            self._record(float(match[1]), line.text[begin:end], line, run)

    def _record(self, number: float, text: str, line: Line, run: RunLog) -> None:
        values: dict[str, float] = {}
        for part in text.split("|")[:-1]:
            name, colon, value = part.strip().rpartition(": ")
            if not colon:
                continue
            name = " ".join(name.lower().split())
            known = next((k for k in self.memory_fields if name.endswith(k)), None)
            if known:
                self._memory(known, value, line, run)
            elif (entry := self._field(name)) and (parsed := first_number(value)) is not None:
                values.setdefault(entry[0], parsed * entry[1])
        if not values.get("step_time_s", 0.0) > 0:
            run.note("iteration lines that were cut before their time were left out")
            return
        self.keep(number, values, run)

    def _field(self, name: str) -> tuple[str, float] | None:
        """What a field means; words of a launcher's prefix may stand before its name."""
        if name in self.fields:
            return self.fields[name]
        return next((v for k, v in self.fields.items() if name.endswith(" " + k)), None)

    def _memory(self, name: str, value: str, line: Line, run: RunLog) -> None:
        """Primus: used/free/total of the device in GiB (printed as GB: 1024**3)."""
        sizes = [parsed_number(size) for size in self._sizes.findall(value)]
        if not sizes or sizes[0] is None:
            return
        run.see_memory("device", line.rank, sizes[0])
        run.fact("primus memory", name)
        if len(sizes) >= 3 and sizes[2]:
            run.capacity_gib = max(run.capacity_gib, sizes[2])


class MemoryLines(LineReader):
    """``memory (MB) | allocated: ... | max allocated: ... | max reserved: ...`` of Megatron, and
    ``Max_MA 21.37 GB ... Max_CA 29 GB`` of DeepSpeed: counters of the caching allocator."""

    keywords = ("memory (", "Max_MA")

    _unit = re.compile(r"memory \(([MG])i?B\)")
    _rank = re.compile(r"\[Rank (\d{1,7})\]", re.IGNORECASE)
    _deepspeed = re.compile(r"Max_(MA|CA) (\d[\d.,]{0,20}) GB")

    def read(self, line: Line, run: RunLog) -> None:
        for counter, size in self._deepspeed.findall(line.text):
            if (gib := parsed_number(size)) is not None:
                run.see_memory("allocated" if counter == "MA" else "reserved", line.rank, gib)
        places = list(self._unit.finditer(line.text))
        for index, match in enumerate(places):
            begin = places[index - 1].end() if index else 0
            end = places[index + 1].start() if index + 1 < len(places) else len(line.text)
            ranks = self._rank.findall(line.text[begin : match.start()])
            rank = int(ranks[-1]) if ranks else line.rank
            # Megatron divides bytes by 1024 twice (megatron/training/utils.py report_memory).
            gib = 1.0 if match[1] == "G" else 1 / 1024
            self._fields(line.text[match.end() : end], rank, gib, run)

    def _fields(self, text: str, rank: int, gib: float, run: RunLog) -> None:
        for part in text.split("|"):
            name, colon, value = part.strip().partition(": ")
            name = name.lower().replace("-", " ")
            if colon and name.startswith(("max", "mem max")):
                counter = next((c for c in ("allocated", "reserved") if c in name), None)
                size = first_number(value)
                if counter and size is not None:
                    run.see_memory(counter, rank, size * gib)


class Facts(LineReader):
    """Single facts: padded vocabulary, world size, versions, date, GPU name."""

    keywords = (
        *("padded vocab", "world size", "torch version", "deepspeed info", "NVIDIA ", "nstinct "),
        *("INSTINCT ", "datetime: ", "] [INFO]", "][INFO", "[rank-", "Card series", "Card Series"),
        *("expandable_segments:True", "FP8", "iteration"),
    )

    _patterns = (
        ("vocab_size", re.compile(r"padded vocab \(size: (\d{1,9})\)")),
        ("padded_vocab_size", re.compile(r"padded vocab .{0,80}\(new size: (\d{1,9})\)")),
        ("world_size", re.compile(r"using world size: (\d{1,7})")),
        ("world_size", re.compile(r"\[rank-\d{1,7}/(\d{1,7})\]")),
        ("primus", re.compile(r"\[(rank-\d{1,7}/\d{1,7})\]")),
        ("torch", re.compile(r"torch version \.{1,60} (\S{1,40})")),
        ("deepspeed", re.compile(r"deepspeed info \.{1,60} ([^\s,]{1,40})")),
        ("date", re.compile(r"(?:\[|datetime: )(20\d\d-[01]\d-[0-3]\d)")),
        ("compact_date", re.compile(r"\[(20\d{6}) \d\d:\d\d:\d\d\]")),
        (
            "gpu",
            re.compile(
                r"(?:NVIDIA|AMD INSTINCT|Instinct) ((?:MI|A|H|B|GB|L|V)\d{2,3}[\w-]{0,24}"
                r"(?: (?:\d{2,3}GB|PCIe|NVL))?)"
            ),
        ),
        ("expandable_segments", re.compile(r"(expandable_segments:True)")),
    )

    def read(self, line: Line, run: RunLog) -> None:
        text = line.text[:4096]
        if "avoid fragmentation" in line.text:
            return
        for name, pattern in self._patterns:
            if name not in run.facts and (match := pattern.search(text)):
                run.fact(name, match[1])

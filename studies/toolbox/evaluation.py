"""One bundle, judged: proof that it changed execution, correctness, speed; the first no ends it.

Every failure of a bundle becomes a verdict, so that the other bundles go on. Only failures of the
baseline itself end a study.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from specs.errors import InfeasibleError, InputError
from studies.progress import Tell, untold
from studies.toolbox.bundle import BASELINE, Bundle
from studies.toolbox.correctness import (
    LOSSY_REFERENCE,
    Difference,
    Differences,
    Gate,
    tier1,
    tier2,
    worst_of,
)
from studies.toolbox.decision import Rule
from studies.toolbox.measurement import Log, Measured, Series
from studies.toolbox.process import Launch, Worker, WorkerError
from studies.toolbox.roofline import GUARD, Bound, Peaks, bound, catalog_peaks
from studies.toolbox.runtime import Host, Observation
from studies.toolbox.tools import TOOLBOX
from studies.toolbox.verdicts import Outcome, Verdict
from studies.toolbox.workload import Generation


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What is known of the model as it comes: facts, how it executes, where its time goes."""

    host: Host
    shape: dict[str, Any]
    versions: dict[str, str]
    observation: Observation
    profile: dict[str, Any]
    seconds: dict[str, float]
    peaks: Peaks
    bound: Bound

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return asdict(self) | {"observation": self.observation.as_json()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Baseline:
        """What ``as_json`` wrote."""
        return cls(
            **{
                **content,
                "host": Host(**content["host"]),
                "observation": Observation.from_json(content["observation"]),
                "peaks": Peaks(**content["peaks"]),
                "bound": Bound(**content["bound"]),
            }
        )


@dataclass
class Evaluator:
    """Evaluates bundles of one model on one machine."""

    launch: Launch
    rule: Rule
    log: Log
    lossy_budget: float | None = None
    metric: str = "auto"
    tell: Tell = untold
    baseline: Baseline | None = None
    _series: dict[Bundle, Series] = field(default_factory=dict)
    _probed: dict[Bundle, dict[str, Any]] = field(default_factory=dict)
    _found: dict[tuple[Bundle, str], Differences] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reference = self.launch.folder / "reference"
        self.work = Generation(**self.launch.work)

    def prepare(self) -> Baseline:
        """Loads and profiles the baseline and keeps the float32 reference of all checks.

        Raises:
            InputError: the model cannot be loaded or is no causal language model.
            InfeasibleError: it does not fit or does not run.
        """
        self.tell("profiling the baseline")
        try:
            self.baseline = self._baseline()
            seconds = self.baseline.seconds["wall_s"]
            self.tell(f"  {self.work.useful_tokens / seconds:,.1f} tokens/s")
            self.tell("computing the float32 reference of all checks")
            self._keep_reference(self.baseline.host)
        except WorkerError as error:
            if error.kind == "input":
                raise InputError(str(error)) from None
            raise InfeasibleError(f"the baseline does not run: {error}") from None
        return self.baseline

    def close(self) -> None:
        """Ends every process."""
        for series in self._series.values():
            series.close()
        self._series.clear()

    def evaluate(self, bundle: Bundle, base: Bundle = BASELINE) -> Outcome:
        """The verdict on a bundle against a base."""
        self.tell(f"measuring {bundle}" + (f" over {base}" if len(base) else ""))
        started = time.perf_counter()
        details: dict[str, Any] = {}
        try:
            outcome = self._judged(bundle, base, details)
        except WorkerError as error:
            memory = error.kind == "out_of_memory"
            outcome = Outcome(
                bundle=bundle,
                base=base,
                verdict=Verdict.OUT_OF_MEMORY if memory else Verdict.FAILED,
                sentence=str(error),
                details=details | {"failure": error.kind},
            )
        outcome = replace(outcome, cost_s=time.perf_counter() - started)
        self.log("outcome", outcome.as_json())
        self.tell(f"  {outcome.verdict.value} after {outcome.cost_s:,.0f} s: {outcome.sentence}")
        return outcome

    def _judged(self, bundle: Bundle, base: Bundle, details: dict[str, Any]) -> Outcome:
        """Proof, correctness, speed; ``details`` fills up on the way."""
        self._probe(bundle, details)
        if details["idle"]:
            return Outcome(
                bundle=bundle,
                base=base,
                verdict=Verdict.NO_EFFECT,
                sentence=" ".join(
                    f"{tool}={bundle.get(tool)} changed nothing: "
                    f"{details['proofs'][tool]['sentence']}."
                    for tool in details["idle"]
                ),
                details=details,
            )
        gate = self._gate(bundle)
        details["correctness"] = asdict(gate)
        if not gate.passed:
            return Outcome(
                bundle=bundle,
                base=base,
                verdict=Verdict.WRONG,
                sentence=gate.sentence,
                correctness=gate.score,
                details=details,
            )
        if base not in self._series:
            self.close()  # one base at a time: three copies of a model are enough for a device
            self._series[base] = Series(
                self.launch, base, self.rule, self.log, self.metric, self.launch.seed
            )
        measured = self._series[base].compare(bundle)
        return self._timed(bundle, base, gate, measured, details)

    def _probe(self, bundle: Bundle, details: dict[str, Any]) -> None:
        """Runs the bundle once outside any timing: which tools changed nothing, what differs.

        A probe is not repeated: a bundle changes what it changes, against whatever base.
        """
        if bundle in self._probed:
            details |= self._probed[bundle]
            return
        with Worker(self.launch, bundle) as worker:
            details["warm_up"] = worker.ask("warm_up")
            seen = Observation.from_json(worker.ask("observe"))
            details["observation"] = seen.as_json()
            proofs = {
                tool: TOOLBOX[tool].proof(setting, self._known().observation, seen)
                for tool, setting in bundle
            }
            details["proofs"] = {tool: asdict(proof) for tool, proof in proofs.items()}
            details["idle"] = [tool for tool, proof in proofs.items() if not proof.changed]
            if not details["idle"]:
                self._found[bundle, self.launch.dtype] = self._differences(worker)
        self._probed[bundle] = dict(details)

    def _gate(self, bundle: Bundle) -> Gate:
        """Both tiers of correctness."""
        known = self._known()
        found = self._found[bundle, self.launch.dtype]
        cast = bundle.get("dtype_cast")
        dtype = known.host.dtype if cast == "off" else cast
        lossy = [tool for tool, setting in bundle if not TOOLBOX[tool].lossless(setting)]
        twin = Bundle(
            tuple(
                (tool, setting)
                for tool, setting in bundle
                if TOOLBOX[tool].lossless(setting) and TOOLBOX[tool].has_twin(setting, known.host)
            )
        )
        gates = []
        if len(twin):
            gates.append(tier1(self._twin(twin, bundle, dtype)))
        if lossy:
            assert self.lossy_budget is not None
            gates.append(tier2(found, self._budget(LOSSY_REFERENCE), self.lossy_budget))
        elif dtype != "float32":
            gates.append(tier2(found, self._budget(dtype)))
        elif not gates:
            gates.append(tier1(found))
        return worst_of(gates)

    def _twin(self, twin: Bundle, bundle: Bundle, dtype: str) -> Differences:
        """Differences of the lossless tools in float32."""
        if twin == bundle and dtype == "float32":
            return self._found[bundle, self.launch.dtype]
        key = (twin, "float32")
        if key not in self._found:
            with Worker(self.launch, twin, "float32") as worker:
                self._found[key] = self._differences(worker)
        return self._found[key]

    def _budget(self, dtype: str) -> Differences:
        """Differences of the plain model in a format: what its rounding costs."""
        key = (_plain(self._known().host), dtype)
        if key not in self._found:
            with Worker(self.launch, key[0], dtype) as worker:
                self._found[key] = self._differences(worker)
            self.log(
                "rounding budget",
                {"dtype": dtype} | {n: asdict(d) for n, d in self._found[key].items()},
            )
        return self._found[key]

    def _differences(self, worker: Worker) -> Differences:
        found = worker.ask("check", folder=str(self._reference))
        return {name: Difference(**item) for name, item in found.items()}

    def _timed(
        self, bundle: Bundle, base: Bundle, gate: Gate, measured: Measured, details: dict[str, Any]
    ) -> Outcome:
        """The outcome of a measurement."""
        judgement, useful = measured.judgement, self.work.useful_tokens
        verdict = judgement.verdict
        assert verdict is not None
        speed = measured.tokens_per_s("candidate", useful)
        base_speed = measured.tokens_per_s("base", useful)
        details["measurement"] = {
            "metric": measured.metric,
            "blocks": len(measured.blocks),
            "pairs": len(measured.blocks) * self.rule.pairs,
            "control": judgement.control,
            "control_half_width": judgement.control_half_width,
            "seconds": measured.seconds,
            "base_tokens_per_s": base_speed,
            "prefill_ratio": _part_ratio(measured, "prefill"),
            "decode_ratio": _part_ratio(measured, "decode"),
            "cost_s": measured.cost_s,
        }
        details["compile"] = self._break_even(bundle, details, speed, base_speed)
        sentence = sentence_of(measured, self.rule)
        limit = self._limit(details)
        if measured.recompiled:
            verdict = Verdict.FAILED
            sentence = f"{measured.recompiled} graphs were compiled while it was timed."
        elif self._known().peaks.guaranteed and speed > GUARD * useful / limit.run_s:
            verdict = Verdict.FAILED
            sentence = (
                f"{speed:,.0f} tokens/s is beyond what the hardware allows: not measured right."
            )
        return Outcome(
            bundle=bundle,
            base=base,
            verdict=verdict,
            sentence=sentence,
            log_ratio=judgement.estimate.log_ratio,
            standard_error=judgement.estimate.standard_error,
            lower=judgement.lower,
            upper=judgement.upper,
            tokens_per_s=speed,
            correctness=gate.score,
            details=details,
        )

    def _break_even(
        self, bundle: Bundle, details: Mapping[str, Any], speed: float, base_speed: float
    ) -> dict[str, float | None]:
        """Seconds of compiling or tuning, and tokens after which they are won back."""
        if not any(TOOLBOX[tool].prepares for tool, _ in bundle):
            return {}
        seconds = details["warm_up"]["compile_s"]
        saved = 1 / base_speed - 1 / speed
        return {"compile_s": seconds, "break_even_tokens": seconds / saved if saved > 0 else None}

    def _limit(self, details: Mapping[str, Any]) -> Bound:
        """The roofline bound of the weights as this bundle holds them."""
        seen, known = details["observation"], self._known()
        sizes = seen["parameter_bytes"]
        dtype = max(
            (name for name in sizes if name in ("float32", "bfloat16", "float16")), key=sizes.get
        )
        held = "int8" if seen["int8_layers"] else dtype
        peaks = Peaks(
            known.peaks.bytes_per_s,
            {dtype: known.peaks.flops.get(held, max(known.peaks.flops.values()))},
            known.peaks.source,
            known.peaks.guaranteed,
        )
        return bound(known.shape, sum(sizes.values()), dtype, self.work, peaks)

    def _baseline(self) -> Baseline:
        """Facts, evidence, profile and roofline of the model as it comes."""
        with Worker(self.launch, BASELINE) as worker:
            facts = worker.facts
            host = Host(**facts["host"])
            worker.ask("warm_up")
            runs = [worker.ask("run") for _ in range(3)]
            seen = Observation.from_json(worker.ask("observe"))
            peaks = self._peaks(worker, host, seen)
            profile = worker.ask("profile")
        middle = sorted(runs, key=lambda run: float(run["wall_s"]))[1]
        weights = sum(seen.parameter_bytes.values())
        baseline = Baseline(
            host=host,
            shape=facts["shape"],
            versions=facts["versions"],
            observation=seen,
            profile=profile,
            seconds={name: value for name, value in middle.items() if name.endswith("_s")},
            peaks=peaks,
            bound=bound(facts["shape"], weights, host.dtype, self.work, peaks),
        )
        self.log("baseline", baseline.as_json() | {"runs": runs})
        return baseline

    def _peaks(self, worker: Worker, host: Host, seen: Observation) -> Peaks:
        """From the catalog; measured on a CPU and on a GPU that the catalog does not know."""
        peaks = catalog_peaks(host.gpu) if host.gpu else None
        if peaks is None:
            found = worker.ask("peaks", working_bytes=sum(seen.parameter_bytes.values()))
            peaks = Peaks(found["bytes_per_s"], found["flops"], "measured by this process", False)
        return peaks

    def _keep_reference(self, host: Host) -> None:
        """Logits of the plain model in float32."""
        with Worker(self.launch, _plain(host), "float32") as worker:
            worker.ask("write_reference", folder=str(self._reference))

    def _known(self) -> Baseline:
        assert self.baseline is not None, "prepare() comes first"
        return self.baseline


def _plain(host: Host) -> Bundle:
    """The model without any fused kernel: attention spelled out."""
    return Bundle.of({"sdpa_attention": "eager"}) if host.attention else BASELINE


def _part_ratio(measured: Measured, part: str) -> float:
    """Ratio of a phase, base over candidate; 1.1 is 10% faster."""
    name = f"{part}_{measured.metric}"
    return measured.seconds["base"][name] / measured.seconds["candidate"][name]


def sentence_of(measured: Measured, rule: Rule) -> str:
    """What a measurement says."""
    judgement = measured.judgement
    pairs = len(measured.blocks) * rule.pairs
    found = f"{judgement.ratio:.3f} times as fast after {pairs} pairs"
    control = f"two copies of the base differ by {abs(judgement.control - 1):.1%}"
    if judgement.verdict is Verdict.KEEP:
        return f"{found}, at least {judgement.lower:.3f}; {control}."
    if judgement.verdict is Verdict.DROP:
        return f"{found}, at most {judgement.upper:.3f}: no gain of {rule.threshold:.0%}."
    if judgement.verdict is Verdict.NOISY:
        return (
            f"{found}, but {control} ± {judgement.control_half_width:.1%}, more than the threshold "
            f"of {rule.threshold:.0%}: no claim on this machine now."
        )
    return f"{found}, between {judgement.lower:.3f} and {judgement.upper:.3f}: undecided."

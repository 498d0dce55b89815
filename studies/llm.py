"""A model in the training study: what was asked for, its rounds, and what it contributed.

Advice is kept on the study, so a study that was killed goes on with it. A model that fails costs
the study nothing but a note: the plan goes on without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from search.llm.advice import Advice, CheckedProposal, consult
from search.llm.asking import Consultant, Request
from search.llm.budget import Caps, Spent
from search.llm.client import Endpoint, check_installed
from search.llm.consultant import DEADLINE_S, LiveConsultant
from search.llm.keys import missing_keys
from search.llm.messages import INSTRUCTIONS, TrialRow, briefing
from search.llm.recording import Recording, Replay
from search.llm.redaction import Redactor
from search.llm.repair import ConfigCandidates, ConfigGround
from search.llm.turns import Trials, is_due, its_turn, standing_of_model
from search.proposals import Proposal
from search.space import Space
from specs.config import ConfigTable, TrainingConfig
from specs.errors import InputError
from specs.figures import percent
from specs.files import input_file
from specs.text import one_line
from studies.job import Job
from studies.ledger import Ledger, Trial
from studies.llm_view import view

PROPOSER = "llm"
RECORDING = "llm.jsonl"
_ADVICE = "llm advice "
"""Prefix of the attributes of a study that keep its advice."""


@dataclass(frozen=True, kw_only=True)
class LlmOptions:
    """Which model is asked and within what limits; ``replay`` answers from a recording instead.

    ``hints`` are the user's, one sentence each.
    """

    model: str = ""
    url: str | None = None
    caps: Caps = field(default_factory=Caps)
    deadline_s: float = DEADLINE_S
    hints: tuple[str, ...] = ()
    program: Path | None = None
    replay: Path | None = None

    def identity(self) -> dict[str, Any]:
        """What trials depend on: model, hints, compiled program. Never the URL, which may hold a
        key.

        Raises:
            InputError: the recording or the program cannot be read.
        """
        if self.replay is not None:
            held = Replay(self.replay).study.get("llm")
            if not isinstance(held, dict):
                raise InputError(f"the recording {self.replay} names no model.")
            return dict(held)
        redact = Redactor.of_environment(self.url)
        return {
            "model": one_line(redact(self.model), 200),
            "hints": [one_line(redact(hint), 500) for hint in self.hints],
            "program": self._program_hash(),
        }

    def _program_hash(self) -> str:
        if self.program is None:
            return ""
        try:
            content = input_file(self.program, again=True).read_bytes()
            return hashlib.sha256(content).hexdigest()[:16]
        except OSError as error:
            raise InputError(
                f"the program {self.program} cannot be read: {error.strerror}."
            ) from None


@contextmanager
def consultant_of(
    options: LlmOptions, study: Mapping[str, Any], trials: int, folder: Path
) -> Iterator[Consultant]:
    """Whoever answers, recorded in ``folder``.

    Args:
        options: which model or recording.
        study: what the trials depend on; a recording of another study is refused.
        trials: of the study in all.
        folder: of the study.

    Raises:
        InputError: the recording does not match, or DSPy or LiteLLM is missing.
    """
    if options.replay is not None:
        replay = Replay(options.replay)
        replay.check(study, trials)
        yield replay
        return
    check_installed()
    recording = Recording(folder / RECORDING, study, options.identity()["model"], trials)
    endpoint = Endpoint(options.model, options.url, options.program)
    live = LiveConsultant(endpoint, recording, options.caps, options.deadline_s)
    try:
        yield live
    finally:
        live.close()


def check_usable(options: LlmOptions) -> None:
    """Refuses a model that could not answer, before anything is done.

    A server of the user's own may need no key, and a replay asks nobody.

    Raises:
        InputError: DSPy or LiteLLM is missing, or the provider's key.
    """
    if options.replay is not None:
        return
    check_installed()
    missing = missing_keys(options.model) if options.url is None else []
    if missing:
        raise InputError(
            f"--llm {options.model} needs the key of its provider: set {' or '.join(missing)} in "
            "the environment, or name a server of your own with --llm-url."
        )


class StudyAdvisor:
    """Asks a model about a training study and hands out its proposals, one trial in three."""

    def __init__(
        self,
        job: Job,
        space: Space,
        candidates: ConfigTable,
        ledger: Ledger,
        trials: int,
        identity: Mapping[str, Any],
        consultant: Consultant,
    ) -> None:
        """``candidates`` are legal configs that near misses are repaired to."""
        self._job, self._space, self._ledger, self._trials = job, space, ledger, trials
        self._candidates = ConfigCandidates(candidates)
        self._identity, self._consultant = identity, consultant
        self.advice = read_advice(ledger.study.user_attrs)
        self._seen = -1

    def over(self, plan: Iterator[Proposal]) -> Iterator[Proposal]:
        """A plan with the model's proposals in between."""
        for proposal in plan:
            mine = self._next()
            if mine is not None:
                yield mine
            yield proposal

    def _next(self) -> Proposal | None:
        """The model's proposal for the next trial; None where it is not its turn."""
        known = len(self._ledger)
        if known == self._seen or known >= self._trials:
            return None
        self._seen = known
        trials = self._ledger.trials()
        if is_due(self.advice, known):
            self._ask(trials, known)
        if not self.advice:
            return None
        chosen = its_turn(
            self.advice,
            ConfigCandidates(_table(trials)),
            _as_trials(trials),
            self._worth_of(trials),
        )
        return proposal_of(chosen, self.advice) if chosen is not None else None

    def _ask(self, trials: Sequence[Trial], known: int) -> None:
        """One round; its advice is kept on the study before anything follows from it."""
        number = len(self.advice)
        request = Request(
            INSTRUCTIONS, self.briefing(trials), program=str(self._identity.get("program", ""))
        )
        advice = consult(self._consultant, self._ground(trials), request, number, known)
        self.advice = (*self.advice, advice)
        self._ledger.describe({advice_key(number): advice.as_json()})

    def briefing(self, trials: Sequence[Trial]) -> str:
        """What the model sees now."""
        job, best = self._job, _best(trials)
        shown = {"baseline": _trial_of(trials, job.baseline), "best": best}
        projections = {
            name: trial.details["projection"]
            for name, trial in shown.items()
            if trial is not None and "projection" in trial.details
        }
        held = best.config if best is not None else job.baseline
        return briefing(
            view(
                job,
                self._space.axes,
                [_row(trial) for trial in trials],
                held,
                projections,
                [(note["config"], note["reasons"]) for note in self._ledger.illegal()],
                self.advice,
                self._identity.get("hints", []),
            )
        )

    def _ground(self, trials: Sequence[Trial]) -> ConfigGround:
        best = _best(trials)
        anchor = best.config if best is not None else self._job.baseline
        tried = [trial.config for trial in trials]
        return ground_of(self._job, self._space, anchor, self._candidates, tried, self.advice)

    def _worth_of(self, trials: Sequence[Trial]) -> Any:
        """What a config promises: the surrogate is the oracle here, so its projection says all."""
        best = max((trial.expected for trial in trials), default=0.0)

        def worth(labels: Mapping[str, Any]) -> float | None:
            config = TrainingConfig.from_labels(labels)
            if config in self._ledger or best <= 0.0:
                return None
            seen = self._job.project(ConfigTable.from_configs([config]))
            expected = float(seen.tokens_per_s_per_gpu[0] * seen.fit_probability[0])
            return float(np.log(max(expected, 1e-300) / best))

        return worth

    def summary(self) -> dict[str, Any]:
        """What the model cost and contributed, as JSON."""
        trials = self._ledger.trials()
        believed = (
            standing_of_model(self.advice, ConfigCandidates(_table(trials)), _as_trials(trials))
            if trials and self.advice
            else None
        )
        return summary_of(self._consultant, self.advice, trials, believed)


def summary_of(
    consultant: Consultant,
    advice: Sequence[Advice],
    trials: Sequence[Trial],
    believed: float | None,
) -> dict[str, Any]:
    """Model, spending, rounds and the trials that were the model's."""
    best = _best(trials)
    return {
        **rounds_of(consultant, advice),
        "trials": [trial.number for trial in trials if trial.proposer == PROPOSER],
        "best_is_its": best is not None and best.proposer == PROPOSER,
        "believed": believed,
    }


def rounds_of(consultant: Consultant, advice: Sequence[Advice]) -> dict[str, Any]:
    """Model, spending, rounds and how many proposals got which verdict."""
    spent: Spent = consultant.spent
    verdicts: dict[str, int] = {}
    for held in advice:
        for proposal in held.proposals:
            verdicts[proposal.verdict] = verdicts.get(proposal.verdict, 0) + 1
    return {
        "model": consultant.model,
        "spent": spent.as_json(),
        "rounds": [
            {"known": held.known, "failure": held.failure, "proposals": len(held.proposals)}
            for held in advice
        ],
        "verdicts": verdicts,
        "replayed": isinstance(consultant, Replay),
    }


def notes_on(summary: Mapping[str, Any]) -> list[str]:
    """One sentence on what the model did, and one for each way in which it failed."""
    rounds = summary["rounds"]
    failed = [held for held in rounds if held["failure"]]
    spent = summary["spent"]
    tokens = spent["prompt_tokens"] + spent["completion_tokens"]
    cost = "unknown cost" if spent["cost_usd"] is None else f"${spent['cost_usd']:.4f}"
    verb = "replayed from a recording" if summary["replayed"] else "asked"
    # What a model that never answered used up is a guess of ours, and not worth a number.
    used = f" ({tokens:,} tokens, {cost})" if len(failed) < len(rounds) else ""
    notes = [
        f"the model {summary['model']!r} was {verb} in {len(rounds)} rounds and gave advice in "
        f"{len(rounds) - len(failed)}: {len(summary['trials'])} trials are its proposals, the best "
        f"config is {'one' if summary['best_is_its'] else 'none'} of them{used}."
    ]
    reasons = list(dict.fromkeys(held["failure"] for held in failed))
    notes += [
        "the model gave no advice in some rounds and the search went on without it: "
        f"{reason.rstrip('.')}."
        for reason in reasons
    ]
    if summary["believed"] == 0.0 and summary["verdicts"]:
        notes.append("the model has lost its say: what it foretold did not agree with the trials.")
    return notes


def advice_key(number: int) -> str:
    """The attribute of a study that keeps the advice of a round."""
    return f"{_ADVICE}{number}"


def read_advice(attributes: Mapping[str, Any]) -> tuple[Advice, ...]:
    """The rounds that a study keeps, oldest first."""
    found = [Advice.from_json(held) for key, held in attributes.items() if key.startswith(_ADVICE)]
    return tuple(sorted(found, key=lambda advice: advice.number))


def ground_of(
    job: Job,
    space: Space,
    anchor: TrainingConfig,
    candidates: ConfigCandidates,
    tried: Sequence[TrainingConfig],
    advice: Sequence[Advice],
) -> ConfigGround:
    """What proposals are checked against; earlier rounds' proposals count as tried."""
    proposed = [p.config for held in advice for p in held.proposals if p.config]
    return ConfigGround(
        anchor=anchor,
        axes=space.axes,
        candidates=candidates,
        why_illegal=lambda config: why_not_tried(job, space, config),
        fit=lambda config: fit_of(job, config),
        tried=[*tried, *(TrainingConfig.from_labels(config) for config in proposed)],
    )


def why_not_tried(job: Job, space: Space, config: TrainingConfig) -> list[str]:
    """Why a config cannot run or may not be tried; empty where it may."""
    reasons = job.why_illegal(config)
    if not reasons and not space.allows(config):
        pinned = [n for n in sorted(space.narrowed) if getattr(config, n) not in space.axes[n]]
        reasons = [f"the study allows only some values of {', '.join(pinned)}."]
    return reasons


def fit_of(job: Job, config: TrainingConfig) -> tuple[float, float]:
    """(probability of fitting, GiB above capacity) of a legal config."""
    seen = job.project(ConfigTable.from_configs([config]))
    over = float(seen.device_gib[0]) - job.cluster.gpu.hbm_gib.value
    return float(seen.fit_probability[0]), over


def proposal_of(chosen: CheckedProposal, advice: Sequence[Advice]) -> Proposal:
    """A checked proposal with its reason for a person: round, expectation, the model's words."""
    number = next(a.number for a in reversed(advice) if chosen in a.proposals)
    expected = chosen.expected_effect
    words = (
        "" if expected is None else f", expected {percent(expected, signed=True)} over the baseline"
    )
    repaired = f" (repaired: {chosen.why})" if chosen.verdict == "repaired" else ""
    reason = f"round {number + 1}{words}: {chosen.reason or 'no reason given'}{repaired}"
    return Proposal(TrainingConfig.from_labels(chosen.config or {}), PROPOSER, reason)


def _table(trials: Sequence[Trial]) -> ConfigTable:
    return ConfigTable.from_configs([trial.config for trial in trials])


def _as_trials(trials: Sequence[Trial]) -> Trials:
    found = Trials()
    for row, trial in enumerate(trials):
        value = trial.expected if trial.fits else 0.0
        found.add(row, value, trial.proposer == PROPOSER)
    return found


def _best(trials: Sequence[Trial]) -> Trial | None:
    return max((t for t in trials if t.fits), key=lambda trial: trial.expected, default=None)


def _trial_of(trials: Sequence[Trial], config: TrainingConfig) -> Trial | None:
    return next((trial for trial in trials if trial.config == config), None)


def _row(trial: Trial) -> TrialRow:
    return TrialRow(
        config=trial.config.as_labels(),
        tokens_per_s_per_gpu=trial.tokens_per_s_per_gpu,
        over_gib=trial.memory_gib,
        fit_probability=trial.fit_probability,
        proposer=trial.proposer,
    )

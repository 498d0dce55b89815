"""The legal space of a study: counted, enumerated in chunks and sampled, never whole in memory.

A config splits into a core (mesh, micro-batch, pipeline) and features (recomputation, dispatch,
precision, sharding, fused loss, overlap). All legal cores are enumerated first. Which features go
with a core depends on few facts about it (is tp > 1, which schedule ...), so the features are
judged once for each combination of facts, and the space is the join of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.axes import (
    YIELDING,
    Axes,
    Narrowing,
    Setting,
    axis_values,
    explicit_vpp,
    fallbacks,
    parsed,
    recompute_bundles,
)
from specs.choices import MoeDispatcher, Overlap, Precision, RecomputeMethod, Schedule, Sharding
from specs.cluster import Cluster
from specs.config import AXES, ConfigTable, TrainingConfig
from specs.formats.experiment import Experiment
from specs.layout import is_explicit
from specs.legality import violations
from specs.legality_scope import Mask
from specs.stack import Stack
from specs.workload import Workload

Column = NDArray[Any]

CHUNK_ROWS = 1 << 16
KEPT_FEATURES = 1 << 22
"""Indices of features that are kept between calls: 32 MiB."""
CORE_COLUMNS = (
    *("tp", "pp", "vpp", "layout", "cp", "cp_comm", "ep", "etp", "mbs"),
    *("schedule", "microbatch_group", "sequence_parallel"),
)
BUNDLE_COLUMNS = tuple(name for name in AXES if name.startswith("recompute"))
OTHER_COLUMNS = tuple(n for n in AXES if n not in (*CORE_COLUMNS, *BUNDLE_COLUMNS))
_CONTEXT_FREE = ("replicas_need_shards", "sync_free_offered", "sync_free_needs_deepep")


@dataclass(frozen=True)
class _Groups:
    """Cores with the same facts lie together: group g holds cores starts[g]:starts[g+1].

    ``facts`` numbers what decides which features are legal, ``layers`` is layers per chunk.
    """

    starts: Column
    facts: Column
    layers: Column


@dataclass(frozen=True)
class Space:
    """The legal configs of a workload on a cluster with a stack.

    ``axes`` are the values of each axis, ``narrowed`` the axes that the user pinned or narrowed.
    Rows have a fixed order; position i is the same config on every call.
    """

    setting: Setting
    axes: Axes
    narrowed: frozenset[str]
    full: bool
    core: ConfigTable
    _groups: _Groups
    _selected: dict[tuple[int, int], Column] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @classmethod
    def of(cls, experiment: Experiment, cluster: Cluster, full: bool = False) -> Space:
        """The legal space of an experiment on a cluster, narrowed as its settings say.

        Raises:
            InputError: the narrowing names an unknown axis or value.
        """
        e = experiment
        narrowing = e.settings.axes
        return build_space(e.workload, cluster, e.stack, e.baseline, narrowing, full)

    def allows(self, config: TrainingConfig) -> bool:
        """Whether a config keeps to the axes that were pinned or narrowed."""
        return all(getattr(config, name) in self.axes[name] for name in self.narrowed)

    def narrowed_to(self, features: Axes) -> Space:
        """The same cores in the same order with these values (members) of some feature axes."""
        return replace(
            self, axes=self.axes | features, narrowed=self.narrowed | set(features), _selected={}
        )

    def chunks(self, rows: int = CHUNK_ROWS) -> Iterator[ConfigTable]:
        """All configs in order, at most ``rows`` at a time."""
        total = len(self)
        return (
            self.rows(np.arange(start, min(start + rows, total))) for start in range(0, total, rows)
        )

    def core_of(self, positions: Column) -> Column:
        """The row of ``core`` that each position belongs to."""
        group = np.searchsorted(self._ends, positions, side="right")
        local = positions - (self._ends[group] - self._sizes[group])
        return np.asarray(self._groups.starts[group] + local // self._widths[group])

    def span(self, cores: Column) -> tuple[Column, Column]:
        """(first position, number of positions) of each row of ``core``; they lie together."""
        group = np.searchsorted(self._groups.starts, cores, side="right") - 1
        first = self._ends[group] - self._sizes[group]
        first = first + (cores - self._groups.starts[group]) * self._widths[group]
        return first, self._widths[group]

    def counterparts(self, positions: Column, other: Space) -> Column:
        """Positions in ``other`` of the configs that differ in recomputation alone.

        ``other`` is this space narrowed to one way of recomputation, in which every core goes with
        the features that it goes with here.
        """
        group = np.searchsorted(self._ends, positions, side="right")
        found = np.empty(len(positions), dtype=np.int64)
        others, yielding = len(self._others), len(self._yielding)
        for g in np.unique(group):
            inside = group == g
            mine, theirs = self._features_of(g), other._features_of(g) // yielding % others
            place = np.zeros(others, dtype=np.int64)
            place[theirs] = np.arange(len(theirs))
            core, feature = np.divmod(
                positions[inside] - (self._ends[g] - self._sizes[g]), len(mine)
            )
            first = other._ends[g] - other._sizes[g]
            found[inside] = first + core * len(theirs) + place[mine[feature] // yielding % others]
        return found

    def sample(self, count: int, seed: int) -> ConfigTable:
        """``count`` distinct configs drawn uniformly (all of them where there are fewer)."""
        total = len(self)
        if count >= total:
            return self.rows(np.arange(total))
        rng = np.random.default_rng(seed)
        return self.rows(np.sort(rng.choice(total, count, replace=False)))

    def rows(self, positions: Column) -> ConfigTable:
        """The configs at these positions (ascending), shape (n,)."""
        if not len(positions):
            return self.core.take(slice(0, 0))
        group = np.searchsorted(self._ends, positions, side="right")
        cores, features = [], []
        for g in range(int(group[0]), int(group[-1]) + 1):
            inside = positions[group == g] if group[0] != group[-1] else positions
            if len(inside):
                selected = self._features_of(g)
                local = inside - (self._ends[g] - self._sizes[g])
                cores.append(self._groups.starts[g] + local // len(selected))
                features.append(selected[local % len(selected)])
        return self._joined(np.concatenate(cores), np.concatenate(features))

    def counts(self) -> dict[str, dict[str | int | bool, int]]:
        """Axis -> value -> how many legal configs have it; values that none has are left out."""
        groups, kinds = self._groups, len(self._others) * len(self._yielding)
        per_core = np.repeat(self._widths, np.diff(groups.starts))
        totals = {name: _weighed(getattr(self.core, name), per_core) for name in CORE_COLUMNS}
        weight = np.zeros(len(self._bundles) * kinds, dtype=np.int64)
        for g, cores in enumerate(np.diff(groups.starts)):
            weight[self._features_of(g)] += cores
        used = np.flatnonzero(weight)
        rows = self._joined(np.zeros(len(used), dtype=np.int64), used)
        for name in (*BUNDLE_COLUMNS, *OTHER_COLUMNS):
            totals[name] = _weighed(getattr(rows, name), weight[used])
        return {name: self._labelled(name, totals[name]) for name in AXES}

    def why_empty(self) -> str:
        """What stands in the way where no config is legal, as one sentence."""
        s = self.setting
        table = _core_product(s, self.axes, self.narrowed, prefiltered=False)
        if len(self.core):
            table = self._first_features()
        if not len(table):
            return "the axes contradict each other; narrow fewer of them"
        judged = violations(table, s.workload, s.cluster, s.stack)
        nearest = int(np.argmin(np.sum(list(judged.masks.values()), axis=0)))
        reasons = " and ".join(text.rstrip(".") for text in judged.sentences(nearest))
        return f"the nearest is not because {reasons}"

    def _first_features(self) -> ConfigTable:
        """Some cores with every combination of features but layer counts, legal or not."""
        cores = np.unique(np.linspace(0, len(self.core) - 1, 16).astype(np.int64))
        bundles = self._bundles.take(self._bundle_kinds[0])
        free = {name: self.axes[name] for name in OTHER_COLUMNS}
        of_bundle = {name: getattr(bundles, name) for name in BUNDLE_COLUMNS}
        features = _cross(of_bundle, _grid(free)) if len(bundles) else {**of_bundle, **_grid({})}
        of_core = {name: getattr(self.core, name)[cores] for name in CORE_COLUMNS}
        columns = _cross(of_core, features)
        return ConfigTable.from_columns(
            columns, self.core.layouts, self._bundles.layer_id_sets
        ).take(slice(0, len(columns["tp"])))

    def _labelled(self, name: str, totals: dict[int, int]) -> dict[str | int | bool, int]:
        labels: dict[str | int | bool, int] = {}
        for code, count in totals.items():
            value: Any = code
            if name == "layout":
                value = self.core.layouts[code]
            elif name == "recompute_layer_ids":
                value = self._bundles.layer_id_sets[code]
            labels[AXES[name].label(value)] = count
        return labels

    @cached_property
    def _bundles(self) -> ConfigTable:
        return recompute_bundles(self.axes, self.narrowed, self.setting.baseline)

    @cached_property
    def _held_yielding(self) -> tuple[str, ...]:
        """Axes that are held at the baseline and may give way."""
        held = [n for n in YIELDING if n not in self.narrowed]
        return () if self.full else tuple(held)

    @cached_property
    def _others(self) -> ConfigTable:
        """Combinations of the feature axes that do not give way."""
        free = {n: self.axes[n] for n in OTHER_COLUMNS if n not in self._held_yielding}
        table = ConfigTable.from_columns(_grid(free))
        s = self.setting
        judged = violations(table, s.workload, s.cluster, s.stack).masks
        bad = np.zeros(len(table), dtype=bool)
        for name in set(_CONTEXT_FREE) & set(judged):
            if name != "sync_free_needs_deepep" or "moe_dispatcher" in free:
                bad |= judged[name]
        return table.take(~bad)

    @cached_property
    def _yielding(self) -> ConfigTable:
        """The baseline's values of the axes that may give way, then weaker ones, best first."""
        base, held = self.setting.baseline, self._held_yielding
        return ConfigTable.from_columns(_grid({name: fallbacks(base, name) for name in held}))

    @cached_property
    def _chosen(self) -> dict[int, Column]:
        """Facts -> for each (recompute kind, other) the yielding row that is legal first, or -1."""
        first, kind = self._bundle_kinds
        kinds, others, yielding = len(first), len(self._others), len(self._yielding)
        flat = np.arange(kinds * others * yielding)
        bundle = first[flat // (others * yielding)]
        features = bundle * (others * yielding) + flat % (others * yielding)
        chosen: dict[int, Column] = {}
        repeats = _same_on_one_rank(self._others)
        for fact, start in zip(self._groups.facts, self._groups.starts[:-1], strict=True):
            if int(fact) not in chosen:
                rows = self._joined(np.full(len(flat), start), features)
                legal = self.setting.legal(rows).reshape(kinds, others, yielding)
                best = np.where(legal.any(axis=2), legal.argmax(axis=2), -1)
                if fact % 2:  # nothing is sharded over one rank, nor is there what to overlap
                    best = _without_repeats(best, repeats)
                chosen[int(fact)] = best[kind]
        return chosen

    @cached_property
    def _bundle_kinds(self) -> tuple[Column, Column]:
        """(first bundle of each kind, kind of each bundle): counts of layers share a kind."""
        b = self._bundles
        key = b.recompute + 4 * b.recompute_method + 16 * b.recompute_modules
        key = key + 4096 * b.recompute_layer_ids
        _, first, kind = np.unique(key, return_index=True, return_inverse=True)
        return first, kind

    def _features_of(self, group: int) -> Column:
        """Features that go with the cores of a group, as indices into the join of features."""
        fact, layers = int(self._groups.facts[group]), int(self._groups.layers[group])
        key = (fact, layers)
        if key not in self._selected:
            if sum(map(len, self._selected.values())) > KEPT_FEATURES:
                self._selected.clear()
            chosen = self._chosen[fact]
            usable = (chosen >= 0) & self._counts_usable(layers)[:, None]
            bundle, other = np.nonzero(usable)
            others, yielding = len(self._others), len(self._yielding)
            self._selected[key] = (bundle * others + other) * yielding + chosen[usable]
        return self._selected[key]

    def _counts_usable(self, layers_per_chunk: int) -> Mask:
        """Bundles whose layer count says something new for chunks of so many layers."""
        b = self._bundles
        if "recompute_layers" in self.narrowed:
            return np.ones(len(b), dtype=bool)
        block = b.recompute_method == RecomputeMethod.BLOCK
        own = self.setting.baseline.recompute_layers if not self.full else 0
        return np.asarray(
            ~block | (b.recompute_layers <= layers_per_chunk) | (b.recompute_layers == own)
        )

    @cached_property
    def _widths(self) -> Column:
        """Features a core of each group."""
        width: dict[tuple[int, int], int] = {}
        for fact, layers in set(zip(self._groups.facts, self._groups.layers, strict=True)):
            usable = self._counts_usable(int(layers))
            width[int(fact), int(layers)] = int((self._chosen[int(fact)][usable] >= 0).sum())
        pairs = zip(self._groups.facts, self._groups.layers, strict=True)
        return np.array([width[int(f), int(n)] for f, n in pairs], dtype=np.int64)

    @cached_property
    def _sizes(self) -> Column:
        return np.asarray(np.diff(self._groups.starts) * self._widths)

    @cached_property
    def _ends(self) -> Column:
        return np.cumsum(self._sizes)

    def _joined(self, cores: Column, features: Column) -> ConfigTable:
        """Cores and features side by side."""
        others, yielding = len(self._others), len(self._yielding)
        bundle, rest = np.divmod(features, others * yielding)
        other, giving = np.divmod(rest, yielding)
        columns: dict[str, Column] = {}
        for name in AXES:
            if name in CORE_COLUMNS:
                columns[name] = getattr(self.core, name)[cores]
            elif name in BUNDLE_COLUMNS:
                columns[name] = getattr(self._bundles, name)[bundle]
            elif name in self._held_yielding:
                columns[name] = getattr(self._yielding, name)[giving]
            else:
                columns[name] = getattr(self._others, name)[other]
        return ConfigTable(
            **columns, layouts=self.core.layouts, layer_id_sets=self._bundles.layer_id_sets
        )


def build_space(
    workload: Workload,
    cluster: Cluster,
    stack: Stack,
    baseline: TrainingConfig,
    narrowing: Narrowing | None = None,
    full: bool = False,
) -> Space:
    """The legal space around a baseline, with some axes pinned or narrowed.

    Args:
        workload, cluster, stack: what is trained, where and with what.
        baseline: the config to start from; axes that do not vary are held at its values.
        narrowing: axis -> the only values it may take (members or labels).
        full: vary every axis; else those of ``search.axes.CORE_AXES``.

    Raises:
        InputError: the narrowing names an unknown axis or value.
    """
    setting = Setting(workload, cluster, stack, baseline)
    own = parsed(narrowing or {})
    axes = axis_values(setting, full, own) | own
    narrowed = frozenset(own)
    core = _core_product(setting, axes, narrowed, prefiltered=True)
    core, groups = _grouped(setting, core.take(setting.legal(core)), axes["replicate"])
    return Space(setting, {n: axes[n] for n in AXES}, narrowed, full, core, groups)


def _core_product(
    setting: Setting, axes: Axes, narrowed: frozenset[str], prefiltered: bool
) -> ConfigTable:
    """All cores, with features that run everywhere; most illegal meshes are cut on the way."""
    world = setting.cluster.num_gpus
    mesh = _grid({name: axes[name] for name in ("tp", "pp", "cp", "ep", "etp")})
    if prefiltered:
        etp = np.where(mesh["etp"] == 0, mesh["tp"], mesh["etp"])
        exact = world % (mesh["tp"] * mesh["pp"] * mesh["cp"]) == 0
        exact &= world % (etp * mesh["ep"] * mesh["pp"]) == 0
        mesh = {name: column[exact] for name, column in mesh.items()}
    layouts = ("", *(text for text in axes["layout"] if text))
    plain = {
        "moe_dispatcher": MoeDispatcher.ALLTOALL,
        "precision": next(p for p in Precision if setting.cluster.gpu.supports(p)),
        "sharding": Sharding.NONE,
    }
    parts = []
    for pp in dict.fromkeys(mesh["pp"].tolist()):
        of_pp = {name: column[mesh["pp"] == pp] for name, column in mesh.items()}
        chunks = _pipelines(pp, axes, layouts, "layout" in narrowed)
        free = {name: axes[name] for name in ("cp_comm", "microbatch_group", "mbs")}
        joined = _cross(_cross(of_pp, chunks), _grid(free))
        joined = _with_sequence_parallel(joined, setting, axes, "sequence_parallel" in narrowed)
        joined = _without_inert(joined, axes, narrowed)
        parts.append(ConfigTable.from_columns({**joined, **plain}, layouts=layouts))
    return ConfigTable.concat(parts) if parts else ConfigTable.from_configs([])


def _pipelines(
    pp: int, axes: Axes, layouts: tuple[str, ...], layout_narrowed: bool
) -> dict[str, Column]:
    """(vpp, schedule, layout) that belong to a pipeline of pp ranks, columns of one length."""
    wanted = {text or "" for text in axes["layout"]}
    fixed = {i: explicit_vpp(text, pp) for i, text in enumerate(layouts) if is_explicit(text)}
    rows = []
    for vpp, schedule in product(axes["vpp"], axes["schedule"]):
        if vpp > 1 and pp == 1:
            continue
        for index, text in enumerate(layouts):
            if text not in wanted or (pp == 1 and text and not layout_narrowed):
                continue
            if index not in fixed or fixed[index] == vpp:
                rows.append((vpp, int(schedule), index))
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return dict(zip(("vpp", "schedule", "layout"), columns, strict=True))


def _with_sequence_parallel(
    columns: dict[str, Column], setting: Setting, axes: Axes, narrowed: bool
) -> dict[str, Column]:
    """Sequence parallelism comes with tp unless the baseline does without, or as narrowed."""
    if narrowed:
        return _cross(columns, _grid({"sequence_parallel": axes["sequence_parallel"]}))
    wanted = setting.baseline.sequence_parallel or setting.baseline.tp == 1
    return {**columns, "sequence_parallel": (columns["tp"] > 1) & wanted}


def _without_inert(
    columns: dict[str, Column], axes: Axes, narrowed: frozenset[str]
) -> dict[str, Column]:
    """Rows without repeats: where an axis has no effect only its first value stays."""
    first = {name: values[0] for name, values in axes.items()}
    keep = (columns["cp"] > 1) | (columns["cp_comm"] == first["cp_comm"])
    grouped = (columns["schedule"] == Schedule.INTERLEAVED) & (columns["vpp"] > 1)
    keep &= grouped | (columns["microbatch_group"] == first["microbatch_group"])
    if "sequence_parallel" in narrowed:
        keep &= (columns["tp"] > 1) | (columns["sequence_parallel"] == first["sequence_parallel"])
    return {name: column[keep] for name, column in columns.items()}


def _grouped(
    setting: Setting, core: ConfigTable, replicas: tuple[int, ...]
) -> tuple[ConfigTable, _Groups]:
    """Cores sorted by the facts that decide which features are legal with them."""
    scope = setting.scope(core)
    facts = scope.splits_weight_gradient.astype(np.int64) + scope.is_v_shaped
    for column in (core.tp, core.pp, core.ep, core.cp, core.vpp):
        facts = 2 * facts + (column > 1)
    facts = 2 * facts + core.sequence_parallel
    for count in replicas:
        facts = 2 * facts + ((scope.dp % count == 0) & (scope.edp % count == 0))
    alone = scope.dp * core.cp == 1
    if setting.workload.model.is_moe:
        alone &= scope.edp == 1
    facts = 2 * facts + alone
    layers = -(-setting.workload.model.num_layers // (core.pp * core.vpp))
    order = np.lexsort((layers, facts))
    facts, layers = facts[order], layers[order]
    edges = (facts[1:] != facts[:-1]) | (layers[1:] != layers[:-1])
    starts = np.concatenate(([0], np.flatnonzero(edges) + 1)) if len(facts) else np.zeros(0, int)
    bounds = np.append(starts, len(facts)).astype(np.int64)
    return core.take(order), _Groups(bounds, facts[starts], layers[starts])


def _same_on_one_rank(others: ConfigTable) -> Column:
    """For each row of the feature axes which run it is where one rank holds a whole replica.

    What is sharded over data-parallel ranks is then whole, whatever the sharding but FSDP (which
    still gathers and frees), and data-parallel communication has nothing to overlap.
    """
    sharding = np.where(others.sharding <= Sharding.ZERO2, Sharding.NONE, others.sharding)
    free = {name: getattr(others, name) for name in OTHER_COLUMNS}
    free |= {"sharding": sharding, "overlap": others.overlap & ~int(Overlap.DP)}
    return np.unique(np.column_stack(list(free.values())), axis=0, return_inverse=True)[1].ravel()


def _without_repeats(best: Column, same: Column) -> Column:
    """``best`` (kinds, others) with -1 for legal rows that repeat an earlier one."""
    kept = best.copy()
    for kind in range(len(best)):
        legal = np.flatnonzero(best[kind] >= 0)
        _, first = np.unique(same[legal], return_index=True)
        kept[kind, np.delete(legal, first)] = -1
    return kept


def _grid(axes: Any) -> dict[str, Column]:
    """The cross product of some axes, the first varying slowest, as columns of one length."""
    lists = [[int(value) for value in values] for values in axes.values()]
    grids = np.meshgrid(*lists, indexing="ij") if lists else []
    return {name: grid.ravel() for name, grid in zip(axes, grids, strict=True)}


def _cross(left: dict[str, Column], right: dict[str, Column]) -> dict[str, Column]:
    """Every row of the left with every row of the right."""
    n, m = (len(next(iter(side.values()))) for side in (left, right))
    repeated = {name: np.repeat(column, m) for name, column in left.items()}
    return repeated | {name: np.tile(column, n) for name, column in right.items()}


def _weighed(column: Column, weights: Column) -> dict[int, int]:
    """Value -> sum of weights of the rows that have it, for values of some weight."""
    values, place = np.unique(column, return_inverse=True)
    sums = np.zeros(len(values), dtype=np.int64)
    np.add.at(sums, place, weights)
    return {int(v): int(s) for v, s in zip(values, sums, strict=True) if s}

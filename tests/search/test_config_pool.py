"""Legal spaces as pools: rows are configs, whatever the distributions can tell apart."""

from __future__ import annotations

import numpy as np
import optuna
import pytest
from optuna.distributions import IntDistribution

from search.config_pool import (
    ConfigPool,
    config_pool,
    described,
    loadings,
    parameter_codes,
)
from search.distributions import distributions, parameters
from search.pareto import DIRECTIONS, OBJECTIVES, TradeOff, pareto_front
from search.pool import Belief, Pool
from search.pool_sampler import PoolSampler
from search.space import build_space
from specs import catalog
from specs.choices import Recompute, Sharding
from specs.cluster import Cluster
from specs.config import ConfigTable, TrainingConfig
from specs.formats.experiment import Experiment
from specs.stack import Framework, Stack
from specs.workload import Workload
from studies.job import Job
from surrogate.features import features
from surrogate.learned import shipped

optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.fixture(scope="module")
def job() -> Job:
    cluster = Cluster(name="", gpu=catalog.gpu("MI300X"), num_nodes=2, gpus_per_node=8)
    workload = Workload(model=catalog.model("llama3.1-8b"), seq_len=4096, global_batch_size=64)
    stack = Stack(framework=Framework.PRIMUS, framework_name="Primus")
    baseline = TrainingConfig(tp=2, pp=2, sharding=Sharding.ZERO1, sequence_parallel=True)
    return Job(Experiment(name="t", workload=workload, stack=stack, baseline=baseline), cluster, ())


@pytest.fixture(scope="module")
def pool(job: Job) -> ConfigPool:
    e = job.experiment
    narrowing = {"tp": [1, 2, 4], "pp": [1, 2, 4], "cp": [1, 2], "mbs": [1, 2]}
    space = build_space(e.workload, job.cluster, e.stack, e.baseline, narrowing)
    return config_pool(space, job, job.cluster.gpu.hbm_gib.value, extra=[e.baseline])


def test_rows_configs_and_parameters_agree(pool: ConfigPool) -> None:
    for row in np.random.default_rng(0).choice(len(pool), 50, replace=False).tolist():
        config = pool.config(row)
        assert pool.row_of(config) == row
        assert pool.parameters(row) == parameters(config)
        assert set(pool.parameters(row)) == set(distributions())


def test_the_pool_is_the_space_and_projects_as_the_job_does(pool: ConfigPool, job: Job) -> None:
    assert job.is_legal(pool.table).all()
    seen = job.project(pool.table)
    assert pool.belief is not None
    assert pool.belief.values[:, 0] == pytest.approx(seen.tokens_per_s_per_gpu)
    assert len(set(pool.table.configs())) == len(pool)
    assert pool.row_of(job.baseline) is not None


def test_configs_with_the_same_parameters_are_told_apart() -> None:
    layouts = ["Et*9|t*7|t*9|t*7,L", "Et*7|t*9|t*7|t*9,L"]
    configs = [TrainingConfig(tp=2, pp=4, layout=text) for text in layouts]
    table = ConfigTable.from_configs(configs)
    codes, values = parameter_codes(table)
    assert (codes[0] == codes[1]).all()
    pool = ConfigPool(dict(distributions()), values, codes, table=table)
    assert [pool.row_of(config) for config in configs] == [0, 1]
    attributes = described(configs[1])
    trial = optuna.create_trial(
        params=parameters(configs[1]),
        distributions=dict(distributions()),
        value=1.0,
        user_attrs=attributes,
    )
    assert pool.rows_of([trial]) == [1]


def test_a_study_by_measured_numbers_finds_the_fastest(pool: ConfigPool, job: Job) -> None:
    """The truth punishes recomputation, which the projection does not know."""
    assert pool.belief is not None
    assert pool.belief.memory_gib is not None
    truth = pool.belief.values[:, 0] * np.where(pool.table.recompute == Recompute.NONE, 1.0, 0.8)
    truth *= np.where(pool.table.tp == 1, 0.7, 1.0)
    fits = pool.belief.memory_gib <= job.cluster.gpu.hbm_gib.value
    best = float(truth[fits].max())
    sampler = PoolSampler(pool)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for _ in range(15):
        trial = study.ask(pool.space)
        row = sampler.row_of(trial)
        over = float(pool.belief.memory_gib[row] - job.cluster.gpu.hbm_gib.value)
        for key, value in described(pool.config(row)).items():
            trial.set_user_attr(key, value)
        trial.set_constraint("memory_gib", over)
        study.tell(trial, float(truth[row]))
    assert study.best_value >= 0.99 * best


def test_loadings_are_what_the_surrogate_is_unsure_of(pool: ConfigPool, job: Job) -> None:
    """Their products are the surrogate's own covariance, up to the width of random features."""
    table = pool.table.take(np.arange(0, len(pool), 40))
    cases = job.cases(table)
    unsure = loadings(cases)
    learned = shipped()
    moved = learned.constant_loadings(cases)
    sd = learned.residual.predict(cases).sd
    points = features(cases)
    squared = np.square(points[:, None, :] - points[None, :, :]).sum(axis=2)
    wanted = moved @ moved.T + np.outer(sd, sd) * np.exp(-0.5 * squared)
    assert unsure @ unsure.T == pytest.approx(wanted, abs=0.4 * float(sd.max()) ** 2)
    assert np.diag(unsure @ unsure.T) == pytest.approx(np.diag(wanted), rel=0.05)


def test_a_measurement_says_more_of_configs_with_the_same_doubts() -> None:
    space = {"x": IntDistribution(0, 3)}
    belief = Belief(np.ones((4, 1)), loadings=np.array([[0.2], [0.2], [0.0], [-0.2]]))
    pool = Pool(space, ((0, 1, 2, 3),), np.arange(4)[:, None], belief, total=4)
    study = optuna.create_study(direction="maximize", sampler=PoolSampler(pool))
    study.enqueue_trial({"x": 0})
    study.tell(study.ask(pool.space), 1.3)
    scores = PoolSampler(pool).judged(study).scores
    assert scores.mean[1] > scores.mean[2] > scores.mean[3]
    assert scores.sd[1] < scores.sd[2]


def test_trade_offs_of_configs(pool: ConfigPool, job: Job) -> None:
    trade = TradeOff.of(job.project(pool.table), job.cluster)
    front = pareto_front(trade.columns(OBJECTIVES[:2]), DIRECTIONS[:2])
    fastest = int(np.argmax(trade.tokens_per_s_per_gpu))
    roomiest = int(np.argmax(trade.headroom_gib))
    speeds, rooms = trade.tokens_per_s_per_gpu[front], trade.headroom_gib[front]
    assert speeds.max() == trade.tokens_per_s_per_gpu[fastest]
    assert rooms.max() == trade.headroom_gib[roomiest]
    watts = trade.joule_per_token * trade.tokens_per_s_per_gpu
    assert watts == pytest.approx(job.cluster.gpu.power_w.value)

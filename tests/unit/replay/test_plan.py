"""The engines a policy stands before: from options, its file, another file, or assumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvgate.errors import ConfigError
from kvgate.replay import Hardware, make_plans
from kvgate.replay.plan import ASSUMED
from unit.replay.make import HARDWARE

POOLS = """version: 1
pools:
  llama:
    backends: [http://a:1, http://b:1, http://c:1]
    num_gpu_blocks: 5000
    block_size: 32
    max_model_len: 4096
    watermark: 1%
    prefill_tokens: 2000
"""


def written(tmp_path: Path, text: str, name: str = "one") -> str:
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    return str(path)


def test_a_file_says_what_its_engines_are(tmp_path: Path):
    [plan] = make_plans([written(tmp_path, POOLS)], Hardware())
    assert (plan.engines, plan.sizes.num_gpu_blocks, plan.sizes.block_size) == (3, 5000, 32)
    assert plan.assumed == ("max_num_seqs", "max_num_batched_tokens", "profile")
    [limits, *_] = plan.limits()
    assert (limits.blocks, limits.seqs, limits.prefill_tokens) == (
        5000 - 1 - 50,
        ASSUMED["max_num_seqs"],
        2000,
    )


def test_an_option_comes_before_the_file_and_another_file_before_what_is_assumed(tmp_path: Path):
    policies = ["direct", written(tmp_path, POOLS)]
    direct, own = make_plans(policies, Hardware(block_size=16))
    assert (direct.engines, direct.sizes.num_gpu_blocks, direct.sizes.block_size) == (3, 5000, 16)
    assert own.sizes.block_size == 16
    [alone] = make_plans(["direct"], Hardware())
    assert (alone.engines, len(alone.assumed)) == (ASSUMED["engines"], len(ASSUMED))


def test_what_of_a_policy_is_not_replayed_is_said(tmp_path: Path):
    plain, other = make_plans(
        [
            written(tmp_path, POOLS),
            written(tmp_path, POOLS + "    prefix_sharing: on\n    priority: on\n", "two"),
        ],
        Hardware(),
    )
    assert plain.not_replayed == ()
    assert [text.split()[0] for text in other.not_replayed] == ["prefix_sharing", "priority"]


def test_policies_of_one_name_are_told_apart(tmp_path: Path):
    (tmp_path / "old").mkdir()
    files = [written(tmp_path, POOLS, "p"), written(tmp_path / "old", POOLS, "p")]
    assert [plan.name for plan in make_plans(files, Hardware())] == ["p (1)", "p (2)"]


def test_one_of_several_pools_is_chosen(tmp_path: Path):
    two = (
        POOLS
        + "  qwen: {backends: [http://d:1], num_gpu_blocks: 9000, block_size: 16, max_model_len: 8192}\n"
    )
    file = written(tmp_path, two)
    [plan] = make_plans([file], Hardware(), "qwen")
    assert (plan.pool, plan.engines) == ("qwen", 1)
    with pytest.raises(ConfigError, match="choose one with --pool: llama, qwen"):
        make_plans([file], Hardware())
    with pytest.raises(ConfigError, match="--pool: 'gpt' is not in"):
        make_plans([file], Hardware(), "gpt")


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        (replace(HARDWARE, engines=257), "--engines: 257 is not allowed; allowed: 1 to 256"),
        (replace(HARDWARE, max_num_batched_tokens=64), "allowed: more than --max-num-seqs, 64"),
        (replace(HARDWARE, num_gpu_blocks=50), "but only 49 are usable"),
        (replace(HARDWARE, profile="gpu9000"), "no step profile 'gpu9000'"),
    ],
)
def test_engines_that_cannot_be(hardware: Hardware, said: str):
    with pytest.raises(ConfigError) as caught:
        make_plans(["default"], hardware)
    assert said in str(caught.value)


def test_a_policy_that_is_none(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot be read|No such file"):
        make_plans([str(tmp_path / "none.yaml")], Hardware())

from __future__ import annotations

import pytest

from kvgate.errors import ConfigError
from kvgate.sim.profiles import find_profile, load_profiles
from kvgate_policies.engine_model import StepProfile


def test_every_profile_says_where_its_numbers_come_from():
    profiles = load_profiles()
    assert {"vllm-cpu-tiny", "8b-80gb", "fast", "instant"} <= set(profiles)
    assert all(profile.source for profile in profiles.values())


@pytest.mark.parametrize(
    ("name", "decoding", "prefill_tokens", "step_s"),
    [
        ("vllm-cpu-tiny", 12, 0, 0.0256),
        ("vllm-cpu-tiny", 0, 100, 0.040),
        ("8b-80gb", 12, 0, 0.00836),
        ("8b-80gb", 0, 2048, 0.06944),
        ("fast", 100, 100, 0.001),
        ("instant", 100, 100, 0.0),
    ],
)
def test_step_times(name, decoding, prefill_tokens, step_s):
    profile = find_profile(name)
    assert profile.duration_s(
        decoding=decoding, kv_tokens=1000, prefill_tokens=prefill_tokens
    ) == pytest.approx(step_s)


def test_a_profile_of_ones_own_is_taken_as_it_is():
    own = StepProfile("own", 0.5)
    assert find_profile(own) is own


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"no step profile 'h200'.*8b-80gb"):
        find_profile("h200")

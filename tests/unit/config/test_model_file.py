"""`model_config`: a path from the policy file's folder, a folder, or what is in the file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kvgate.config import load
from kvgate.config.model_file import CONFIG_BYTES_MAX, model_of, read_config
from kvgate.config.sources import load_elsewhere
from kvgate.errors import ConfigError
from kvgate_policies.model_shape import layers_in_words

MODEL = Path(__file__).parents[1] / "policies/models/gpt-oss-20b.json"
WORDS = "12 layers of sliding window (128), 12 layers of full attention"


def policy(tmp_path: Path, said: object) -> Path:
    file = tmp_path / "policy.yaml"
    pools = {"m": {"backends": ["http://a"], "model_config": said}, "n": {"backends": ["http://b"]}}
    file.write_text(json.dumps({"version": 1, "pools": pools}))
    return file


@pytest.mark.parametrize("said", ["models/config.json", "models", str(MODEL), json.loads(MODEL.read_text())])
def test_a_pool_has_the_layers_of_its_model(tmp_path: Path, said: object) -> None:
    (tmp_path / "models").mkdir()
    shutil.copy(MODEL, tmp_path / "models/config.json")
    settings = load(policy(tmp_path, said), {}, {})
    described, other = (settings.for_pool(spec) for spec in settings.pool_specs())
    assert described.kv_model is not None
    assert layers_in_words(described.kv_model) == WORDS
    assert other.kv_model is None


def test_a_file_that_is_not_where_a_policy_is_checked_is_not_looked_at(tmp_path: Path) -> None:
    file = policy(tmp_path, "models/config.json")
    assert load_elsewhere(file).pool_specs()[0].kv_model is None
    with pytest.raises(ConfigError, match=r"pools\.m\.model_config: .*cannot be read: No such file"):
        load(file, {}, {})


def test_a_file_that_is_there_is_read_wherever_it_is_checked(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(ConfigError, match="is not a JSON object"):
        load_elsewhere(policy(tmp_path, "c.json"))


def test_on_the_command_line_it_is_a_path() -> None:
    settings = load(None, {}, {"backends": ["http://a"], "model_config": str(MODEL)})
    assert settings.kv_model == model_of(str(MODEL))
    with pytest.raises(ConfigError, match=r"--model-config: '/nowhere' is not allowed"):
        load(None, {}, {"backends": ["http://a"], "model_config": "/nowhere"})


def test_a_file_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b" " * (CONFIG_BYTES_MAX + 1))
    with pytest.raises(ValueError, match="is larger than"):
        read_config(tmp_path)

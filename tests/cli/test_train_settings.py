"""Settings of a training run have one name in the file and on the command line; wrong ones give clear errors."""

from pathlib import Path

import pytest

from dreamgym.errors import InvalidInput
from dreamgym.runs.settings import names, settings_of
from dreamgym.runs.train.config import TrainConfig
from dreamgym.runs.train.run import train


def test_a_setting_has_the_same_name_in_the_file_and_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text("algorithm = 'ppo'\nsteps = 7\nwithout = ['history', 'retrieval']\n[ppo]\nepochs = 3\n")
    options = ["--algorithm", "ppo", "--steps", "7", "--without", "history,retrieval", "--ppo.epochs=3"]
    assert settings_of(TrainConfig, file, []) == settings_of(TrainConfig, None, options)


def test_an_option_overrides_the_file_and_keeps_the_rest_of_its_table(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text("algorithm = 'ppo'\n[ppo]\nepochs = 3\nmini_batches = 4\n")
    chosen = settings_of(TrainConfig, file, ["--ppo.epochs", "5", "--group-size", "4"])
    assert (chosen.ppo.epochs, chosen.ppo.mini_batches, chosen.group_size) == (5, 4, 4)


def test_parts_that_the_models_setting_leaves_out_are_added_to_those_of_without() -> None:
    chosen = settings_of(TrainConfig, None, ["--model", "nearest without history", "--without", "cache,state"])
    assert chosen.model == "nearest"
    assert set(chosen.without) == {"history", "cache", "state"}


def test_all_settings_have_different_names_which_contain_their_tables() -> None:
    listed = list(names(TrainConfig))
    assert {"steps", "ppo.epochs", "against", "real_steps"} <= set(listed)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--stepz", "3"], "stepz"),
        (["--steps", "many"], "steps"),
        (["--steps"], "--steps has no value"),
        (["--steps", "--seed"], "--steps has no value"),
        (["--seed", "-1"], "seed: .*greater than or equal to 0"),
        (["steps"], "expected --NAME VALUE, got 'steps'"),
        (["--steps", "2", "--steps.more", "3"], "'steps' is not a table of settings"),
        (["--then", "real"], "needs real_steps"),
        (["--against", "real", "--then", "real", "--real-steps", "9"], "then = real comes after the dream"),
        (["--against", "real", "--without", "history"], "settings of dreams: leave out without"),
        (["--against", "real", "--model", "nearest"], "settings of dreams: leave out model"),
        (["--policy", "p", "--tinker", "http://127.0.0.1:8000:"], "expected the address of a Tinker server"),
        (["--vllm", "http://127.0.0.1:port"], "expected the address of a vLLM server"),
        (["--algorithm", "sft", "--then", "real", "--real-steps", "9"], "sft has no then, real_steps: leave them out"),
        (["--algorithm", "sft", "--vllm", "http://127.0.0.1:8000", "--staleness", "1"], "sft has no vllm, staleness"),
        (["--algorithm", "dpo", "--beta", "0.5", "--accumulate", "8"], "dpo has no beta, accumulate"),
        (["--least-confidence", "0.5"], "weigh_confidence and least_confidence need a calibration"),
        (["--algorithm", "dpo", "--mask-refused", "true"], "dpo has no mask_refused"),
        (["--algorithm", "dpo", "--agent", "react", "--lora", "8", "--bf16", "true"], "dpo has no agent, lora, bf16"),
        (
            ["--algorithm", "sft", "--agent", "react", "--mask-refused", "true"],
            "mask_refused is for sft without an agent",
        ),
        (["--algorithm", "sft", "--batch", "3", "--accumulate", "2"], "3 does not split into 2 equal passes"),
        (["--mask-refused", "true"], "grpo has no mask_refused: leave them out"),
        (["--algorithm", "ppo", "--batch", "64"], "ppo has no batch: leave them out"),
        (["--ppo.epochs", "3"], "settings of ppo need algorithm = ppo"),
        (["--algorithm", "sft", "--ppo.epochs", "3"], "settings of ppo need algorithm = ppo"),
        (["--algorithm", "dpo", "--ppo.mini-batches", "4"], "settings of ppo need algorithm = ppo"),
        (["--real-steps", "9"], "real_steps needs then = real or against = real"),
        (["--then-rate", "0.5"], "then_rate: it was removed: the following stage begins with 0.3 of the learning rate"),
        (["--episode_limit_s=9"], "episode_limit_s: it was removed: an agent has an hour"),
        (["--ppo.discount", "0.9"], "ppo.discount: it was removed"),
    ],
)
def test_settings_that_are_unknown_or_do_not_fit_are_refused(options: list[str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        settings_of(TrainConfig, None, options)


@pytest.mark.parametrize("secret", ["me:hunter2xyz@127.0.0.1", "me:hunter2/xyz@127.0.0.1", "127.0.0.1/?key=hunter2xyz"])
@pytest.mark.parametrize("server", ["vllm", "tinker"])
def test_a_servers_address_that_may_contain_a_secret_is_refused_without_showing_it(server: str, secret: str) -> None:
    with pytest.raises(InvalidInput) as told:
        settings_of(TrainConfig, None, ["--policy", "p", f"--{server}", f"http://{secret}"])
    assert f"put the key into {server.upper()}_API_KEY" in str(told.value)
    assert "hunter2" not in str(told.value)


def test_a_wrong_option_is_not_said_to_be_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text("steps = 'few'\n")
    with pytest.raises(InvalidInput, match=r"^settings: groups: "):
        settings_of(TrainConfig, file, ["--groups", "many", "--steps", "3"])
    with pytest.raises(InvalidInput, match=r"train\.toml: steps: "):
        settings_of(TrainConfig, file, ["--groups", "3"])


def test_a_file_that_is_not_toml_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    for text in ("steps: 3", f"steps = {'[' * 5000}{']' * 5000}", f"steps = {'9' * 5000}"):
        file.write_text(text)
        with pytest.raises(InvalidInput, match="is not valid TOML"):
            settings_of(TrainConfig, file, [])
    with pytest.raises(InvalidInput, match="cannot be read"):
        settings_of(TrainConfig, tmp_path / "other.toml", [])


def test_training_refuses_a_file_as_its_run_folder(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text("steps = 7\n")
    with pytest.raises(InvalidInput, match=r"expected a folder for the run, .*train\.toml cannot be one: File exists"):
        train("coin", settings_of(TrainConfig, file, []), file)

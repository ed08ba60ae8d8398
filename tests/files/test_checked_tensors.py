from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save, save_file
from torch import nn

from cdmpp.errors import DataError
from cdmpp.files.checked_tensors import read_tensors, write_tensors
from cdmpp.files.torch_weights import FILE_NAME, load_weights, save_weights

TENSORS = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(5, np.float16)}


def test_other_readers_read_the_file_too(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, save(TENSORS, metadata={"kind": "k"}))
    assert read_tensors(path) == (path.read_bytes(), {"kind": "k"})
    found = load_file(path)
    assert all(np.array_equal(found[name], value) for name, value in TENSORS.items())


def test_every_damaged_byte_of_a_tensor_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, save(TENSORS))
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    for place in range(start, len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="not those that were written"):
            read_tensors(path)
    # Two tensors of one shape that change places.
    write_tensors(path, save({"a": np.zeros(3, np.int8), "b": np.ones(3, np.int8)}))
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"x"').replace(b'"b"', b'"a"'))
    with pytest.raises(ValueError, match="not those that were written"):
        read_tensors(path)


def test_a_file_without_a_digest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path)
    assert read_tensors(path) == (path.read_bytes(), {})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Expecting value"), (bytes(8), "Expecting value"),
        (b"\xff" * 9, "Expecting value|decode"), (b"\x04" + bytes(7) + b"null", "incomplete"),
        (b"\x07" + bytes(7) + b"{}", "incomplete"),
        ((200_000).to_bytes(8, "little") + b"[" * 200_000, "too deeply"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_tensors(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        read_tensors(path)


def test_weights_with_one_other_bit_are_refused_in_a_sentence(tmp_path: Path) -> None:
    network = nn.Linear(3, 2)
    save_weights(network, tmp_path)
    path = tmp_path / FILE_NAME
    load_weights(nn.Linear(3, 2), tmp_path, train_command="cdmpp train")
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    assert torch.isfinite(network.bias).all()
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"not those that were written\); retrain with"):
        load_weights(nn.Linear(3, 2), tmp_path, train_command="cdmpp train")

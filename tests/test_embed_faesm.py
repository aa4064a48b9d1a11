"""Choice of the backend, in an environment without FAESM."""

import sys

import pandas as pd
import pytest

from abag import EncoderError, MissingPackage, open_store
from abag.core.device import plan_device
from abag.embed.embed import embed_table
from abag.embed.encoders.identity import identify, import_faesm
from abag.embed.encoders.loading import load_encoder

TABLE = pd.DataFrame({"heavy": ["EVQL"], "light": ["DIQM"], "antigen": ["MKTAYIAK"]})
TINY = {"antibody_encoder": "tiny-igt5", "antigen_encoder": "tiny-esm2", "device": "cpu"}


@pytest.fixture
def faesm_package(monkeypatch, tmp_path):
    """Put a package called faesm first on the path; call it with the code of its esm.py."""
    for name in ("faesm", "faesm.esm"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def write(code):
        (tmp_path / "faesm").mkdir()
        (tmp_path / "faesm" / "__init__.py").touch()
        (tmp_path / "faesm" / "esm.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)

    yield write
    for name in ("faesm", "faesm.esm"):
        sys.modules.pop(name, None)


def test_without_faesm_one_line_says_what_is_found_and_expected_before_anything_is_written(
    monkeypatch, tmp_path
):
    for name in ("faesm", "faesm.esm"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage) as refusal:
        embed_table(TABLE, tmp_path / "store", antigen_backend="faesm", **TINY)
    text = str(refusal.value)
    assert "\n" not in text
    assert "expected faesm 0.1.1 with transformers 4.53" in text
    assert "pip install 'abag[faesm]'" in text
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("code", "reason"), [
    ("from transformers import NoSuchName", "NoSuchName"),
    ("raise RuntimeError('No CUDA GPUs are available')", "No CUDA GPUs are available"),
])  # fmt: skip
def test_a_faesm_that_fails_on_import_is_refused_with_the_reason(faesm_package, code, reason):
    faesm_package(code)
    with pytest.raises(MissingPackage, match=reason):
        import_faesm()


def test_faesms_output_on_import_does_not_reach_stdout(faesm_package, capsys):
    faesm_package("print('[Warning] Flash Attention not installed.')")
    import_faesm()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["tiny-igt5", "composition"])
def test_faesm_is_refused_for_encoders_other_than_esm2(name):
    with pytest.raises(EncoderError, match=f"faesm with encoder {name}: .* FAESM runs only ESM-2"):
        load_encoder(identify(name, "antigen"), plan_device("cpu"), backend="faesm")


def test_each_kind_has_its_own_backend_and_its_shards_say_which(tmp_path):
    embed_table(TABLE, tmp_path / "store", antibody_backend="reference", **TINY)
    store = open_store(tmp_path / "store")

    def backends(kind):
        return [shard.attrs["backend"] for shard in store.folder(kind).shards()]

    assert backends("antibody") == ["reference"]
    assert backends("antigen") == ["packed"]

"""Shards: plain HDF5 files whose every changed bit is noticed, and whose every trick is refused."""

import errno
import io
import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np
import pytest
from marks import in_ci
from stores import open_shard, shard_name

from abag import DamagedFile
from abag.core.files import write_bytes
from abag.embed.store.shard import CHUNK_BYTES, shard_image

ROWS = 3000
WIDTH = 64
ATTRS = {"kind": "antibody", "fingerprint": "ab" * 16, "precision": "fp32", "threads": 2}


def arrays_of(rows, width, dtype="<f4"):
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 256, (rows, 16), dtype=np.uint8)
    return {
        "key": keys[np.lexsort(keys.T[::-1])],
        "length": np.arange(rows, dtype="<i4"),
        "mean": rng.standard_normal((rows, width)).astype(dtype),
        "has_light": np.ones(rows, np.uint8),
    }


def check(path):
    open_shard(path).check()


def write(folder, arrays, attrs=ATTRS):
    image = shard_image(arrays, attrs)
    path = folder / shard_name(image)
    write_bytes(path, image)
    return path


def renamed(path):
    """Give a changed file the name of its bytes, as whoever forges one would."""
    return path.rename(path.with_name(shard_name(path.read_bytes())))


@pytest.fixture
def arrays():
    return arrays_of(ROWS, WIDTH)


@pytest.fixture
def path(tmp_path, arrays):
    return write(tmp_path, arrays)


def test_some_rows_are_read_in_any_order(path, arrays):
    shard = open_shard(path)
    rows = np.array([2999, 5, 5, 1700])
    assert np.array_equal(shard.load_rows("mean", rows), arrays["mean"][rows])
    assert np.array_equal(shard.load_rows("length", rows[:1]), [2999])


def test_shards_are_laid_out_in_several_threads_at_once():
    several = [arrays_of(ROWS, width) for width in range(8, 40)]
    expected = [shard_image(arrays, ATTRS) for arrays in several]
    with ThreadPoolExecutor(8) as threads:
        images = list(threads.map(lambda arrays: shard_image(arrays, ATTRS), several))
    assert images == expected


def test_the_same_rows_in_another_order_are_the_same_file(arrays):
    order = np.random.default_rng(1).permutation(ROWS)
    shuffled = {name: array[order] for name, array in arrays.items()}
    assert shard_image(shuffled, ATTRS) == shard_image(arrays, ATTRS)
    assert shard_image(arrays, {**ATTRS, "precision": "bf16"}) != shard_image(arrays, ATTRS)


def test_attributes_and_types_are_read_as_they_were_written(path, arrays):
    shard = open_shard(path)
    assert shard.attrs == ATTRS
    assert list(shard.arrays) == list(arrays)
    assert (shard.rows, shard.widths, shard.number_format) == (ROWS, {"mean": WIDTH}, "float32")


def test_a_row_wider_than_a_chunk_is_stored(tmp_path):
    arrays = arrays_of(3, CHUNK_BYTES)
    path = write(tmp_path, arrays)
    check(path)
    assert np.array_equal(open_shard(path).load("mean"), arrays["mean"])


def test_more_vectors_than_a_shard_may_hold_are_refused_before_they_are_laid_out():
    wide = np.broadcast_to(np.float16(1), (3, 1 << 26))  # takes no memory
    with pytest.raises(ValueError, match="'mean' is <f2 of shape"):
        shard_image(arrays_of(3, 8) | {"mean": wide}, ATTRS)


@pytest.mark.parametrize("kind", [OSError, KeyError, RuntimeError])
def test_a_file_system_that_fails_is_not_damage(path, monkeypatch, kind):
    text = "Unable to open object (file read failed: time = now\n, errno = {}, error message = 'x')"

    def failing_with(code):
        def fail(*_, **__):
            raise kind(text.format(code))

        return fail

    for code in (errno.EIO, errno.ENOTCONN, errno.ENOENT):
        monkeypatch.setattr("h5py.File", failing_with(code))
        with pytest.raises(OSError, match=os.strerror(code)) as caught:
            open_shard(path)
        assert (caught.value.errno, caught.value.filename) == (code, str(path))
    monkeypatch.setattr("h5py.File", failing_with(errno.EINVAL))  # as an offset in a damaged file
    with pytest.raises(DamagedFile, match="HDF5 cannot read it"):
        open_shard(path)


def test_a_shard_that_is_replaced_after_it_was_opened_is_named(path, arrays):
    shard = open_shard(path)
    path.write_bytes(shard_image({**arrays, "mean": arrays["mean"][:, :7]}, ATTRS))
    with pytest.raises(DamagedFile, match=rf"^{path}: 'mean' has changed\.$"):
        shard.load("mean")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["<f2", "<f4"])
def test_a_vector_that_is_not_finite_is_damage(tmp_path, value, dtype):
    arrays = arrays_of(ROWS, WIDTH, dtype)
    arrays["mean"][2900, 3] = value
    path = write(tmp_path, arrays)
    for read in (check, lambda path: open_shard(path).load("mean")):
        with pytest.raises(DamagedFile, match="'mean' contains infinity or NaN"):
            read(path)


def noticed(path, arrays):
    """Read everything; return whether damage was noticed, and assert that nothing is wrong."""
    try:
        shard = open_shard(path)
        loaded = {name: shard.load(name) for name in shard.arrays}
    except DamagedFile:
        return True
    assert shard.attrs == ATTRS
    assert loaded.keys() == arrays.keys()
    assert all(np.array_equal(loaded[name], arrays[name]) for name in arrays)
    return False


@pytest.mark.parametrize(
    ("first", "last"),
    [(0, 100), *in_ci((100, 400)), pytest.param(0, 10_000, marks=pytest.mark.slow)],
)
def test_a_flipped_bit_is_an_error_or_changes_nothing_that_is_read(tmp_path, first, last):
    arrays = arrays_of(40, 9, "<f2")
    path = write(tmp_path, arrays)
    rng = random.Random(4)
    whole = path.read_bytes()
    unnoticed = 0
    for number in range(last):
        at = rng.randrange(len(whole))
        flipped = whole[at] ^ (1 << rng.randrange(8))
        if number < first:
            continue
        path.write_bytes(whole[:at] + bytes([flipped]) + whole[at + 1 :])
        unnoticed += not noticed(path, arrays)
        with pytest.raises(DamagedFile):
            check(path)
    assert unnoticed < last - first  # gaps between HDF5's structures are never read


@pytest.mark.parametrize("step", [61, pytest.param(1, marks=pytest.mark.slow)])
def test_a_truncated_shard_is_an_error(tmp_path, step):
    arrays = arrays_of(40, 9)
    path = write(tmp_path, arrays)
    whole = path.read_bytes()
    for size in range(0, len(whole), step):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedFile):
            open_shard(path)


@pytest.mark.parametrize("name", ["key", "length", "mean", "has_light"])
def test_a_chunk_that_was_never_written_is_noticed_though_its_checksum_is_zero(tmp_path, name):
    arrays = arrays_of(ROWS, WIDTH)
    path = write(tmp_path, arrays)
    with h5py.File(path) as file:
        chunk = file[name].id.get_chunk_info(file[name].id.get_num_chunks() - 1)
    with path.open("r+b") as file:
        file.seek(chunk.byte_offset)
        file.write(bytes(chunk.size))
    assert noticed(path, arrays)


def test_vectors_of_zeros_are_stored(tmp_path):
    arrays = arrays_of(5, 4) | {"light_mean": np.zeros((5, 4), "<f4")}
    path = write(tmp_path, arrays)
    check(path)
    assert not open_shard(path).load("light_mean").any()


def remake(file, name="mean", **options):
    """Replace a dataset by one that is stored in another way."""
    data = file[name][:]
    del file[name]
    options = {"data": data, "chunks": data.shape, "fletcher32": True, **options}
    file.create_dataset(name, **{k: v for k, v in options.items() if v is not None})


def link(file, target):
    del file["mean"]
    file["mean"] = target


def virtual(file):
    layout = h5py.VirtualLayout(file["mean"].shape, "<f4")
    layout[:] = h5py.VirtualSource("secret.h5", "mean", file["mean"].shape)
    del file["mean"]
    file.create_virtual_dataset("mean", layout)


def sparse(file, rows):
    """Replace all datasets by ones of which no chunk exists."""
    for name in list(file):
        row = file[name].shape[1:]
        dtype = file[name].dtype
        del file[name]
        options = {"chunks": (1 << 10, *row), "maxshape": (None, *row), "fletcher32": True}
        file.create_dataset(name, (rows, *row), dtype, **options)


def attribute(name, value):
    return lambda file: file.attrs.create(name, value)


EXTERNAL = {"data": None, "shape": (40, 9), "dtype": "<f4", "chunks": None, "fletcher32": None}
FORGERIES = {
    "external link": lambda f: link(f, h5py.ExternalLink("secret.h5", "/mean")),
    "soft link": lambda f: link(f, h5py.SoftLink("/length")),
    "group": lambda f: link(f, h5py.SoftLink("/")) or f.create_group("cls"),
    "the root": lambda f: f.__setitem__("cls", f["/"]), "virtual": virtual,
    "external storage": lambda f: remake(f, **EXTERNAL, external=[("secret.h5", 0, 1440)]),
    "contiguous": lambda f: remake(f, chunks=None, fletcher32=None),
    "no checksum": lambda f: remake(f, fletcher32=None),
    "gzip": lambda f: remake(f, compression="gzip"), "shuffled": lambda f: remake(f, shuffle=True),
    "scaled": lambda f: remake(f, "length", scaleoffset=0, fletcher32=None),
    "no rows": lambda f: sparse(f, 0), "holes": lambda f: sparse(f, 1 << 12),
    "a terabyte": lambda f: sparse(f, 1 << 33),
    "huge chunk": lambda f: remake(
        f, data=None, dtype="<f4", shape=(40, 9), maxshape=(None, 9), chunks=(1 << 23, 9)
    ),
    "objects": lambda f: remake(
        f, data=["x"] * 40, chunks=(40,), dtype=h5py.string_dtype(), fletcher32=None
    ),
    "ragged": lambda f: remake(
        f, data=None, shape=(40,), chunks=(40,), dtype=h5py.vlen_dtype("<f4"), fletcher32=None
    ),
    "references": lambda f: remake(f, data=None, shape=(40,), chunks=(40,), dtype=h5py.ref_dtype),
    "float64": lambda f: remake(f, dtype="<f8"), "big-endian": lambda f: remake(f, dtype=">f4"),
    "complex": lambda f: remake(f, data=f["mean"][:].astype("<c8"), dtype="<c8"),
    "record": lambda f: remake(f, data=np.zeros(40, "<f4,<f4"), chunks=(40,)),
    "vectors of keys": lambda f: remake(f, "key", data=f["key"][:, :8], chunks=(40, 8)),
    "other rows": lambda f: remake(f, data=f["mean"][:39], chunks=(39, 9)),
    "scalar": lambda f: remake(f, data=1.0, chunks=None, fletcher32=None),
    "no width": lambda f: remake(
        f, data=np.zeros((40, 0), "<f4"), chunks=(40, 1), maxshape=(40, None)
    ),
    "no keys": lambda f: f.__delitem__("key"), "no lengths": lambda f: f.__delitem__("length"),
    "no vectors": lambda f: f.__delitem__("mean"), "name": lambda f: f.move("mean", "Mean"),
    "many arrays": lambda f: [f.__setitem__(f"m{i}", f["mean"]) for i in range(100)],
    "many attributes": lambda f: [f.attrs.create(f"a{i}", 1) for i in range(100)],
    "array attribute": attribute("kind", [1, 2]),
    "empty attribute": attribute("kind", h5py.Empty("f")),
    "reference attribute": lambda f: f.attrs.create("kind", f.ref, dtype=h5py.ref_dtype),
    "record attribute": attribute("kind", np.zeros((), "<f4,<f4")),
    "not text": attribute("kind", np.bytes_(b"\xff")),
    "long text": attribute("kind", "a" * 70_000),  # of variable length: 16 bytes in the attribute
    "later version": attribute("format", np.bytes_(b"abag-shard 3")),
    "earlier version": attribute("format", np.bytes_(b"abag-shard 1")),
    "no version": lambda f: f.attrs.__delitem__("format"),
    "number as version": attribute("format", 2),
}  # fmt: skip


@pytest.mark.parametrize("how", FORGERIES)
def test_a_forged_shard_is_refused_before_an_array_is_read(tmp_path, how, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, arrays_of(40, 9)).rename("secret.h5")
    shutil.copy("secret.h5", "forged.h5")
    with h5py.File("forged.h5", "r+") as file:
        FORGERIES[how](file)
    path = renamed(tmp_path / "forged.h5")
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda *_: pytest.fail("it was read"))
    with pytest.raises(DamagedFile, match=rf"^{path}: .*\.$") as caught:
        check(path)
    assert "\n" not in str(caught.value)
    if how.endswith("version") and how.split()[0] in ("later", "earlier"):
        assert "this abag reads 2" in str(caught.value)


@pytest.mark.parametrize("value", [np.bytes_(b"a" * 20_000_000), "a" * 20_000_000])
def test_an_attribute_that_is_too_large_is_refused_before_it_is_read(tmp_path, value, monkeypatch):
    path = write(tmp_path, arrays_of(40, 9))
    with h5py.File(path, "r+", libver=("v110",) * 2) as file:
        file.attrs.create("kind", value)
    path = renamed(path)
    for name in ("get_id", "__getitem__"):  # HDF5 reads an attribute as it is opened
        monkeypatch.setattr(h5py.AttributeManager, name, lambda *_: pytest.fail("it was read"))
    with pytest.raises(DamagedFile, match=r"holds 20,\d{3},\d{3} bytes beside its arrays\."):
        open_shard(path)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "sparse", "empty", "png", "hdf5"])
def test_what_is_no_regular_file_of_this_format_is_refused(tmp_path, path, kind):
    odd = tmp_path / f"{'0' * 32}.h5"
    if kind == "link":
        odd.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(odd)
    elif kind == "folder":
        odd.mkdir()
    elif kind == "hdf5":
        h5py.File(odd, "w").close()
    else:
        odd.write_bytes(b"\x89PNG" if kind == "png" else b"")
    if kind == "sparse":
        os.truncate(odd, 1 << 40)
    for read in (open_shard, check):
        with pytest.raises(DamagedFile, match=str(odd)):
            read(odd)


def test_a_stranger_writes_a_shard_with_plain_h5py(tmp_path):
    arrays = arrays_of(40, 9)
    file = io.BytesIO()
    with h5py.File(file, "w") as shard:
        shard.attrs.update({"format": "abag-shard 2", **ATTRS})
        for name, values in arrays.items():
            shard.create_dataset(name, data=values, fletcher32=True)
    path = tmp_path / shard_name(file.getvalue())
    path.write_bytes(file.getvalue())
    check(path)
    assert not noticed(path, arrays)

"""Arrays of JAX through the package; and Orbax, whose tensorstore opens files by their paths, over a mount of the same target."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from conftest import Pool, until

from surgetank import PoolFileSystem

jax = pytest.importorskip("jax")


@pytest.fixture
def mounted(pool: Pool, target: Path, tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("a mount needs root and /dev/fuse")
    point = tmp_path / "mnt"
    point.mkdir()
    made = pool.run(
        *("mount", f"pool://{pool.address}", str(point), "--target", str(target), "--token", str(pool.key)),
        *("--log-file", str(tmp_path / "mount.log")),
    )
    assert made.returncode == 0, made.stderr
    yield point
    until("it is unmounted", lambda: pool.run("umount", str(point)).returncode == 0)


def test_arrays_are_saved_and_restored(fs: PoolFileSystem, target: Path) -> None:
    tree = {"w": jax.numpy.arange(1 << 20, dtype="float32").reshape(1024, 1024), "b": jax.numpy.ones(4096)}
    with fs.transaction:
        for name, array in tree.items():
            with fs.open(f"/step-{name}.npy", "wb") as file:
                numpy.save(file, numpy.asarray(array))
    for name, array in tree.items():
        with fs.open(f"/step-{name}.npy", "rb") as file:
            assert (jax.numpy.asarray(numpy.load(file)) == array).all()
    fs.drained("/", timeout=60)
    assert (numpy.load(target / "step-w.npy") == tree["w"]).all()


def test_orbax_saves_over_the_mount_and_the_package_waits_and_reads(
    fs: PoolFileSystem, target: Path, mounted: Path
) -> None:
    checkpoint = pytest.importorskip("orbax.checkpoint")
    tree = {"w": jax.numpy.arange(1 << 20, dtype="float32").reshape(1024, 1024), "b": jax.numpy.ones(4096), "step": 7}
    options = checkpoint.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=True)
    with checkpoint.CheckpointManager(mounted / "run", options=options) as manager:
        for step in range(3):
            manager.save(step, args=checkpoint.args.StandardSave(tree))
        manager.wait_until_finished()
        assert sorted(manager.all_steps()) == [1, 2]
    # What the mount has closed, this process's own session waits for and reads.
    fs.replicated("/run", timeout=120)
    fs.drained("/run", timeout=120)
    files = fs.find("/run/2")
    assert files == [f"/run/2/{found.relative_to(target / 'run' / '2')}" for found in _files(target / "run" / "2")]
    for name in files:
        assert fs.cat_file(name) == (target / name[1:]).read_bytes() == (mounted / name[1:]).read_bytes()
    # A restart on a machine that has the target alone.
    with checkpoint.CheckpointManager(target / "run") as manager:
        found = manager.restore(2, args=checkpoint.args.StandardRestore(tree))
    assert (found["w"] == tree["w"]).all() and (found["b"] == tree["b"]).all() and found["step"] == 7


def _files(below: Path) -> list[Path]:
    return sorted(found for found in below.rglob("*") if found.is_file())

"""The committed stubs are what the .proto sources give, and import without a warning."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
STUBS = ROOT / "api" / "kvasir" / "wire" / "proto"


def test_the_committed_stubs_are_up_to_date(tmp_path: Path) -> None:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed")
    script = ROOT / "scripts" / "gen_protos.py"
    subprocess.run([sys.executable, script, "--out", tmp_path], check=True, capture_output=True)
    fresh = tmp_path / "kvasir" / "wire" / "proto"

    def files(root: Path) -> dict[str, str]:
        return {
            str(path.relative_to(root)): path.read_text()
            for path in sorted(root.rglob("*_pb2*.py*"))
            if path.suffix in (".py", ".pyi")
        }

    assert files(fresh), "the script wrote nothing"
    assert files(STUBS) == files(fresh), "run scripts/gen_protos.py and commit what it writes"


def test_the_stubs_import_with_warnings_as_errors() -> None:
    code = "from kvasir.wire.proto.engine.v1 import engine_pb2, engine_pb2_grpc"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

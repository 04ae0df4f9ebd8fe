"""Generate the gRPC stubs of api/proto into api/kvasir/wire/proto; run after every change there.

The stubs are committed so that nobody needs grpcio-tools to install Kvasir.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "api/proto/kvasir"
# protoc names Python modules after the path, so kvasir/engine/v1 is shown to it as
# kvasir/wire/proto/engine/v1: the stubs then import each other where they are installed.
PACKAGE = "kvasir/wire/proto"
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


def generate(out: Path) -> list[Path]:
    """Write stubs for every .proto under `out` (a path that stands for api/); returns them."""
    written: list[Path] = []
    for proto in sorted(SOURCE.rglob("*.proto")):
        relative = proto.relative_to(SOURCE)
        status = protoc.main(
            [
                "protoc",
                f"--proto_path={PACKAGE}={SOURCE}",
                f"--proto_path={WELL_KNOWN}",
                f"--python_out={out}",
                f"--pyi_out={out}",
                f"--grpc_python_out={out}",
                f"{PACKAGE}/{relative}",
            ]
        )
        if status != 0:
            raise SystemExit(f"protoc failed on {proto} with status {status}.")
        stem = out / PACKAGE / relative.with_suffix("")
        written += [
            stem.with_name(stem.name + suffix) for suffix in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
        ]
    return written


def main() -> None:
    """Write the stubs into api/, or below --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "api")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    sys.stdout.writelines(f"{path}\n" for path in generate(out))


if __name__ == "__main__":
    main()

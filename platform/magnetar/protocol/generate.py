"""Generate `*_pb2.py` and `*_pb2.pyi` beside every `.proto` of the project: what `make proto` runs.

Needs grpcio-tools and mypy-protobuf, of the development group. The results are committed, so that
neither an installation nor a test needs a compiler.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[3]
_SOURCE_ROOTS = ("platform", "functions", "connectors", "runtime")


def generate(root: Path, proto: Path) -> list[Path]:
    """Compile `proto`, which lies below the source root `root`; return what was written."""
    from grpc_tools import protoc

    with_service = any(line.startswith("service ") for line in proto.read_text().splitlines())
    binaries = Path(sys.executable).parent
    arguments = [
        "protoc",
        *(f"--proto_path={_REPOSITORY / other}" for other in _SOURCE_ROOTS),
        f"--proto_path={files('grpc_tools') / '_proto'}",
        f"--plugin=protoc-gen-mypy={binaries / 'protoc-gen-mypy'}",
        f"--python_out={root}",
        f"--mypy_out=quiet:{root}",
    ]
    if with_service:
        arguments += [
            f"--plugin=protoc-gen-mypy_grpc={binaries / 'protoc-gen-mypy_grpc'}",
            f"--grpc_python_out={root}",
            f"--mypy_grpc_out=quiet:{root}",
        ]
    if protoc.main([*arguments, str(proto)]) != 0:
        raise SystemExit(f"protoc refused {proto}")
    written = sorted(proto.parent.glob(f"{proto.stem}_pb2*.py*"))
    header = f"# Generated from {proto.name}: do not edit, run `make proto`.\n"
    for path in written:
        text = path.read_text()
        path.write_text(text if text.startswith(header) else header + text)
    return written


def main() -> None:
    """Generate everything, and say what."""
    for name in _SOURCE_ROOTS:
        root = _REPOSITORY / name
        for proto in sorted((root / "magnetar").rglob("*.proto")):
            for path in generate(root, proto):
                sys.stdout.write(f"{path.relative_to(_REPOSITORY)}\n")


if __name__ == "__main__":
    main()

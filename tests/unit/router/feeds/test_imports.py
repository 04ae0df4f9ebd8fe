"""A router whose fleet has neither gRPC nor events starts without what they need."""

import subprocess
import sys


def test_grpc_and_zmq_are_not_loaded_before_they_are_needed() -> None:
    code = (
        "import sys, kvasir_router.process.single_process\n"
        "print(sorted({'grpc', 'zmq', 'google.protobuf', 'torch'} & set(sys.modules)))"
    )
    run = [sys.executable, "-c", code]
    result = subprocess.run(run, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

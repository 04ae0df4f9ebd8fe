"""Multipart forms."""

TYPE = b"multipart/form-data; boundary=xyz"


def part(name: str, value: bytes, more: str = "") -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"{more}'
    return b"--xyz\r\n" + head.encode() + b"\r\n\r\n" + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--xyz--\r\n"


AUDIO = part("file", b"RIFF\r\n\r\n\0" * 1000, '; filename="a;name=model.wav"')

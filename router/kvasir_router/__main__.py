"""`python -m kvasir_router` is `kvasir router`."""

from kvasir_router.command import app

app(prog_name="kvasir router")

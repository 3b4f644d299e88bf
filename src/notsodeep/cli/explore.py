"""`notsodeep explore`."""

from __future__ import annotations

import importlib.util
import os
import socket
import threading
import warnings
import webbrowser
from typing import Annotated

import typer

from notsodeep.cli.program import app
from notsodeep.cli.program import err as stderr
from notsodeep.cli.program import out as stdout
from notsodeep.errors import BadInput, NumericsWarning

_THREADS = 8


@app.command("explore", short_help="Play with it, on a local web page.")
def explore_command(
    host: Annotated[str, typer.Option(help="Address to serve on. 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8050,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
) -> None:
    """Open a web page on which a DEQ and its explicit network are compared while one moves their settings.

    It is served to this machine alone unless --host says otherwise. Stop it with Ctrl-C.
    """
    missing = [
        name for name in ("dash", "dash_mantine_components", "waitress") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise BadInput(f"The explorer needs {', '.join(missing)}: pip install 'notsodeep[app]'.")
    from waitress.server import create_server

    from notsodeep.app.server import make_app

    warnings.simplefilter("ignore", NumericsWarning)  # the page says it beside the field
    place = _listening(host, port)
    server = create_server(make_app().server, sockets=[place], threads=_THREADS, ident="notsodeep")
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    address = f"http://{shown}:{place.getsockname()[1]}/"
    stdout.print(f"notsodeep is at {address}  (Ctrl-C stops it)")
    if browser:
        threading.Timer(0.5, webbrowser.open, (address,)).start()
    try:
        server.run()
    finally:
        if (
            server.task_dispatcher.active_count
        ):  # a computation cannot be stopped, and Python would wait for it or crash
            stderr.print("stopped")
            os._exit(130)


def _listening(host: str, port: int) -> socket.socket:
    """A socket bound to the place, or `BadInput`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        place = socket.socket(family, socket.SOCK_STREAM)
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind((host, port))
    except (OSError, UnicodeError) as error:
        raise BadInput(
            f"Cannot serve on {host}:{port}: {getattr(error, 'strerror', None) or 'no address'}. Give another "
            "--host or --port (0 takes a free one)."
        ) from None
    return place

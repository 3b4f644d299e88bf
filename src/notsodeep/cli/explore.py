"""`notsodeep explore`."""

from __future__ import annotations

import importlib.util
import os
import select
import signal
import socket
import threading
import webbrowser
from typing import Annotated, Any

import typer

from notsodeep.cli.program import app, err as stderr, out as stdout
from notsodeep.errors import BadInput

_WAITING = 96  # visitors who wait for a computation; each holds a thread, which costs little
_PAGE_THREADS = 16  # reserved for the page and its files
_CONNECTIONS = 1000  # where the system allows twice as many open files
_SILENCE = 30  # seconds after which a silent connection is closed


@app.command("explore")
def explore_command(
    host: Annotated[str, typer.Option(help="Address to serve on. 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8050,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
    name: Annotated[
        list[str] | None, typer.Option(help="Another host name to answer to, as behind a proxy: lab.example or lab.example:80.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, max=86400.0, help="The most that one computation may take.")] = 30.0,
    memory: Annotated[int, typer.Option(min=64, max=2**20, help="MiB that one computation may take (on Linux).")] = 2048,
) -> None:
    """Open a web page that compares a DEQ and its explicit network as you move their settings.

    It is served to this machine alone, unless --host says otherwise. Stop it with Ctrl-C.
    """
    needed = ("dash", "dash_mantine_components", "waitress")
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    if missing:
        raise BadInput(f"The explorer needs {', '.join(missing)}: pip install 'notsodeep[app]'.")
    from waitress.server import create_server

    from notsodeep.app.doors import Names
    from notsodeep.app.explorer import Explorer
    from notsodeep.app.pool import Pool
    from notsodeep.app.server import make_app
    from notsodeep.app.worker import Budget

    place = _listening(host, port)
    names = Names.of(host, place.getsockname()[1], name or ())
    explorer = Explorer(Pool(Budget(seconds, memory * 2**20), most_waiting=_WAITING))
    server = create_server(make_app(explorer, names).server, sockets=[place], **_settings())
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    address = f"http://{shown}:{place.getsockname()[1]}/"
    stdout.print(f"notsodeep is at {address}  (Ctrl-C stops it)")
    if browser:
        threading.Timer(0.5, webbrowser.open, (address,)).start()

    def stop(*_: Any) -> None:
        explorer.close()  # else the server would wait for threads that wait for a computation
        raise KeyboardInterrupt

    before = {which: signal.signal(which, stop) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run()
    finally:
        explorer.close()
        for which, handler in before.items():
            signal.signal(which, handler)
        if server.task_dispatcher.active_count:  # Python would wait for threads still at work
            stderr.print("stopped")
            os._exit(130)


def _settings() -> dict[str, Any]:
    """Settings of waitress; `channel_request_lookahead` lets it notice who leaves while their request is at work."""
    return {
        "threads": _WAITING + _PAGE_THREADS,
        "ident": "notsodeep",
        "connection_limit": min(_CONNECTIONS, _open_files() // 2),
        "channel_timeout": _SILENCE,
        "cleanup_interval": _SILENCE // 3,
        "channel_request_lookahead": 1,
        "asyncore_use_poll": hasattr(select, "poll"),
        "log_socket_errors": False,  # leaving early is not an error
    }


def _open_files() -> int:
    """How many files and connections this process may hold open."""
    try:
        import resource
    except ImportError:  # Windows
        return 512
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _listening(host: str, port: int) -> socket.socket:
    """A socket bound to the address; `BadInput` where that fails."""
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

"""Flower's own programs, started with telemetry, update checks and installation of dependencies off, and looked after."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

from kithkin.disk import disk_errors
from kithkin.errors import KithkinError
from kithkin.network.keys import write_secret
from kithkin.network.papers import Papers, host_and_port, on_this_machine
from kithkin.processes import die_with_parent

if TYPE_CHECKING:
    from kithkin.network.terms import FederationFile, Terms

FILE = "KITHKIN_FEDERATION"  # names the federation's file to the server app; sites need not know it
FOLDER = "KITHKIN_FEDERATION_FOLDER"  # that of the server that is up, whatever the file says by now
NO_ROOM = "waiting for room"  # the state of a run whose server's disk is full: it goes on by itself when it is not any more
LETTING_GO = 5.0  # seconds that a server which was killed a moment ago may still hold its port
ANSI_COLOURS = re.compile("\x1b\\[[0-9;]*m")
LINK = "kithkin"  # what Flower's command line calls the server
THIS_MACHINE = ("127.0.0.1", "::1", "localhost")  # where programs reach each other, whatever proxy leads outside
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
}


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def private() -> Generator[None, None, None]:
    """What is written meanwhile, also by programs that are started, is for its owner alone: models, and the aliases' secret."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def alone(path: Path, problem: str, remedy: str) -> Generator[None, None, None]:
    """One process at a time: a second one would take the first one's papers away. The system lets go if we die."""
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KithkinError(f"{problem} by process {path.read_text().strip()}.", remedy) from None
        except OSError:
            pass  # a file system without locks
        with disk_errors(path, "Free some room."):
            path.write_text(f"{os.getpid()}\n")
        yield


def plain(text: str, most: int = 500) -> str:
    """What others say, as a terminal may show it: so many characters at most, none of which moves the cursor."""
    return "".join(c if c.isprintable() else " " for c in text[:most])


def until_stopped(work: Callable[[], None]) -> None:
    """Ctrl-C and a service manager's stop both end in good order."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        work()
    except KeyboardInterrupt:
        say("Stopped.")


def program(name: str) -> str:
    """Flower's program of this name: that of this Python's environment first."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise KithkinError(f"There is no program {name}.", "Install it with `pip install 'kithkin[deploy]'`.")
    return found


def environment(home: Path, **more: str) -> dict[str, str]:
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join([beside, os.environ.get("PATH", "")])
    direct = ",".join([os.environ.get("no_proxy") or os.environ.get("NO_PROXY", ""), *THIS_MACHINE]).lstrip(",")
    own = {"FLWR_HOME": str(home), "PATH": path, "PYTHONUNBUFFERED": "1", "NO_PROXY": direct, "no_proxy": direct}
    return {**os.environ, **QUIET, **own, **more}


def check_secure(insecure: bool, *addresses: str) -> None:
    """Without TLS and keys, only within one machine."""
    far = [a for a in addresses if not on_this_machine(a)]
    if insecure and far:
        raise KithkinError(
            f"--insecure is for one machine alone, and {far[0]} is another.", "Leave it out, and use keys and TLS."
        )


def superlink(file: FederationFile, insecure: bool) -> list[str]:
    host, port = host_and_port(file.listen)
    command = [program("flower-superlink"), "--host", host, "--port", str(port)]
    command += ["--disable-runtime-dependency-installation", "--database", str(file.flower / "state.db")]
    if insecure:
        return [*command, "--insecure"]
    command += ["--ssl-ca-certfile", str(file.ca), "--ssl-certfile", str(file.certificate), "--ssl-keyfile", str(file.key)]
    return [*command, "--enable-supernode-auth"]


def supernode(folder: Path, papers: Papers, insecure: bool, runtime: str) -> list[str]:
    host, port = host_and_port(runtime)
    command = [sys.executable, "-m", "kithkin.network.node", "--superlink", papers.server, "--host", host, "--port", str(port)]
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(folder / "flower" / "secret")]
    command += ["--node-config", f"folder={json.dumps(str(folder))}"]
    if insecure:
        return [*command, "--insecure"]
    return [*command, "--root-certificates", papers.ca, "--auth-supernode-private-key", str(folder / "site.key")]


def executor(folder: Path, runtime: str) -> list[str]:
    secret = folder / "flower" / "secret"
    return [sys.executable, "-m", "kithkin.network.executor", "--address", runtime, "--secret", str(secret)]


def fresh_secret(path: Path) -> None:
    path.unlink(missing_ok=True)
    write_secret(path, secrets.token_hex(32).encode())


def free_address() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{s.getsockname()[1]}"


@contextmanager
def running(command: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> Generator[subprocess.Popen[bytes], None, None]:
    """A program in a group of its own, which is ended with all that it started; it does not outlive this process."""
    process = subprocess.Popen(
        command,
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    scribe = Thread(target=write_down, args=(process.stdout, log), daemon=True)
    scribe.start()
    try:
        yield process
    finally:
        end(process)
        scribe.join(1)  # all is written by then, unless a grandchild that left the group holds the pipe


def write_down(said: IO[bytes], log: IO[bytes]) -> None:
    """What a program says, with the time, which Flower does not tell, and as a terminal may show it."""
    with said:
        for line in said:
            text = plain(ANSI_COLOURS.sub("", line.decode(errors="replace").rstrip()), 10_000)
            with suppress(OSError, ValueError):  # the disk is full, or the log closed: a program that is not heard goes on
                log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n".encode())


def end(process: subprocess.Popen[bytes], patience: float = 10) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
            process.wait(patience)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def check_port(address: str) -> None:
    """Refuse an address at which we cannot listen."""
    host, port = host_and_port(address)
    until = time.monotonic() + LETTING_GO
    while True:
        try:
            family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: old connections do not matter
                s.bind(where)
            return
        except OSError as e:
            if e.errno != errno.EADDRINUSE:
                raise KithkinError(f"Cannot listen at {address}: {e.strerror}.", "Change `listen` in the file.") from None
            if time.monotonic() > until:
                raise KithkinError(f"Port {port} is taken.", "Change `listen` in the file, or stop who has it.") from None
            time.sleep(0.2)


def wait_for_port(address: str, process: subprocess.Popen[bytes], patience: float = 60) -> None:
    until = time.monotonic() + patience
    while time.monotonic() < until:
        if process.poll() is not None:
            raise KithkinError("The server did not start.", "Its log says why.")
        try:
            socket.create_connection(host_and_port(address), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise KithkinError(f"Nothing answers at {address}.", "Is the port free, and the address this machine's?")


def flwr(file: FederationFile, insecure: bool, *words: str) -> dict[str, Any]:
    """Flower's command line, towards this federation's server; its answer."""
    file.flower.mkdir(parents=True, exist_ok=True)
    secure = "insecure = true" if insecure else f"root-certificates = {json.dumps(str(file.ca))}"
    host, port = host_and_port(file.listen)
    near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    address = f"[{near}]:{port}" if ":" in near else f"{near}:{port}"
    config = f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\naddress = "{address}"\n{secure}\n'
    (file.flower / "config.toml").write_text(config)
    command = [program("flwr"), *words, "--format", "json"]
    done = subprocess.run(command, env=environment(file.flower), capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {}
    if done.returncode or not answer.get("success", False):
        why = plain(answer.get("error-message") or "".join((done.stderr or done.stdout).strip().splitlines()[-1:]))
        raise KithkinError(f"Flower's `{' '.join(words[:2])}` did not work: {why}.", f"Is `kithkin serve {file.path}` running?")
    return answer


APP = """[project]
name = "kithkin-federation"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "kithkin"

[tool.flwr.app.components]
serverapp = "federation.server:app"
clientapp = "federation.client:app"

[tool.flwr.app.config]
terms = {terms}
"""


def write_app(folder: Path, terms: Terms) -> Path:
    """The app that Flower sends around: two lines that name ours, and the terms."""
    app = folder / "app"
    shutil.rmtree(app, ignore_errors=True)
    (app / "federation").mkdir(parents=True)
    (app / "pyproject.toml").write_text(APP.format(terms=json.dumps(terms.as_text())))
    (app / "README.md").write_text("A federation of kithkin.\n")
    (app / "federation" / "__init__.py").write_text("")
    for side in ("server", "client"):
        (app / "federation" / f"{side}.py").write_text(f"from kithkin.network import {side}\n\napp = {side}.app\n")
    return app


def server_environment(file: FederationFile) -> dict[str, str]:
    return environment(file.flower, **{FILE: str(file.path), FOLDER: str(file.folder)})

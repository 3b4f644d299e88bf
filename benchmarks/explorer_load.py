"""Claim: the explorer's page answers within 1 s whatever its visitors compute, their memory comes back, downloads are right.

The real server, in a process of its own, over loopback: how long a slider's move takes for one visitor; twenty visitors with
heavy expressions, half of whom leave early, and the page asked for all the time; 64 ONNX downloads at once, each run by ONNX
Runtime; 150 connections that say nothing. Memory is the proportional share (Pss) of the server and all its processes.
Run: PYTHONPATH=src python benchmarks/explorer_load.py [seconds of load] [slider|load|onnx|idle …]
"""

import base64
import http.client
import itertools
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

HEAVY = (
    "0.4*max(x,0)-0.3*abs(x-1)+0.25*abs(x+0.7)",
    "tanh(x)*abs(x)",
    "max(x,0)-0.2*x+0.1*abs(x-{})",
    "0.3*abs(x-{})+0.2*max(x,{})",
)
VISITORS, DOWNLOADS, SOCKETS = 20, 64, 150
PATIENCE = 600  # seconds, of one who does not leave


class Server:
    """A running explorer."""

    def __init__(self):
        command = [sys.executable, "-m", "notsodeep.cli", "explore", "--no-browser", "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        told = self.process.stdout.readline()
        self.place = urlsplit(told.split()[3]).netloc
        described = json.loads(self.get("/_dash-dependencies")[1])
        self.callbacks = {each["output"].strip(".").split(".")[0]: each for each in described}

    def get(self, path, timeout=PATIENCE):
        return self._ask("GET", path, None, timeout)

    def post(self, callback, inputs, changed, given=(), timeout=PATIENCE):
        """What the page posts: (status, body); `TimeoutError` where the visitor has left."""
        return self._ask("POST", "/_dash-update-component", self.body(callback, inputs, changed, given), timeout)

    def body(self, callback, inputs, changed, given=()):
        asked = self.callbacks[callback]
        outputs = [
            dict(zip(("id", "property"), part.split("@")[0].rsplit(".", 1), strict=True))
            for part in asked["output"].strip(".").split("...")
        ]

        def values(kind, held):
            return [{"id": i["id"], "property": i["property"], "value": dict(held).get(i["id"])} for i in asked[kind]]

        return json.dumps(
            {
                "output": asked["output"],
                "outputs": outputs if asked["output"].startswith("..") else outputs[0],
                "inputs": values("inputs", inputs),
                "state": values("state", given),
                "changedPropIds": [changed],
            }
        )

    def _ask(self, method, path, body, timeout):
        line = http.client.HTTPConnection(self.place, timeout=timeout)
        try:
            line.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            answer = line.getresponse()
            return answer.status, answer.read()
        finally:
            line.close()

    def answer(self, query, timeout=PATIENCE, moving=False):
        return self.post("spectra", {"asked": state(query) | {"moving": moving}}, "asked.data", timeout=timeout)

    def gaps(self, query, timeout=PATIENCE):
        return self.post("gaps", {"asked": state(query)}, "asked.data", timeout=timeout)

    def processes(self):
        """The server and all that descend from it."""
        parents = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
        found = [self.process.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def memory(self):
        """MB, each page that processes share counted once."""
        total = 0
        for pid in self.processes():
            try:
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            except OSError:
                continue
            total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        return total / 1024

    def stop(self):
        """Ctrl-C: seconds until it is gone, and how many of its processes are left a second later."""
        family = self.processes()
        began = time.perf_counter()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        took = time.perf_counter() - began
        time.sleep(1.0)
        return took, sum(running(pid) for pid in family)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def state(query):
    return {"query": query, "wrong": {}}


@contextmanager
def asking_for_the_page(server, paths=("/", "/_dash-layout", "/_dash-dependencies")):
    """Ask for the page again and again, as somebody who has just come: seconds of each answer."""
    took, done = [], threading.Event()

    def ask():
        for path in itertools.cycle(paths):
            if done.wait(0.1):
                return
            began = time.perf_counter()
            status, _ = server.get(path, timeout=60)
            took.append(time.perf_counter() - began)
            assert status == 200, status

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield took
    finally:
        done.set()
        thread.join()


def slider(server):
    """How long the moves of a slider take, one after another, and its rests: σ_a² of three activations and of an expression."""
    names, families = ("relu", "tanh", "elu", "x*tanh(x)"), ("matched", "fitted:2", "quadratic")
    for name, family, data in itertools.product(names, families, ("mixture&n=500", "mixture&n=1000&p=1000", "digits&n=1000")):
        took = {True: [], False: []}
        for k in range(31):
            query = f"?activation={quote(name)}&family={family}&data={data}&var_a={0.11 + 0.002 * k:.3f}"
            for moving in (True, False) if k % 10 == 0 else (True,):
                began = time.perf_counter()
                status, body = server.answer(query, moving=moving)
                took[moving].append(time.perf_counter() - began)
                assert status == 200, status
                assert b"figure" in body, body[:300]
        moves, rests = (sorted(1e3 * each for each in times[1:]) for times in took.values())
        print(
            f"slider, {name:9} {family:9} {data:21}: moves median {statistics.median(moves):6.1f} ms, "
            f"worst {moves[-1]:6.1f} ms; rests median {statistics.median(rests):6.1f} ms"
        )


def load(server, seconds):
    """Twenty visitors; the odd ones leave after two to ten seconds."""
    for query in ("", "?data=digits&n=200"):
        server.answer(query)
        server.gaps(query)
    before = settled(server)
    end, counts, peak = time.monotonic() + seconds, {}, [before]

    def visit(number):
        draw = random.Random(number)
        while time.monotonic() < end:
            text = draw.choice(HEAVY).format(*(round(draw.uniform(0.1, 2.0), 2) for _ in range(2)))
            query = f"?data=digits&n={draw.choice((200, 300, 500))}&activation={quote(text)}&var_a=0.1"
            patience = draw.uniform(2.0, 10.0) if number % 2 else PATIENCE
            try:
                status, body = (server.gaps if draw.random() < 0.3 else server.answer)(query, patience)
                told = b"was stopped" in body
                what = "stopped at its budget, and told" if told else "answered" if status == 200 else f"status {status}"
            except TimeoutError:
                what = "left early"
            counts[what] = counts.get(what, 0) + 1
            peak[0] = max(peak[0], server.memory())

    with asking_for_the_page(server) as took, ThreadPoolExecutor(VISITORS) as visitors:
        list(visitors.map(visit, range(VISITORS)))
    print(f"load, {VISITORS} visitors, {seconds:.0f} s: {', '.join(f'{n} {what}' for what, n in counts.items())}")
    print(f"  the page: {len(took)} times, median {1e3 * statistics.median(took):.0f} ms, worst {max(took):.2f} s")
    after = settled(server)
    print(f"  memory: {before:.0f} MB before, {peak[0]:.0f} at most, {after:.0f} after ({after / before - 1:+.0%})")


def settled(server, seconds=60, step=2.0):
    """MB, when two looks a little apart agree, or after so many seconds."""
    seen = [server.memory()]
    for _ in range(int(seconds / step)):
        time.sleep(step)
        seen.append(server.memory())
        if len(seen) > 10 and max(seen[-5:]) < 1.01 * min(seen[-5:]):
            break
    return seen[-1]


def onnx(server):
    """All at once, each of a state of its own; the network of each file is run."""
    import numpy as np
    import onnxruntime

    def take(k):
        query = f"?n=200&activation={('relu', 'tanh', 'x*tanh(x)', 'erf')[k % 4]}&var_a={0.1 + 0.002 * k:.3f}"
        clicks = {"get-onnx": 1, "get-source": 0, "get-png": 0}
        _, body = server.post("file", clicks, "get-onnx.n_clicks", {"state": state(query)}.items())
        response = json.loads(body)["response"]
        if "file" not in response:
            return response["download-message"]["children"]
        return base64.b64decode(response["file"]["data"]["content"])

    def judged(content):
        if isinstance(content, str):
            return content
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        (given,) = session.get_inputs()
        (out,) = session.run(None, {given.name: np.ones((3, given.shape[1]), np.float32)})
        return "right" if out.shape[0] == 3 and np.isfinite(out).all() else "wrong numbers"

    began = time.perf_counter()
    with asking_for_the_page(server) as took, ThreadPoolExecutor(DOWNLOADS) as visitors:
        found = list(visitors.map(take, range(DOWNLOADS)))
    seconds = time.perf_counter() - began
    verdicts = [judged(content) for content in found]
    counts = {what: verdicts.count(what) for what in verdicts}
    print(f"ONNX, {DOWNLOADS} at once: {counts} in {seconds:.1f} s; the page: worst {max(took):.2f} s")


def idle(server):
    """Connections that say nothing."""
    host, port = server.place.split(":")
    silent = [socket.create_connection((host, int(port)), timeout=10) for _ in range(SOCKETS)]
    took = []
    try:
        for _ in range(10):
            began = time.perf_counter()
            status, _ = server.get("/", timeout=60)
            took.append(time.perf_counter() - began)
            assert status == 200, status
    finally:
        for one in silent:
            one.close()
    print(f"{SOCKETS} idle sockets: the page {len(took)} times, worst {max(took):.2f} s")


def main():
    numbers = [float(word) for word in sys.argv[1:] if word.replace(".", "").isdigit()]
    asked = [word for word in sys.argv[1:] if not word.replace(".", "").isdigit()] or ["slider", "load", "onnx", "idle"]
    parts = {"slider": slider, "onnx": onnx, "idle": idle, "load": lambda server: load(server, (*numbers, 60.0)[0])}
    server = Server()
    try:
        for name in asked:
            parts[name](server)
    finally:
        took, left = server.stop()
    print(f"Ctrl-C: gone after {took:.2f} s, {left} processes left")


if __name__ == "__main__":
    main()

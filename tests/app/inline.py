"""A pool without processes, for tests of what is asked of it."""

from concurrent.futures import Future


class Inline:
    """Computes at once, where it is asked, and remembers what it was asked for."""

    def __init__(self, *_, **__):
        self.calls, self.closed = [], False

    def run(self, _key, work, *arguments, **_):
        self.calls.append((work, arguments))
        return work(*arguments)

    def when_idle(self, _key, work, *arguments, **_):
        done = Future()
        done.set_result(work(*arguments))
        return done

    def close(self):
        self.closed = True

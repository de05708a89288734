"""A scenario is one thing that an application may rely on. Files register
theirs; run() performs them and prints one line of JSON each."""

import asyncio
import concurrent.futures
import inspect
import json
import os
import re
import socket
import sys
import time
import traceback

# Names below the domain of the tests are this machine.
_domain = os.environ.get("SCENARIO_DOMAIN", "localhost")
_getaddrinfo = socket.getaddrinfo


def _lookup(host, *args, **kwargs):
    if isinstance(host, str) and (host == _domain or host.endswith(("." + _domain, ".localhost"))):
        host = "127.0.0.1"
    return _getaddrinfo(host, *args, **kwargs)


socket.getaddrinfo = _lookup

_section = ""
_all = []


def about(name):
    global _section
    _section = name


def scenario(name):
    def register(f):
        _all.append((_section, name, f))
        return f

    return register


class Ends:
    """what a scenario leaves to be cleaned up"""

    def __init__(self):
        self.list = []

    def after(self, f):
        self.list.append(f)


def until(f, what="it", seconds=20):
    end = time.monotonic() + seconds
    while True:
        v = f()
        if v:
            return v
        if time.monotonic() > end:
            raise AssertionError(f"{what} has not happened in {seconds} s")
        time.sleep(0.05)


async def until_async(f, what="it", seconds=20):
    end = time.monotonic() + seconds
    while True:
        v = f()
        if inspect.isawaitable(v):
            v = await v
        if v:
            return v
        if time.monotonic() > end:
            raise AssertionError(f"{what} has not happened in {seconds} s")
        await asyncio.sleep(0.05)


def fails(error, f, *args, **kwargs):
    try:
        got = f(*args, **kwargs)
    except error as err:
        return err
    raise AssertionError(f"no error, but {got!r}")


async def fails_async(error, awaitable):
    try:
        got = await awaitable
    except error as err:
        return err
    raise AssertionError(f"no error, but {got!r}")


def _say(section, name, error, begun):
    line = {"section": section, "name": name, "ok": not error, "error": error, "ms": int((time.monotonic() - begun) * 1000)}
    sys.stdout.write(json.dumps(line) + "\n")  # at once: there are several threads
    sys.stdout.flush()


def _text(err):
    return f"{type(err).__name__}: {err}\n" + "".join(traceback.format_tb(err.__traceback__)[-2:])


def _wanted():
    only = os.environ.get("SCENARIO_ONLY")
    return [s for s in _all if not only or re.search(only, f"{s[0]}: {s[1]}")]


def run(width=3):
    def one(s):
        section, name, f = s
        ends, begun, error = Ends(), time.monotonic(), ""
        try:
            f(ends)
        except BaseException as err:
            error = _text(err)
        for end in reversed(ends.list):
            try:
                end()
            except Exception as err:
                error = error or "clean-up: " + _text(err)
        _say(section, name, error, begun)

    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        list(pool.map(one, _wanted()))
    sys.stdout.flush()
    os._exit(0)


def run_async(width=3):
    async def main():
        slots = asyncio.Semaphore(width)

        async def one(section, name, f):
            async with slots:
                ends, begun, error = Ends(), time.monotonic(), ""
                try:
                    await asyncio.wait_for(f(ends), 90)
                except BaseException as err:
                    error = _text(err)
                for end in reversed(ends.list):
                    try:
                        await end()
                    except Exception as err:
                        error = error or "clean-up: " + _text(err)
                _say(section, name, error, begun)

        await asyncio.gather(*(one(*s) for s in _wanted()))

    asyncio.run(main())
    sys.stdout.flush()
    os._exit(0)

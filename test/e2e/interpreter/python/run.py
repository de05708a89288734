"""Scenarios of the code interpreter with the packages for Python, one line of
JSON each. The sandbox is shared by all scenarios but the last ones."""
import asyncio
import json
import os
import re
import threading
import time
import traceback

from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

ALL = []


def scenario(name):
    return lambda f: ALL.append((name, f)) or f


def fails(kind, f):
    try:
        f()
    except kind as e:
        return e
    raise AssertionError("no error")


def out(x):
    return "".join(x.logs.stdout)


@scenario("a result and what stays defined")
def _(s):
    s.run_code("basic = 1")
    x = s.run_code("basic += 1; basic")
    assert x.text == "2" and x.error is None and x.results[0].is_main_result, x


@scenario("output, callbacks and errors")
def _(s):
    seen, errors, results = [], [], []
    x = s.run_code("import sys\nprint('é😀')\nprint('e', file=sys.stderr)\ndisplay('d')\n1/0",
                   on_stdout=lambda m: seen.append((m.line, m.error)), on_error=errors.append, on_result=results.append)
    assert x.logs.stdout == ["é😀\n"] and x.logs.stderr == ["e\n"] and seen == [("é😀\n", False)], x
    assert x.error.name == errors[0].name == "ZeroDivisionError" and "1/0" in x.error.traceback, x.error
    assert [r.text for r in results] == ["d"]


@scenario("execution counts")
def _(s):
    n = s.run_code("1").execution_count
    assert s.run_code("1").execution_count == n + 1


@scenario("variables of sandbox and execution")
def _(s):
    code = "import os; [os.getenv(k) for k in ('FROM_SANDBOX', 'OWN')]"
    assert s.run_code(code, envs={"OWN": "x"}).text == "['yes', 'x']"
    assert s.run_code(code).text == "['yes', None]"


@scenario("contexts")
def _(s):
    c = s.create_code_context(cwd="/tmp")
    assert (c.language, c.cwd) == ("python", "/tmp"), c
    assert s.run_code("import os; mine = 1; os.getcwd()", context=c).text == "/tmp"
    assert s.run_code("mine").error.name == "NameError"
    assert c.id in [d.id for d in s.list_code_contexts()]
    s.restart_code_context(c)
    assert s.run_code("mine", context=c).error.name == "NameError"
    s.remove_code_context(c)
    fails(NotFoundException, lambda: s.run_code("1", context=c))


@scenario("languages")
def _(s):
    assert s.run_code("const x: number = 6; x * 7", language="ts").text == "42"
    assert s.run_code("[1, 2].map((v) => v * 2)", language="js").text == "[ 2, 4 ]"
    assert out(s.run_code("echo $((6 * 7))", language="bash")) == "42\n"
    fails(SandboxException, lambda: s.run_code("1", language="cobol"))


@scenario("a timeout interrupts")
def _(s):
    s.run_code("kept = 'kept'")
    fails(TimeoutException, lambda: s.run_code("while True: pass", timeout=1))
    begun = time.time()
    assert s.run_code("kept").text == "kept" and time.time() - begun < 30


@scenario("data frames")
def _(s):
    r = s.run_code("import pandas as pd; pd.DataFrame({'a': [1, 2], 'b': ['x', None]})").results[0]
    assert r.data == {"a": [1, 2], "b": ["x", None]} and "<table" in r.html and r.text, r


def chart(s, code):
    x = s.run_code("import matplotlib.pyplot as plt; plt.close('all')\n" + code + "\nplt.show()")
    assert x.error is None and x.results[-1].png, x
    return x.results[-1].chart


@scenario("charts of every type, parsed by the client")
def _(s):
    c = chart(s, "plt.plot([1, 2], [3, 4], label='l'); plt.title('T'); plt.xlabel('t (s)')")
    assert (type(c).__name__, c.title, c.x_unit, c.elements[0].points) == ("LineChart", "T", "s", [(1, 3), (2, 4)]), vars(c)
    c = chart(s, "plt.scatter([1], [2], label='d')")
    assert (type(c).__name__, c.elements[0].label) == ("ScatterChart", "d"), vars(c)
    c = chart(s, "plt.bar(['a', 'b'], [1, 2])")
    assert (type(c).__name__, [(e.label, e.value) for e in c.elements]) == ("BarChart", [("a", 1), ("b", 2)]), vars(c)
    c = chart(s, "plt.pie([1, 1], labels=['a', 'b'])")
    assert (type(c).__name__, [round(e.angle) for e in c.elements]) == ("PieChart", [180, 180]), vars(c)
    c = chart(s, "plt.boxplot([[1, 2, 3]])")
    assert (type(c).__name__, c.elements[0].median) == ("BoxAndWhiskerChart", 2), vars(c)
    c = chart(s, "f, a = plt.subplots(1, 2); a[0].plot([1], [1]); a[1].bar(['x'], [1])")
    assert (type(c).__name__, [type(e).__name__ for e in c.elements]) == ("SuperChart", ["LineChart", "BarChart"]), vars(c)
    assert chart(s, "plt.imshow([[1]])").type.value == "unknown"


@scenario("formats of a result")
def _(s):
    x = s.run_code("from IPython.display import HTML, Latex, display\ndisplay(Latex('$x$')); HTML('<b>')")
    assert x.results[0].latex == "$x$" and x.results[1].html == "<b>" and "html" in list(x.results[1].formats()), x.results
    assert x.to_json()


@scenario("a kernel that dies")
def _(s):
    c = s.create_code_context()
    assert s.run_code("import os; os._exit(1)", context=c).error.name == "KernelDied"
    assert s.run_code("1", context=c).text == "1"
    s.remove_code_context(c)


@scenario("executions at the same time, from threads")
def _(s):
    s.run_code("order = []")
    work = [threading.Thread(target=s.run_code, args=("import time; order.append(1); time.sleep(0.05); order.append(-1)",)) for _ in range(3)]
    for w in work:
        w.start()
    for w in work:
        w.join()
    assert s.run_code("order == [1, -1] * 3").text == "True"


@scenario("the asynchronous client")
def _(s):
    async def main():
        a = await AsyncSandbox.connect(s.sandbox_id)
        seen = []

        async def line(m):
            seen.append(m.line)

        x = await a.run_code("print('async'); await __import__('asyncio').sleep(0.01); 3", on_stdout=line)
        assert x.text == "3" and seen == ["async\n"], x
        one, two = await a.create_code_context(), await a.create_code_context(language="js")
        x, y = await asyncio.gather(a.run_code("1 + 1", context=one), a.run_code("1 + 2", context=two))
        assert (x.text, y.text) == ("2", "3")
        try:
            await a.run_code("import time; time.sleep(100)", context=one, timeout=1)
            raise AssertionError("no error")
        except TimeoutException:
            pass
        assert (await a.run_code("5", context=one)).text == "5"
        await a.remove_code_context(one)
        await a.remove_code_context(two.id)
        assert {c.language for c in await a.list_code_contexts()} >= {"python", "javascript"}

    asyncio.run(main())


@scenario("a sandbox that is killed while code runs")
def _(s):
    t = Sandbox.create(timeout=120)
    fails(TimeoutException, lambda: t.run_code("import time; print('up'); time.sleep(100)", on_stdout=lambda _: t.kill()))


only = re.compile(os.environ.get("SCENARIO_ONLY", ""))
box = Sandbox.create(timeout=900, envs={"FROM_SANDBOX": "yes"})
try:
    for name, f in ALL:
        if not only.search(name):
            continue
        begun, error = time.time(), ""
        try:
            f(box)
        except BaseException:
            error = traceback.format_exc()
        print(json.dumps({"name": name, "error": error, "ms": int((time.time() - begun) * 1000)}), flush=True)
finally:
    box.kill()

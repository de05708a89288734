# The Python kernel. It reads commands from the named pipe in, one JSON object per
# line, and writes events to the named pipe out. User code prints to descriptors
# 1 and 2, which the guest reads.
import asyncio
import base64
import json
import os
import re
import signal
import sys
import threading
import types

HERE = os.path.dirname(os.path.abspath(__file__))
MOST = 12 << 20  # bytes of an event; the guest accepts no more
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Channel:
    """The two pipes. Only the process that opened them may use them."""

    def __init__(self):
        self.commands = os.open(HERE + "/in", os.O_RDONLY | os.O_CLOEXEC)
        self.events = os.open(HERE + "/out", os.O_WRONLY | os.O_CLOEXEC)
        self.lock = threading.Lock()
        self.pid = os.getpid()
        self.rest = b""

    def send(self, event):
        if os.getpid() != self.pid:
            return  # a process forked by user code
        line = json.dumps(event, default=str).encode("utf-8", "backslashreplace") + b"\n"
        if len(line) > MOST:
            sys.stderr.write("a result of %d bytes is left out: it is over %d\n" % (len(line), MOST))
            return
        with self.lock:
            view = memoryview(line)
            while view:
                view = view[os.write(self.events, view):]

    async def receive(self):
        """Returns the next command, None at the end."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self.rest:
            ready = loop.create_future()
            loop.add_reader(self.commands, lambda: ready.done() or ready.set_result(None))
            try:
                await ready
            finally:
                loop.remove_reader(self.commands)
            piece = os.read(self.commands, 1 << 20)
            if not piece:
                return None
            self.rest += piece
        line, self.rest = self.rest.split(b"\n", 1)
        return json.loads(line)


channel = Channel()


def clean(value):
    """Converts a value to one that every JSON parser accepts."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [clean(v) for v in value]
    return value


def send_result(data, main):
    data = {k: clean(v) for k, v in data.items() if v is not None}
    text = data.get("text/plain")
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        data["text/plain"] = text[1:-1]
    if data:
        channel.send({"event": "result", "main": main, "data": data})


def send_error(kind, value, lines):
    try:
        text = str(value)
    except Exception as e:
        text = "<%s has no text: %s>" % (kind.__name__, type(e).__name__)
    channel.send({"event": "error", "name": kind.__name__, "value": ANSI.sub("", text),
                  "traceback": ANSI.sub("", "\n".join(lines))})


class NoInput(RuntimeError):
    pass


NoInput.__name__ = "StdinNotImplementedError"


def no_input(prompt="", *_):
    raise NoInput("nobody can answer: code here has no standard input")


def frame_data(frame):
    """Returns the columns of a data frame as lists, with times as text."""
    if frame.size > 100_000:
        return None
    cols = json.loads(frame.to_json(orient="split", date_format="iso"))
    return {str(name): [row[i] for row in cols["data"]] for i, name in enumerate(cols["columns"])}


chart_source = open(HERE + "/chart.py").read()
chart_module = None


def figure_data(figure):
    global chart_module
    if chart_module is None:
        chart_module = types.ModuleType("engi_chart")
        exec(compile(chart_source, "<chart>", "exec"), chart_module.__dict__)
    return chart_module.describe(figure)


class ImageHook:
    """Displays images that user code shows or saves with PIL."""

    def find_spec(self, name, path=None, target=None):
        if name != "PIL.Image":
            return None
        sys.meta_path.remove(self)
        import importlib.util
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            self.patch(module.Image)

        spec.loader.exec_module = exec_module
        return spec

    def patch(self, image):
        save = image.save

        def saved(self, fp, *args, **kw):
            save(self, fp, *args, **kw)
            if isinstance(fp, (str, os.PathLike)) and sys._getframe(1).f_globals.get("__name__") == "__main__":
                display(self)

        image.save = saved
        image.show = lambda self, *args, **kw: display(self)


# ---- with IPython


def ipython_shell():
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.formatters import BaseFormatter
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.core.profiledir import ProfileDir
    from traitlets import ObjectName, Type, Unicode
    from traitlets.config import Config

    class Hook(DisplayHook):
        def __call__(self, result=None):
            self.check_for_underscore()
            if result is None or self.quiet():
                return
            data, _ = self.compute_format_data(result)
            self.update_user_ns(result)
            self.fill_exec_result(result)
            if data:
                send_result(data, True)

    class Publisher(DisplayPublisher):
        def publish(self, data, metadata=None, *args, update=False, **kw):
            if not update:
                send_result(data, False)

        def clear_output(self, wait=False):
            pass

    class Data(BaseFormatter):
        format_type = Unicode("e2b/data")
        print_method = ObjectName("_repr_e2b_data_")
        _return_type = dict

    class Chart(BaseFormatter):
        format_type = Unicode("e2b/chart")
        print_method = ObjectName("_repr_e2b_chart_")
        _return_type = dict

        def __call__(self, value):
            # Not registered for the type, because the inline backend removes all
            # other formatters of figures.
            module = sys.modules.get("matplotlib.figure")
            if module is None or not isinstance(value, module.Figure):
                return None
            try:
                return figure_data(value)
            except Exception:  # unknown kind of figure; its image is shown anyway
                return {"type": "unknown", "title": None, "elements": []}

    class Shell(InteractiveShell):
        displayhook_class = Type(Hook)
        display_pub_class = Type(Publisher)

        def init_create_namespaces(self, user_module=None, user_ns=None):
            super().init_create_namespaces(user_module, user_ns)
            sys.modules["__main__"] = self.user_module

        def system(self, cmd):
            sys.stdout.flush()
            return self.system_raw(cmd)

        def ask_exit(self):
            kernel.over = True

        def enable_gui(self, gui=None):
            pass

        def _showtraceback(self, etype, evalue, stb):
            send_error(etype, evalue, stb)

    os.makedirs(HERE + "/tmp/profile", exist_ok=True)
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.Completer.use_jedi = False
    main = types.ModuleType("__main__", "Automatically created module for IPython interactive environment")
    shell = Shell.instance(config=config, user_module=main, ipython_dir=HERE + "/tmp",
                           profile_dir=ProfileDir(location=HERE + "/tmp/profile"))
    shell.db = {}  # its directory is removed
    formatters = shell.display_formatter.formatters
    data, chart = Data(parent=shell.display_formatter), Chart(parent=shell.display_formatter)
    data.for_type_by_name("pandas", "DataFrame", frame_data)
    data.for_type_by_name("pandas.core.frame", "DataFrame", frame_data)
    formatters["e2b/data"], formatters["e2b/chart"] = data, chart
    if hasattr(shell, "_last_input_line"):
        shell._last_input_line = ""
    return shell


class WithIPython:
    def __init__(self):
        self.shell = ipython_shell()
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        self.shell.run_cell("1", store_history=False, silent=True)  # warm up

    def is_async(self, code):
        shell = self.shell
        try:
            self.cell, self.failed = shell.transform_cell(code), None
        except Exception:
            self.cell, self.failed = code, sys.exc_info()
        return shell.should_run_async(code, transformed_cell=self.cell, preprocessing_exc_tuple=self.failed)

    def run(self, code, count):
        self.shell.execution_count = count
        self.shell.run_cell(code, store_history=True)

    async def run_async(self, code, count):
        shell = self.shell
        shell.execution_count = count
        result = await shell.run_cell_async(code, store_history=True, transformed_cell=self.cell,
                                            preprocessing_exc_tuple=self.failed)
        shell.events.trigger("post_execute")
        shell.events.trigger("post_run_cell", result)


# ---- without IPython


class Plain:
    MIMES = {"_repr_html_": "text/html", "_repr_markdown_": "text/markdown", "_repr_svg_": "image/svg+xml",
             "_repr_png_": "image/png", "_repr_jpeg_": "image/jpeg", "_repr_pdf_": "application/pdf",
             "_repr_latex_": "text/latex", "_repr_json_": "application/json",
             "_repr_javascript_": "application/javascript"}

    def __init__(self):
        import builtins
        self.main = types.ModuleType("__main__")
        self.main.__dict__.update(display=self.display, __builtins__=builtins)
        sys.modules["__main__"] = self.main

    def bundle(self, value):
        data = {"text/plain": repr(value)}
        if not isinstance(value, type):
            for name, mime in self.MIMES.items():
                show = getattr(value, name, None)
                if callable(show):
                    try:
                        data[mime] = show()
                    except Exception:
                        continue  # the text representation remains
                    if isinstance(data[mime], tuple):
                        data[mime] = data[mime][0]
        return data

    def display(self, *values, raw=False):
        for v in values:
            send_result(v if raw else self.bundle(v), False)

    def compile(self, code, count):
        import ast
        import inspect
        import linecache
        import textwrap
        name = "<cell %d>" % count
        code = textwrap.dedent(code)
        if code[:1] in (" ", "\t"):
            code = "if True:\n" + code
        try:
            tree = ast.parse(code, name)
        except SyntaxError:
            shell = re.sub(r"(?m)^([ \t]*)!(.*)$", lambda m: m[1] + "__import__('subprocess').call(%r, shell=True)" % m[2], code)
            if shell == code:
                raise
            tree, code = ast.parse(shell, name), shell
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            last = ast.Expression(tree.body.pop().value)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self.parts = [(compile(part, name, mode, flags, dont_inherit=True), mode)
                      for part, mode in ((tree, "exec"), (last, "eval")) if part is not None]
        return any(part.co_flags & inspect.CO_COROUTINE for part, _ in self.parts)

    def is_async(self, code):
        self.error = None
        try:
            return self.compile(code, kernel.count)
        except (SyntaxError, ValueError, OverflowError):
            self.error, self.parts = sys.exc_info(), []
            return False

    def report(self, kind, value, trace):
        import traceback
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        send_error(kind, value, ["".join(traceback.format_exception(kind, value, trace)).rstrip("\n")])

    def result(self, value, mode):
        if mode == "eval" and value is not None:
            self.main.__dict__["_"] = value
            send_result(self.bundle(value), True)

    def run(self, code, count):
        try:
            for part, mode in self.parts:
                self.result(eval(part, self.main.__dict__), mode)
        except BaseException:
            self.error = sys.exc_info()
        if self.error:
            self.report(*self.error)

    async def run_async(self, code, count):
        import inspect
        try:
            for part, mode in self.parts:
                value = eval(part, self.main.__dict__)
                if part.co_flags & inspect.CO_COROUTINE and inspect.iscoroutine(value):
                    value = await value
                self.result(value, mode)
        except BaseException:
            self.report(*sys.exc_info())


# ---- both


class Kernel:
    def __init__(self):
        self.over = False
        self.count = 0
        self.task = None  # of an asynchronous cell
        self.busy = False

    def interrupt(self, number, frame):
        if not self.busy or os.getpid() != channel.pid:
            return
        task = self.task
        if task is not None and (frame is None or frame.f_code.co_filename.startswith(LOOP)):
            # The event loop is waiting, and would continue to after this handler.
            task.get_loop().call_soon_threadsafe(task.cancel)
            return
        raise KeyboardInterrupt

    async def cell(self, code):
        try:
            if self.shell.is_async(code):
                self.task = asyncio.ensure_future(self.shell.run_async(code, self.count))
                try:
                    await self.task
                except asyncio.CancelledError:
                    send_error(KeyboardInterrupt, KeyboardInterrupt(), ["KeyboardInterrupt"])
            else:
                self.shell.run(code, self.count)
        except KeyboardInterrupt as e:
            send_error(KeyboardInterrupt, e, ["KeyboardInterrupt"])
        finally:
            self.task = None

    async def execute(self, c):
        self.count = c["count"]
        environ(c.get("env"))
        own = c.get("own") or {}
        before = {k: os.environ.get(k) for k in own}
        environ(own)
        stop = threading.Event()
        threading.Thread(target=flusher, args=(stop,), daemon=True).start()
        signal.signal(signal.SIGINT, self.interrupt)  # user code may have set its own
        self.busy = True
        try:
            await self.cell(c["code"])
        finally:
            self.busy = False
            stop.set()
            environ(before)
            flush()

    async def serve(self):
        channel.send({"event": "ready"})
        while not self.over:
            c = await channel.receive()
            if c is None:
                return
            try:
                await self.execute(c)
            except KeyboardInterrupt:
                pass  # it came just after the end of the cell
            except Exception as e:
                send_error(type(e), e, ["the kernel itself failed"])
            if os.getpid() != channel.pid:
                os._exit(0)
            channel.send({"event": "end", "id": c["id"], "over": self.over})


LOOP = (os.path.dirname(asyncio.__file__), __import__("selectors").__file__)


def environ(changes):
    for k, v in (changes or {}).items():
        if v is None:
            os.environ.pop(k, None)
        else:
            os.environ[k] = v


def flush():
    for s in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            s.flush()
        except Exception:
            pass  # user code has replaced or closed it


def flusher(stop):
    """Flushes incomplete lines while a cell runs."""
    while not stop.wait(0.1):
        flush()


kernel = Kernel()


def main():
    import builtins
    for s in (sys.stdout, sys.stderr):
        s.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    signal.signal(signal.SIGINT, kernel.interrupt)  # also before the first cell
    sys.argv[:] = [""]
    sys.path[0] = ""
    builtins.input = no_input
    sys.meta_path.insert(0, ImageHook())
    os.register_at_fork(before=flush)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        import IPython  # noqa: F401
        kernel.shell = WithIPython()
    except ImportError:
        kernel.shell = Plain()
    global display
    if isinstance(kernel.shell, Plain):
        display = kernel.shell.display
    else:
        from IPython.display import display
    task = loop.create_task(kernel.serve())
    while not task.done():
        try:
            loop.run_until_complete(task)
        except (RuntimeError, KeyboardInterrupt):
            if task.done():
                break  # otherwise user code has stopped the loop: continue
    flush()


main()

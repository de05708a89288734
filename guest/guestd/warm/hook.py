# Runs as sitecustomize in every Python that engi starts. It leaves no trace
# for the program: not in sys.path, sys.modules, sys.path_hooks or os.environ.
def _engi():
    import os, sys
    here = os.path.dirname(__file__)
    env = os.environ

    def forget():
        while here in sys.path:
            sys.path.remove(here)
        sys.path_importer_cache.pop(here, None)
        env.pop("ENGI_HOOK", None)
        path = env.pop("ENGI_PYTHONPATH", None)
        if path is None:
            env.pop("PYTHONPATH", None)
        else:
            env["PYTHONPATH"] = path

    waits = env.get("ENGI_HOOK") == "wait"
    forget()

    # The template's own sitecustomize, which this one was found instead of.
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize
    except ImportError as e:
        if e.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)

    # After site, Python asks the path hooks whether the file to run is an
    # importable archive: the last moment before it opens the file, with
    # everything else set up. That is where a warm interpreter waits. Ours
    # stands in the place of the first hook, because the list must not change
    # its length while Python goes through it.
    first = sys.path_hooks[0]
    file = os.path.abspath(sys.argv[0])

    def last(path):
        if os.path.abspath(path) != file:
            return first(path)
        sys.path_hooks[:] = [first if h is last else h for h in sys.path_hooks]
        if sys.modules.get("sitecustomize") is ours:
            del sys.modules["sitecustomize"]
        if waits:
            go = os.open(here + "/go", os.O_RDONLY | os.O_CLOEXEC)
            ready = os.open(here + "/ready", os.O_WRONLY | os.O_CLOEXEC)
            os.write(ready, b"r")
            os.close(ready)
            data = b""
            while True:
                piece = os.read(go, 65536)
                if not piece:
                    break
                data += piece
            os.close(go)
            if not data.endswith(b"\0\0"):
                os._exit(1)  # the guest gave this interpreter up
            args, vars = data[:-2].split(b"\0\0", 1)
            sys.argv[1:] = [os.fsdecode(a) for a in args.split(b"\0")[1:]]
            if hasattr(sys, "orig_argv"):
                sys.orig_argv[2:] = sys.argv[1:]
            for v in vars.split(b"\0")[1:]:
                k, _, v = v.partition(b"=")
                os.environb[k] = v
        # What the interpreter itself consists of never becomes garbage. Python
        # looks through it for garbage all the same when it ends, which takes
        # longer than a small program; only gc.get_objects and its kin can tell
        # that it does not.
        import gc
        gc.freeze()
        # Output appears line by line, as in a terminal, though it is a pipe.
        if sys.stdout is not None and not env.get("PYTHONUNBUFFERED"):
            sys.stdout.reconfigure(line_buffering=True)
        return first(path)

    sys.path_hooks[0] = last


_engi()
del _engi

# Runs as sitecustomize in every Python that engi starts. It leaves no trace in
# sys.path, sys.modules, sys.path_hooks or os.environ.
def _engi():
    import os, sys
    here = os.path.dirname(__file__)
    env = os.environ

    def forget():
        while here in sys.path:
            sys.path.remove(here)
        sys.path_importer_cache.pop(here, None)
        env.pop("ENGI_PRELOAD", None)
        path = env.pop("ENGI_PYTHONPATH", None)
        if path is None:
            env.pop("PYTHONPATH", None)
        else:
            env["PYTHONPATH"] = path

    waits = env.get("ENGI_PRELOAD") == "wait"
    forget()

    # Import the template's own sitecustomize, which this one shadows.
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize
    except ImportError as e:
        if e.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)

    # After site, with everything set up, Python asks the path hooks whether the
    # file to run is an importable archive; then it opens the file. In between a
    # warm interpreter waits. The hook replaces the first one, because the list
    # must keep its length while Python iterates over it.
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
                os._exit(1)  # the guest has discarded this interpreter
            args, vars = data[:-2].split(b"\0\0", 1)
            sys.argv[1:] = [os.fsdecode(a) for a in args.split(b"\0")[1:]]
            if hasattr(sys, "orig_argv"):
                sys.orig_argv[2:] = sys.argv[1:]
            for v in vars.split(b"\0")[1:]:
                k, _, v = v.partition(b"=")
                os.environb[k] = v
        # The interpreter's own objects never become garbage, but Python looks
        # through them when it ends, which takes longer than a small program.
        # Only gc.get_objects and the like show the difference.
        import gc
        gc.freeze()
        # Print line by line, as to a terminal, although stdout is a pipe.
        if sys.stdout is not None and not env.get("PYTHONUNBUFFERED"):
            sys.stdout.reconfigure(line_buffering=True)
        return first(path)

    sys.path_hooks[0] = last


_engi()
del _engi

"""Serves the files in frontend/ on port 8000. Add the API of the app in do_GET and do_POST."""

import functools
import http.server
import pathlib

FRONTEND = pathlib.Path(__file__).resolve().parent.parent / "frontend"


class Handler(http.server.SimpleHTTPRequestHandler):
    pass


if __name__ == "__main__":
    handler = functools.partial(Handler, directory=str(FRONTEND))
    http.server.ThreadingHTTPServer(("0.0.0.0", 8000), handler).serve_forever()

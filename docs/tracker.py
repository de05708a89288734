"""An issue tracker for one to try things with: python3 tracker.py ADDRESS PORT

It wants the key that is in TRACKER_KEY, and says who asked for what.
"""

import http.server
import json
import os
import sys

KEY = os.environ["TRACKER_KEY"]
ISSUES = [
    {"id": 1, "title": "The login fails on Mondays", "state": "open"},
    {"id": 2, "title": "Prices have too many digits", "state": "doing"},
]


class Tracker(http.server.BaseHTTPRequestHandler):
    def handle_one(self):
        if self.headers.get("Authorization") != "Bearer " + KEY:
            return 401, {"error": "the key is wrong"}
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.command == "GET" and self.path == "/issues":
            return 200, ISSUES
        if self.command == "POST" and self.path == "/issues" and body.get("title"):
            ISSUES.append({"id": len(ISSUES) + 1, "title": str(body["title"])[:200], "state": "open"})
            return 201, ISSUES[-1]
        for issue in ISSUES:
            if self.command == "PATCH" and self.path == f"/issues/{issue['id']}" and body.get("state") in ("open", "doing", "done"):
                issue["state"] = body["state"]
                return 200, issue
        return 404, {"error": "there is no such issue, or nothing to do with it"}

    def do_GET(self):
        status, answer = self.handle_one()
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_PATCH = do_GET


http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Tracker).serve_forever()

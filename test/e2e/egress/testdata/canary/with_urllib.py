import json, os, sys, time, urllib.request
n = 0
for site in json.load(open("/workspace/sites.json")):
    headers = {"X-Key": os.environ[site["env"]]} if site["env"] else {}
    with urllib.request.urlopen(urllib.request.Request(site["url"], headers=headers), timeout=60) as r:
        n += r.read().startswith(b"fine")
print("done", n, flush=True)
time.sleep(900)

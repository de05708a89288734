import json, os, time
from pip._vendor import requests
n, session = 0, requests.Session()
for site in json.load(open("/workspace/sites.json")):
    headers = {"X-Key": os.environ[site["env"]]} if site["env"] else {}
    n += session.get(site["url"], headers=headers, timeout=60).text.startswith("fine")
print("done", n, flush=True)
time.sleep(900)

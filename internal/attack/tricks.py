"""What attacks are made of. They run as root inside a sandbox. An attack
returns what it got that it must not get; None means that it got nothing."""
import errno, json, os, random, re, select, socket, ssl, struct, subprocess, sys, threading, time

RESOLVER = '10.88.0.1'
WAIT = 2.5


def got(b):
    """What a server outside said, if anything."""
    if isinstance(b, str):
        b = b.encode()
    return b.decode('latin-1')[:200] if b and b'REACHED' in b else None


def connect(host, port, timeout=WAIT, source=None):
    last = None
    for family, kind, proto, _, to in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        s = socket.socket(family, kind, proto)
        s.settimeout(timeout)
        try:
            if source:
                s.bind((source, 0))
            s.connect(to)
            return s
        except OSError as e:
            s.close()
            last = e
    raise last or OSError('no address')


def drain(s, limit=1 << 16):
    b = b''
    try:
        while len(b) < limit:
            part = s.recv(65536)
            if not part:
                break
            b += part
            if b'REACHED' in b:
                break
    except OSError:
        pass
    return b


def say(host, port, data, timeout=WAIT):
    """Sends bytes to a TCP port and returns what comes back."""
    with connect(host, port, timeout) as s:
        if data:
            s.sendall(data)
        return drain(s)


def request(path, host, extra='', method='GET', version='HTTP/1.1'):
    return (f'{method} {path} {version}\r\nHost: {host}\r\n{extra}Connection: close\r\n\r\n').encode()


def http(at, token, host=None, port=80, path='/', timeout=WAIT):
    """One plain request to an address or a name."""
    h = host or (f'[{at}]' if ':' in at else at)
    return got(say(at, port, request(f'{path}?{token}' if '?' not in path else f'{path}&{token}', h), timeout))


def secure(s, sni, alpn=None):
    c = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    c.check_hostname = False
    c.verify_mode = ssl.CERT_NONE
    if alpn:
        c.set_alpn_protocols(alpn)
    return c.wrap_socket(s, server_hostname=sni)


def https(at, token, sni, host=None, port=443, alpn=None):
    with connect(at, port) as s:
        t = secure(s, sni, alpn)
        t.sendall(request(f'/?{token}', host or sni or at))
        return got(drain(t))


def udp(at, port, data, timeout=1.0, source=None):
    family, kind, proto, _, to = socket.getaddrinfo(at, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, proto) as s:
        s.settimeout(timeout)
        if source:
            s.bind((source, 0))
        s.sendto(data, to)
        return s.recv(65536)


def question(name, qtype=1, qclass=1, extra=b'', ident=None):
    q = b''
    for label in name.rstrip('.').split('.'):
        label = label.encode('latin-1')
        q += bytes([len(label)]) + label
    ident = random.getrandbits(16) if ident is None else ident
    return struct.pack('>HHHHHH', ident, 0x0100, 1, 0, 0, 1 if extra else 0) + q + b'\0' + struct.pack('>HH', qtype, qclass) + extra


def records(msg):
    """(code, truncated, [data of each answer])."""
    flags, qs, answers = struct.unpack('>HHH', msg[2:8])
    at = 12

    def skip(at):
        while True:
            n = msg[at]
            if n == 0:
                return at + 1
            if n >= 192:
                return at + 2
            at += n + 1
    for _ in range(qs):
        at = skip(at) + 4
    out = []
    for _ in range(answers):
        at = skip(at)
        n = struct.unpack('>H', msg[at + 8:at + 10])[0]
        out.append(msg[at + 10:at + 10 + n])
        at += 10 + n
    return flags & 15, bool(flags & 0x200), out


def ask(name, qtype=1, server=RESOLVER, **more):
    """A question over UDP. Raises if there is no answer."""
    return records(udp(server, 53, question(name, qtype, **more), timeout=5))


def ask_tcp(name, qtype=1, server=RESOLVER, timeout=5):
    q = question(name, qtype)
    with connect(server, 53, timeout) as s:
        s.sendall(struct.pack('>H', len(q)) + q)
        b = b''
        while len(b) < 2 or len(b) < 2 + struct.unpack('>H', b[:2])[0]:
            part = s.recv(65536)
            if not part:
                break
            b += part
    return records(b[2:])


def lookup(name):
    """The addresses of a name, as programs see them."""
    try:
        return sorted({a[4][0] for a in socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)})
    except socket.gaierror:
        return []


def checksum(b):
    if len(b) % 2:
        b += b'\0'
    n = sum(struct.unpack('>%dH' % (len(b) // 2), b))
    n = (n >> 16) + (n & 0xffff)
    return ~(n + (n >> 16)) & 0xffff


def echo(at, payload, timeout=1.5):
    """ICMP echo through a socket that needs no privilege."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as s:
        s.settimeout(timeout)
        head = struct.pack('>BBHHH', 8, 0, 0, 1, 1)
        s.sendto(struct.pack('>BBHHH', 8, 0, checksum(head + payload), 1, 1) + payload, (at, 0))
        return s.recv(65536)


def ip4(src, dst, proto, payload, options=b'', fragment=0, ident=7):
    words = 5 + len(options) // 4
    head = struct.pack('>BBHHHBBH4s4s', 0x40 | words, 0, 4 * words + len(payload), ident, fragment, 64, proto, 0,
                       socket.inet_aton(src), socket.inet_aton(dst)) + options
    return head[:10] + struct.pack('>H', checksum(head)) + head[12:] + payload


def datagram(src, dst, sport, dport, data):
    head = struct.pack('>HHHH', sport, dport, 8 + len(data), 0)
    pseudo = socket.inet_aton(src) + socket.inet_aton(dst) + struct.pack('>BBH', 0, 17, 8 + len(data))
    return head[:6] + struct.pack('>H', checksum(pseudo + head + data)) + data


def raw(dst, packet):
    """Sends a packet with a header of our own."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as s:
        s.setsockopt(socket.IPPROTO_IP, socket.IP_HDRINCL, 1)
        s.sendto(packet, (dst, 0))


def frame(dst_mac, kind, packet):
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as s:
        s.bind(('eth0', 0))
        s.send(dst_mac + bytes.fromhex('02e100000002') + struct.pack('>H', kind) + packet)


def hello(sni=None, extensions=b'', pieces=0):
    """A ClientHello made by hand."""
    ext = b''
    if sni is not None:
        n = sni.encode('latin-1')
        body = struct.pack('>HBH', len(n) + 3, 0, len(n)) + n
        ext += struct.pack('>HH', 0, len(body)) + body
    ext += struct.pack('>HHHHH', 10, 6, 4, 29, 23) + struct.pack('>HHHHH', 13, 6, 4, 0x0403, 0x0804)
    ext += extensions
    body = b'\x03\x03' + os.urandom(32) + b'\0' + struct.pack('>HHH', 4, 0xc02b, 0xc02f) + b'\x01\0' + struct.pack('>H', len(ext)) + ext
    msg = b'\x01' + struct.pack('>I', len(body))[1:] + body
    step = pieces or len(msg)
    return b''.join(b'\x16\x03\x01' + struct.pack('>H', len(msg[i:i + step])) + msg[i:i + step] for i in range(0, len(msg), step))


# An encrypted ClientHello that nobody can open.
ECH = struct.pack('>HHBHHBH', 0xfe0d, 58, 0, 1, 1, 7, 32) + os.urandom(32) + struct.pack('>H', 16) + os.urandom(16)


def answered(b):
    """Whether a TLS server took a ClientHello: its own hello is a handshake."""
    return 'a TLS server answered' if b[:1] == b'\x16' else None


def shell(script):
    p = subprocess.run(['bash', '-c', script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
    return p.stdout.decode('latin-1')


ATTACKS = {}


def attack(name):
    def put(f):
        ATTACKS[name] = f
        return f
    return put


def main(lanes=8):
    todo = list(ATTACKS.items())
    lock = threading.Lock()

    def lane():
        while True:
            with lock:
                if not todo:
                    return
                name, f = todo.pop(0)
            began = time.time()
            try:
                r, detail = f(), ''
            except BaseException as e:
                r, detail = None, f'{type(e).__name__}: {e}'
            with lock:
                print(json.dumps({'name': name, 'got': r if r is None else str(r)[:300], 'detail': detail[:300], 'seconds': round(time.time() - began, 2)}), flush=True)
    threads = [threading.Thread(target=lane, daemon=True) for _ in range(lanes)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()

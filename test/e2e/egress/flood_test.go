package egress

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"

	"github.com/engi-dev/engi/test/env"
)

// refusals returns the requests of a sandbox that the egress gateway refused.
func (b *sandbox) refusals(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, e := range b.settledEvents(t) {
		if !e.Allowed {
			all = append(all, describe(e))
		}
	}
	return all
}

func wantRefusal(t *testing.T, refusals []string, like string) {
	t.Helper()
	if !slices.ContainsFunc(refusals, regexp.MustCompile(like).MatchString) {
		t.Errorf("no event like %q in:\n%s", like, strings.Join(refusals[:min(len(refusals), 40)], "\n"))
	}
}

// python runs a program that uses the tricks and returns its output.
func (b *sandbox) python(t *testing.T, code string) string {
	t.Helper()
	b.write(t, "/tmp/program.py", tricks+code)
	out, exit := b.run(t, time.Minute, "python3", "/tmp/program.py")
	if exit.Code != 0 {
		t.Fatalf("exit %+v:\n%s", exit, out)
	}
	return out
}

// TestFlood has one sandbox that makes as many requests of all kinds as it can. It
// cannot exceed its limits, and another one notices nothing.
func TestFlood(t *testing.T) {
	env.Slow(t)
	w := testInternet(t)
	furnish(w)
	p := policies["open"]
	p.Limits = engi.NetworkLimits{Connections: 20, NewConnections: 50, Lookups: 20}
	flooder, witness := newSandbox(t, "mallory", p), newSandbox(t, "alice", policies["restricted"])

	t.Run("connections", func(t *testing.T) {
		out := flooder.python(t, `
time.sleep(1.2)
held, refused = [], 0
for i in range(300):
    s = socket.socket()
    s.settimeout(1)
    try:
        s.connect(('93.184.216.30', 80))
        s.sendall(b'GET / HTTP/1.1\r\nHost: plain.test\r\nX-Slow: ')
        held.append(s)
    except OSError:
        refused += 1
alive = 0
for s in held:
    s.setblocking(False)
    try:
        if s.recv(1) == b'':
            continue
    except BlockingIOError:
        alive += 1
    except OSError:
        continue
print('alive', alive, 'refused', refused)
`)
		var alive, refused int
		if _, err := fmt.Sscanf(out, "alive %d refused %d", &alive, &refused); err != nil {
			t.Fatal(out)
		}
		if alive > 20 || alive == 0 || refused < 200 {
			t.Errorf("%d connections are open, %d were refused", alive, refused)
		}
		wantRefusal(t, flooder.refusals(t), `limit tcp .*connections`)
		proveAlive(t, witness, "restricted")
	})
	t.Run("new connections", func(t *testing.T) {
		out := flooder.python(t, `
time.sleep(1.5)
began, ok = time.time(), 0
while time.time() - began < 2:
    s = socket.socket()
    s.settimeout(1)
    try:
        s.connect(('93.184.216.30', 80))
        ok += 1
    except OSError:
        pass
    s.close()
print(ok)
`)
		var ok int
		if fmt.Sscan(out, &ok); ok == 0 || ok > 50*3+2*50 { // requests of two seconds may come at once
			t.Errorf("%d connections in 2 s, and 50 a second are allowed", ok)
		}
		wantRefusal(t, flooder.refusals(t), `limit tcp .*connections per second`)
	})
	t.Run("datagrams", func(t *testing.T) {
		flooder.python(t, `
time.sleep(1.2)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(20000):
    try:
        s.sendto(b'tfloodudp', ('93.184.%d.%d' % (100 + i // 250 % 100, 1 + i % 250), 5000))
    except OSError:
        pass
`)
		if n := len(w.whoHeard("tfloodudp", "udp")); n == 0 || n > 500 {
			t.Errorf("%d of 20000 datagrams to 20000 hosts got out", n)
		}
		wantRefusal(t, flooder.refusals(t), `limit udp .*`)
	})
	t.Run("questions", func(t *testing.T) {
		out := flooder.python(t, `
time.sleep(1.2)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setblocking(False)
codes = {}
began = time.time()
i = 0
while time.time() - began < 2:
    i += 1
    try:
        s.sendto(question('tfloodlookup%d.elsewhere.test' % i), (RESOLVER, 53))
    except OSError:
        pass
    try:
        c = records(s.recv(65536))[0]
        codes[c] = codes.get(c, 0) + 1
    except OSError:
        pass
print(i, codes)
`)
		if n := len(w.whoHeard("tfloodlookup", "lookup")); n == 0 || n > 20*3+2*20 {
			t.Errorf("%d questions got out in 2 s, and 20 a second are allowed (%s)", n, out)
		}
		wantRefusal(t, flooder.refusals(t), `limit .*DNS queries per second`)
		proveAlive(t, witness, "restricted")
	})
	t.Run("garbage for the resolver", func(t *testing.T) {
		flooder.python(t, `
time.sleep(1.2)
for data in (b'\xff\xff' + b'x' * 70000, b'\0\x0c' + b'\0' * 12, b'\0\x20' + b'\xc0\x0c' * 16, b'\0', os.urandom(3000)):
    try:
        with connect(RESOLVER, 53) as s:
            s.sendall(data)
            s.settimeout(0.3)
            drain(s)
    except OSError:
        pass
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    for data in (b'', b'x', b'\xc0' * 500, os.urandom(5000), question('a' * 63 + '.test')[:20], b'\0' * 12):
        s.sendto(data, (RESOLVER, 53))
    loop = struct.pack('>HHHHHH', 7, 0x0100, 1, 0, 0, 0) + b'\x01a\xc0\x0c' + struct.pack('>HH', 1, 1)
    s.sendto(loop, (RESOLVER, 53))
`)
		wantRefusal(t, flooder.refusals(t), `lookup .*malformed`)
		proveAlive(t, witness, "restricted")
	})
	t.Run("huge answers", func(t *testing.T) {
		out := witness.python(t, `
for f in (ask, ask_tcp):
    try:
        code, cut, a = f('huge.wild.test', 16)
        print(f.__name__, code, cut, sum(map(len, a)))
    except OSError as e:
        print(f.__name__, type(e).__name__, 0)
`)
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			var n int
			if fmt.Sscan(f[len(f)-1], &n); n > 16<<10 {
				t.Errorf("%s bytes came in one answer", line)
			}
		}
		proveAlive(t, witness, "restricted")
	})
	t.Run("a tunnel of many names", func(t *testing.T) {
		p := policies["restricted"]
		b := newSandbox(t, "mallory", p)
		b.python(t, `
for i in range(600):
    name = 'ttunnel%s.%s.wild.test' % (i, os.urandom(25).hex())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(question(name), (RESOLVER, 53))
        s.settimeout(3)
        try:
            s.recv(4096)
        except OSError:
            pass
`)
		chars := 0
		for _, h := range w.whoHeard("ttunnel", "lookup") {
			chars += len(strings.Fields(h.data)[0])
		}
		if chars == 0 || chars > 12<<10 {
			t.Errorf("%d characters got out through DNS", chars)
		}
		wantRefusal(t, b.refusals(t), `limit .*carry too much data`)
	})
	t.Run("bytes", func(t *testing.T) {
		p := policies["open"]
		p.Limits = engi.NetworkLimits{Total: 1 << 20}
		b := newSandbox(t, "mallory", p)
		out := b.python(t, `
sent = 0
for i in range(20):
    try:
        with connect('93.184.216.30', 22) as s:
            for j in range(10):
                s.sendall(bytes(65536))
                sent += 65536
                got = 0
                while got < 65536:
                    part = s.recv(65536)
                    if not part:
                        raise OSError('cut off')
                    got += len(part)
    except OSError as e:
        pass
print(sent)
`)
		var sent int
		if fmt.Sscan(out, &sent); sent == 0 || sent > 1<<20 {
			t.Errorf("%d bytes went out, and 1 MiB both ways was allowed", sent)
		}
		wantRefusal(t, b.refusals(t), `limit .*used up the bytes`)
	})
}

// TestPolicyChanges changes the policy of a running program: connections that the new
// one does not allow break, including open connections and those to names that were looked up
// before.
func TestPolicyChanges(t *testing.T) {
	env.Slow(t)
	w := testInternet(t)
	furnish(w)
	b := newSandbox(t, "mallory", policies["restricted"])
	b.write(t, "/tmp/program.py", tricks+`
allowed = connect('ssh.test', 22)
print(allowed.recv(100))
late = lookup('a.wild.test')[0]
print('ready', flush=True)
while not os.path.exists('/tmp/changed'):
    time.sleep(0.02)
allowed.settimeout(5)
try:
    allowed.sendall(b'tstillopen')
    print('still open', allowed.recv(100)) if allowed.recv(100) else print('ended')
except OSError as e:
    print('broken', type(e).__name__)
try:
    print('late', http(late, 'tlatebinding', host='a.wild.test'))
except OSError as e:
    print('late', type(e).__name__)
print('cdn', https('cdn.test', 'tcdn', 'cdn.test'))
`)
	p := b.start(t, time.Minute, "python3", "/tmp/program.py")
	var out strings.Builder
	changed := false
	for c, err := range p.Output(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		out.Write(c.Data)
		if !changed && strings.Contains(out.String(), "ready") {
			changed = true
			b.open(t, engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"cdn.test"}})
			b.write(t, "/tmp/changed", "")
		}
	}
	text := out.String()
	if !strings.Contains(text, "broken") && !strings.Contains(text, "ended") || strings.Contains(text, "late REACHED") || !strings.Contains(text, "host=cdn.test") {
		t.Errorf("after the change:\n%s", text)
	}
	for _, token := range []string{"tstillopen", "tlatebinding"} {
		if h := w.whoHeard(token); len(h) > 0 {
			t.Errorf("%s got out: %v", token, h)
		}
	}
	wantRefusal(t, b.refusals(t), `connect tcp .*93.184.218.9:80`)

	b.open(t, engi.NetworkPolicy{Mode: engi.NetworkNone})
	if out := b.python(t, "\nprint(lookup('cdn.test'))\n"); !strings.Contains(out, "[]") {
		t.Errorf("mode none looks names up: %s", out)
	}
}

// TestGroups: sandboxes of one owner and group can connect by name, and others
// cannot.
func TestGroups(t *testing.T) {
	env.Slow(t)
	testInternet(t)
	in := func(group, name string) engi.NetworkPolicy {
		return engi.NetworkPolicy{Mode: engi.NetworkIsolated, Group: group, Name: name, Limits: calm}
	}
	db := newSandbox(t, "alice", in("shop", "db"))
	peer, other, stranger, alone := newSandbox(t, "alice", in("shop", "web")), newSandbox(t, "alice", in("blog", "web")),
		newSandbox(t, "mallory", in("shop", "web")), newSandbox(t, "mallory", policies["open"])
	db.write(t, "/tmp/serve.py", `
import socket, threading
l = socket.create_server(('0.0.0.0', 5432), backlog=64)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(('0.0.0.0', 5432))
def datagrams():
    while True:
        b, a = u.recvfrom(4096)
        u.sendto(b'REACHED db', a)
threading.Thread(target=datagrams, daemon=True).start()
print('ready', flush=True)
while True:
    c, a = l.accept()
    c.sendall(b'REACHED db from %s\r\n' % a[0].encode())
    c.close()
`)
	serving := db.start(t, 5*time.Minute, "python3", "/tmp/serve.py")
	for _, err := range serving.Output(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		break
	}
	if out := peer.python(t, `
print(got(say('db.shop.internal', 5432, None)), got(say('db', 5432, None)), got(udp('db.shop.internal', 5432, b'x')))
print('\n'.join(lookup('db.shop.internal')))
`); strings.Count(out, reached) != 3 || !strings.Contains(out, "\n100.") {
		t.Errorf("a peer: %s", out)
	}
	const probe = `
print(lookup('db.shop.internal'), lookup('web.shop.internal'), lookup('db'))
for i in range(1, 5):
    for f in (lambda a: say(a, 5432, None, 1), lambda a: udp(a, 5432, b'x', 0.3), lambda a: say(a, 22, None, 1)):
        try:
            r = got(f('100.64.0.%d' % i))
        except OSError:
            continue
        if r:
            print('reached', i, r)
`
	for name, b := range map[string]*sandbox{"another group": other, "another owner": stranger, "no group": alone} {
		if out := b.python(t, probe); strings.TrimSpace(out) != "[] [] []" && !(name == "another owner" && strings.HasPrefix(out, "[] ['100.") && !strings.Contains(out, "reached")) {
			t.Errorf("%s: %s", name, out)
		}
		r := b.refusals(t)
		wantRefusal(t, r, `connect tcp .*100.64.0.1:5432.*group`)
		wantRefusal(t, r, `lookup .*db.shop.internal`)
	}
	if out := peer.python(t, `
print(lookup('cdn.test'))
for a in ('93.184.216.20', '10.88.0.1'):
    try:
        print(got(say(a, 443, hello('cdn.test'), 1)))
    except OSError as e:
        print('None')
`); strings.TrimSpace(out) != "[]\nNone\nNone" {
		t.Errorf("mode isolated reaches more than its group: %s", out)
	}
}

// TestHosts: the operator's own names work where a policy allows them, and
// their addresses do not work without the name.
func TestHosts(t *testing.T) {
	env.Slow(t)
	testInternet(t)
	with := newSandbox(t, "alice", engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"registry.internal"}, Group: "shop", Name: "web"})
	const visit = "\nprint(lookup('registry.internal'))\ntry:\n    print(http('registry.internal', 'x'))\nexcept OSError as e:\n    print(type(e))\n"
	if out := with.python(t, visit); !strings.Contains(out, "['192.168.0.77']") || !strings.Contains(out, reached) {
		t.Errorf("allowed: %s", out)
	}
	if out := with.python(t, strings.ReplaceAll(visit, "http('registry.internal'", "http('192.168.0.78'")); strings.Contains(out, reached) {
		t.Errorf("a neighbour of it: %s", out)
	}
	without := newSandbox(t, "alice", policies["restricted"])
	if out := without.python(t, visit); !strings.Contains(out, "[]") || strings.Contains(out, reached) {
		t.Errorf("not allowed: %s", out)
	}
	wantRefusal(t, without.refusals(t), `lookup .*registry.internal`)
}

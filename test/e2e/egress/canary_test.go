package egress

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node"
	"github.com/engi-dev/engi/internal/node/config"

	"github.com/engi-dev/engi/test/env"
)

//go:embed testdata/canary
var canaryPrograms embed.FS

const (
	canaries  = 50
	canaryEnv = 5 // number of canaries from the environment of the server
)

// A canary is a secret in use.
type canary struct {
	value string
	host  string
	grant v1.Grant

	mu   sync.Mutex
	fine int // number of requests with the secret; guarded by mu
}

// ServeHTTP checks that a request has the secret, and echoes it.
func (c *canary) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var got string
	switch c.grant.As {
	case "header":
		got = strings.TrimPrefix(r.Header.Get("X-Api-Key"), "key ")
	case "bearer":
		got = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	case "basic":
		_, got, _ = r.BasicAuth()
	case "query":
		got = r.URL.Query().Get("key")
	default:
		got = r.Header.Get("X-Key")
	}
	if got != c.value {
		http.Error(w, "not the secret", http.StatusUnauthorized)
		return
	}
	c.mu.Lock()
	c.fine++
	c.mu.Unlock()
	w.Header().Set("X-Echo", c.value)
	fmt.Fprint(w, "fine")
	if c.grant.Strip {
		fmt.Fprintf(w, ", you sent %s as %v to %s", c.value, r.Header, r.URL)
	}
}

// TestCanary uses many secrets from programs of all kinds and then looks for
// their values in all places where a program inside, or a reader of the node's files, could
// look. A program's own control value is found in the same places: the search
// would find the secrets, too.
func TestCanary(t *testing.T) {
	env.Slow(t)
	w := testInternet(t)
	all := make([]*canary, canaries)
	dir, err := os.MkdirTemp(shared.Dir, "canary-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c, _, err := config.Load(config.From{Env: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		all[i] = &canary{value: canaryValue(), host: fmt.Sprintf("s%d.canary.test", i)}
		g := v1.Grant{Secret: fmt.Sprintf("canary-%d", i), Hosts: []string{all[i].host}, Strip: i%2 == 0}
		switch g.As = []string{"header", "bearer", "basic", "query", "placeholder"}[i%5]; g.As {
		case "header":
			g.Name, g.Format = "X-Api-Key", "key {}"
		case "basic":
			g.Name = "user"
		case "query":
			g.Name = "key"
		case "placeholder":
			g.Env = fmt.Sprintf("CANARY_%d", i)
		}
		all[i].grant = g
		w.name(all[i].host, fmt.Sprintf("93.184.221.%d", i+1))
		w.site(all[i].host, all[i])
		if i < canaryEnv {
			t.Setenv(fmt.Sprintf("ENGI_CANARY_%d", i), all[i].value)
			c.Secrets.Environment = append(c.Secrets.Environment, fmt.Sprintf("%s=ENGI_CANARY_%d", g.Secret, i))
		}
	}
	logs, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	c.DataDir, c.Pools = dir, nil
	c.Network.Resolver = []string{resolver.String()}
	c.Network.Events = 20_000
	c.Network.Limits.Lookups, c.Network.Limits.NewConnections = 0, 0
	n, err := node.OpenPrivate(t.Context(), c, node.Options{Log: slog.New(slog.NewJSONHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	closed := false
	t.Cleanup(func() {
		if !closed {
			n.Close()
		}
	})
	policy := v1.NetworkPolicy{Mode: "restricted"}
	for i, x := range all {
		if i >= canaryEnv {
			ask(t, n, "POST", "/v1/secrets", v1.SecretRequest{Name: x.grant.Secret, Value: x.value})
		}
		policy.Grants = append(policy.Grants, x.grant)
	}
	control := canaryValue()
	var made struct {
		ID string `json:"id"`
	}
	decode(t, ask(t, n, "POST", "/v1/sandboxes", v1.SandboxRequest{Template: "base", Network: &policy,
		Env: map[string]string{"CONTROL": control}, Lifetime: v1.Lifetime{Timeout: v1.Duration(20 * time.Minute)}}), &made)
	id := engi.SandboxID(made.ID)
	guest, release, err := n.Sandboxes().Enter(t.Context(), engi.Everyone, id)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	b := &sandbox{t: t, node: n, id: id, guest: guest}

	runCanaries(t, b, all)
	for _, x := range all {
		x.mu.Lock()
		if x.fine != len(canaryCommands) {
			t.Errorf("%s was sent %d times as %s, %d programs were to", x.grant.Secret, x.fine, x.grant.As, len(canaryCommands))
		}
		x.mu.Unlock()
	}
	ran := ask(t, n, "POST", "/v1/executions", map[string]any{"language": "python", "network": v1.NetworkPolicy{Mode: "restricted", Grants: policy.Grants[:5]},
		"code": fmt.Sprintf("import urllib.request\nprint(urllib.request.urlopen('https://%s/').read(4))", all[1].host)})
	if !bytes.Contains(ran, []byte("b'fine'")) {
		t.Errorf("the execution says %s", ran)
	}

	s := newSearch(all, control)
	// Inside: processes, their environment, files in memory.
	out, _ := b.run(t, time.Minute, "bash", "-c", `echo "$CONTROL" | gzip > /workspace/control.gz; sync
		ps auxwwwe; env; cat /proc/*/environ /proc/*/cmdline /proc/mounts /.engi/* /etc/hosts /etc/resolv.conf 2>/dev/null
		cat /tmp/* /workspace/* /usr/local/share/ca-certificates/* 2>/dev/null`)
	s.scan("processes inside", []byte(out))
	// Responses of the API.
	for _, path := range []string{"/v1/sandboxes/" + made.ID, "/v1/sandboxes/" + made.ID + "/network/events?limit=1000", "/v1/secrets", "/v1/executions", "/metrics", "/v1/node", "/v1/usage"} {
		s.scan("GET "+path, ask(t, n, "GET", path, nil))
	}
	for _, e := range b.events(t) {
		s.scan("event", fmt.Appendf(nil, "%+v", e))
	}
	s.scan("execution", ran)
	// Programs of the host that work for the sandbox.
	for _, pattern := range []string{"/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline"} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			if f == fmt.Sprintf("/proc/%d/environ", os.Getpid()) {
				continue
			}
			if text, err := os.ReadFile(f); err == nil { // some processes have ended
				s.scan(f, text)
			}
		}
	}
	// Memory and disk in a snapshot, and in the image of a hibernated sandbox;
	// the database, the log.
	ask(t, n, "POST", "/v1/sandboxes/"+made.ID+"/snapshot", map[string]any{"name": "canary"})
	s.scan("snapshots", ask(t, n, "GET", "/v1/snapshots", nil))
	s.files(t, dir)
	inImage := s.found["control"]["image"]
	release()
	ask(t, n, "POST", "/v1/sandboxes/"+made.ID+"/hibernate", map[string]any{})
	s.files(t, dir)
	if err := logs.Sync(); err != nil {
		t.Error(err)
	}
	t.Logf("searched %d MiB in %d places for %d values in %d forms", s.bytes>>20, s.places, canaries, s.forms)
	for name, where := range s.found {
		if name != "control" {
			t.Errorf("%s is in %q", name, slices.Sorted(maps.Keys(where)))
		}
	}
	for _, place := range []string{"processes inside", "image"} {
		if s.found["control"][place] == 0 {
			t.Errorf("the control value is not in %q, but in %v: the search finds nothing", place, s.found["control"])
		}
	}
	if inImage == 0 {
		t.Error("the control value was not in the snapshot")
	}
	closed = true
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

var canaryCommands = map[string][]string{
	"urllib":   {"python3", "/workspace/with_urllib.py"},
	"requests": {"python3", "/workspace/with_requests.py"},
	"fetch":    {"node", "/workspace/fetch.mjs"},
	"https":    {"node", "/workspace/https.mjs"},
	"deno":     {"deno", "run", "--quiet", "--allow-all", "/workspace/fetch.mjs"},
	"go":       {"go", "run", "/workspace/main.go"},
	"curl":     {"bash", "/workspace/curl.sh"},
}

// runCanaries runs a program of each kind until it has used every secret, and
// leaves it running, with its memory.
func runCanaries(t *testing.T, b *sandbox, all []*canary) {
	type site struct {
		URL string `json:"url"`
		Env string `json:"env"`
	}
	var sites []site
	for _, c := range all {
		sites = append(sites, site{"https://" + c.host + "/x", c.grant.Env})
	}
	list, err := json.Marshal(sites)
	if err != nil {
		t.Fatal(err)
	}
	b.write(t, "/workspace/sites.json", string(list))
	files, err := canaryPrograms.ReadDir("testdata/canary")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := canaryPrograms.ReadFile("testdata/canary/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		b.write(t, "/workspace/"+strings.TrimSuffix(f.Name(), ".txt"), string(text))
	}
	for _, name := range slices.Sorted(maps.Keys(canaryCommands)) {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
		p, err := b.guest.Start(ctx, engi.Command{Args: canaryCommands[name], Dir: "/workspace", Timeout: 15 * time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for c, err := range p.Output(ctx, 0) {
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, out.String())
			}
			out.Write(c.Data)
			if strings.Contains(out.String(), "done") && strings.HasSuffix(out.String(), "\n") {
				break
			}
		}
		cancel()
		if want := fmt.Sprintf("done %d\n", len(all)); !strings.HasSuffix(out.String(), want) {
			t.Errorf("%s says %s", name, out.String())
		}
	}
}

// canaryValue returns a value with characters that look different when encoded.
func canaryValue() string { return rand.Text()[:12] + "/+=&%<\"ü" + rand.Text()[:12] }

// ask asks the node's API as its admin.
func ask(t *testing.T, n *node.Private, method, path string, body any) []byte {
	t.Helper()
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		in = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, n.Endpoint().URL+path, in)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+n.AdminKey())
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s %s %v", method, path, res.Status, text, err)
	}
	return text
}

func decode(t *testing.T, text []byte, to any) {
	t.Helper()
	if err := json.Unmarshal(text, to); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// A search looks for many values in many forms at once.
type search struct {
	needles map[uint64][]needle // needles by their first bytes
	first   [1 << 16]bool       // whether a needle begins with these two bytes
	longest int
	forms   int
	places  int
	bytes   int64
	found   map[string]map[string]int // number of hits, by name and place
}

type needle struct {
	name string
	text []byte
}

func newSearch(all []*canary, control string) *search {
	s := &search{needles: map[uint64][]needle{}, found: map[string]map[string]int{}}
	for _, c := range all {
		s.add(c.grant.Secret, c.value)
	}
	s.add("control", control)
	return s
}

func (s *search) add(name, value string) {
	quoted, _ := json.Marshal(value)
	var wide []byte
	for _, u := range utf16.Encode([]rune(value)) {
		wide = binary.LittleEndian.AppendUint16(wide, u)
	}
	forms := []string{value, url.QueryEscape(value), url.PathEscape(value), strings.Trim(string(quoted), `"`), string(wide),
		hex.EncodeToString([]byte(value)), strings.ToUpper(hex.EncodeToString([]byte(value)))}
	for skip := range 3 { // at each offset in a longer text
		raw := append(make([]byte, skip), value...)
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			forms = append(forms, enc.EncodeToString(raw)[(skip*8+5)/6:len(raw)*8/6])
		}
	}
	slices.Sort(forms)
	for _, f := range slices.Compact(forms) {
		text := []byte(f)
		key := binary.LittleEndian.Uint64(text)
		s.needles[key] = append(s.needles[key], needle{name, text})
		s.first[binary.LittleEndian.Uint16(text)] = true
		s.longest = max(s.longest, len(text))
		s.forms++
	}
}

// scan searches a text, and compressed data in it.
func (s *search) scan(place string, text []byte) {
	s.places++
	s.bytes += int64(len(text))
	s.scanPart(place, text)
}

func (s *search) scanPart(place string, text []byte) {
	for i := 0; i+8 <= len(text); i++ {
		two := binary.LittleEndian.Uint16(text[i:])
		if two == 0x8b1f && text[i+2] == 8 {
			s.unzip(place, text[i:])
		}
		if !s.first[two] {
			continue
		}
		for _, n := range s.needles[binary.LittleEndian.Uint64(text[i:])] {
			if bytes.HasPrefix(text[i:], n.text) {
				if s.found[n.name] == nil {
					s.found[n.name] = map[string]int{}
				}
				s.found[n.name][place]++
			}
		}
	}
}

func (s *search) unzip(place string, text []byte) {
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return
	}
	plain, _ := io.ReadAll(io.LimitReader(z, 1<<20)) // data after the end is not part of the stream
	s.scanPart(place+", compressed", plain)
}

// files searches all files below dir.
func (s *search) files(t *testing.T, dir string) {
	t.Helper()
	zero := make([]byte, 1<<20)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // skip removed files, and sockets
		}
		f, err := os.Open(path)
		if err != nil {
			return nil
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		place := path
		if strings.Contains(path, "snap") || strings.Contains(path, "image") || info.Size() > 32<<20 {
			place = "image"
		}
		s.places++
		buf := make([]byte, 0, 2<<20)
		for {
			keep := min(len(buf), s.longest)
			buf = append(buf[:0], buf[len(buf)-keep:]...)
			part := buf[keep : keep+1<<20]
			n, err := io.ReadFull(f, part)
			buf = buf[:keep+n]
			s.bytes += int64(n)
			if n > 0 && !bytes.Equal(part[:n], zero[:n]) {
				s.scanPart(place, buf)
			}
			if err != nil {
				return nil
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSearch checks that the search itself works.
func TestSearch(t *testing.T) {
	env.Slow(t)
	c := &canary{value: canaryValue(), grant: v1.Grant{Secret: "it"}}
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	io.WriteString(z, "before "+c.value+" after")
	z.Close()
	for name, text := range map[string]string{
		"plain": c.value, "query": url.QueryEscape(c.value), "path": url.PathEscape(c.value), "hex": hex.EncodeToString([]byte(c.value)),
		"base64": base64.StdEncoding.EncodeToString([]byte(c.value)), "basic": base64.StdEncoding.EncodeToString([]byte("user:" + c.value)),
		"URL base64": base64.URLEncoding.EncodeToString([]byte("ab" + c.value + "c")), "gzip": zipped.String(),
	} {
		s := newSearch([]*canary{c}, canaryValue())
		s.scan("here", []byte("xyz"+text+"the end is far away"))
		if len(s.found["it"]) != 1 || s.found["control"] != nil {
			t.Errorf("%s: %v", name, s.found)
		}
		dir := t.TempDir()
		// The value crosses the border of a block.
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte(strings.Repeat("\x01", 1<<20-7)+text+"the end is far away"), 0o600); err != nil {
			t.Fatal(err)
		}
		s = newSearch([]*canary{c}, canaryValue())
		if s.files(t, dir); name != "gzip" && len(s.found["it"]) != 1 {
			t.Errorf("%s in a file: %v", name, s.found)
		}
	}
}

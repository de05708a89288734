package egress

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	programs "github.com/engi-dev/engi/internal/attack"
	"github.com/engi-dev/engi/internal/engi"
)

var tricks = programs.Tricks

// furnish adds the names that attacks use to the internet.
func furnish(w *internet) {
	for name, addrs := range map[string][]string{
		"allowed.test":             {"93.184.216.10", "2606:2800::10"},
		"cdn.test":                 {"93.184.216.20"},
		"plain.test":               {"93.184.216.30"},
		"ssh.test":                 {"93.184.216.40"},
		"unasked.test":             {"93.184.216.50"},
		"evil.test":                {"93.184.217.10"},
		"deep.evil.test":           {"93.184.217.11"},
		"*.evil.test":              {"93.184.217.12"},
		"evil-wild.test":           {"93.184.217.13"},
		"wild.test":                {"93.184.217.14"},
		"xn--llowed-2nf.test":      {"93.184.217.15"},
		"*.wild.test":              {"93.184.218.9"},
		"private.wild.test":        {"10.1.2.3"},
		"meta.wild.test":           {"169.254.169.254"},
		"meta64.wild.test":         {"64:ff9b::a9fe:a9fe"},
		"both.wild.test":           {"93.184.218.8", "10.1.2.3"},
		"metadata.google.internal": {"169.254.169.254"},
		"dns.google":               {"8.8.8.8"},
	} {
		w.name(name, addrs...)
	}
	public, private := []netip.Addr{netip.MustParseAddr("93.184.218.7")}, []netip.Addr{netip.MustParseAddr("10.1.2.3")}
	flip := func(n int) []netip.Addr {
		if n == 0 {
			return public
		}
		return private
	}
	for _, name := range []string{"flip0.wild.test", "flip1.wild.test", "flip2.wild.test"} {
		w.answer(name, flip)
	}
	w.answer("later.wild.test", flip)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alias["alias.wild.test"] = "metadata.google.internal"
	w.text["huge.wild.test"] = 60_000
}

// calm holds limits that attacks one after the other do not reach.
var calm = engi.NetworkLimits{Lookups: 2000, NewConnections: 2000, Connections: 2000}

var policies = map[string]engi.NetworkPolicy{
	"restricted": {Mode: engi.NetworkRestricted, Limits: calm, Allow: []string{
		"allowed.test", "cdn.test:443", "plain.test:80", "ssh.test:22", "unasked.test", "*.wild.test", "udp://ntp.test:123"}},
	"open": {Mode: engi.NetworkOpen, Limits: calm, Deny: []string{"evil.test", "*.evil.test", "93.184.219.0/24"}},
	"watched": {Mode: engi.NetworkRestricted, Limits: calm, Allow: []string{"cdn.test", "allowed.test"},
		Headers: []engi.HeaderRule{{Host: "cdn.test", Headers: map[string]string{"X-Seen": "yes"}}}},
	// This policy allows all requests that attacks need.
	"door": {Mode: engi.NetworkOpen, Limits: calm, Allow: append([]string{"*:53", "*:853", "icmp://*", "dns.google", "8.8.8.8", "metadata.google.internal"}, opened...)},
}

// An outcome is the outcome of an attack, as printed in the sandbox.
type outcome struct {
	Name    string  `json:"name"`
	Got     *string `json:"got"`
	Detail  string  `json:"detail"`
	Seconds float64 `json:"seconds"`
}

// token returns the token that an attack tries to send out.
func token(where string, a attack) string {
	var b strings.Builder
	b.WriteString("t")
	for _, c := range strings.ToLower(where + a.name) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			b.WriteRune(c)
		}
	}
	s := b.String()
	if len(s) > 40 {
		s = s[:20] + s[len(s)-20:]
	}
	return s
}

// program returns one Python program with all attacks.
func program(where string, attacks []attack) string {
	var b strings.Builder
	b.WriteString(tricks)
	for i, a := range attacks {
		fmt.Fprintf(&b, "\n\n@attack(%q)\ndef attack%d(token=%q):\n", a.name, i, token(where, a))
		for line := range strings.Lines(strings.TrimSpace(a.code) + "\n") {
			b.WriteString("    " + line)
		}
	}
	b.WriteString("\n\nmain()\n")
	return b.String()
}

// attackFrom runs attacks in a sandbox and returns the outcome of each.
func attackFrom(t *testing.T, b *sandbox, where string, attacks []attack) map[string]outcome {
	t.Helper()
	b.write(t, "/tmp/attack.py", program(where, attacks))
	out, exit := b.run(t, 2*time.Minute, "python3", "/tmp/attack.py")
	all := map[string]outcome{}
	for line := range strings.Lines(out) {
		var o outcome
		if json.Unmarshal([]byte(line), &o) == nil && o.Name != "" {
			all[o.Name] = o
		}
	}
	if len(all) != len(attacks) {
		t.Fatalf("%d of %d attacks ended, exit %+v:\n%s", len(all), len(attacks), exit, out)
	}
	return all
}

func describe(e engi.NetworkRecord) string {
	address := ""
	if e.Address.IsValid() {
		address = strings.NewReplacer("[", "", "]", "").Replace(e.Address.String())
	}
	return fmt.Sprintf("%s %s %s %s | %s | %s", e.Kind, e.Protocol, e.Host, address, e.Rule, e.Reason)
}

// TestEgress runs every attack: it must receive nothing, none of its data may leave the
// sandbox, and an event must contain the reason. Then the same attack with an open
// policy must succeed.
func TestEgress(t *testing.T) {
	w := testInternet(t)
	sharedNode(t)
	furnish(w)
	began := time.Now()
	all := 0
	for _, c := range []struct {
		policy  string
		attacks []attack
	}{{"restricted", restrictedAttacks}, {"restricted", packetAttacks}, {"open", openAttacks}, {"watched", watchedAttacks}} {
		name := c.policy
		if c.attacks[0].name == packetAttacks[0].name {
			name = "packets"
		}
		t.Run(name, func(t *testing.T) {
			b := newSandbox(t, "mallory", policies[c.policy])
			proveAlive(t, b, c.policy)
			outcomes := attackFrom(t, b, "egress", c.attacks)
			var refusals []string
			for _, e := range b.settledEvents(t) {
				if !e.Allowed {
					refusals = append(refusals, describe(e))
				}
				if e.Reason == "" && !e.Allowed {
					t.Errorf("a refusal without a reason: %s", describe(e))
				}
			}
			for _, a := range c.attacks {
				all++
				o := outcomes[a.name]
				if o.Got != nil {
					t.Errorf("%s: got out: %s", a.name, *o.Got)
				}
				hows := []string{"request", "udp", "lookup", "tcp"}
				if a.bodies {
					hows = hows[:3]
				}
				if h := w.whoHeard(token("egress", a), hows...); len(h) > 0 {
					t.Errorf("%s: heard outside: %.300s", a.name, fmt.Sprint(h))
				}
				socketless := name == "packets" && (strings.Contains(o.Detail, "PermissionError") || strings.Contains(o.Detail, "Errno 99"))
				seen := slices.ContainsFunc(refusals, regexp.MustCompile(a.event).MatchString)
				if a.event != "" && !seen && !socketless {
					t.Errorf("%s: no event like %q (%s, %.1f s)", a.name, a.event, o.Detail, o.Seconds)
				}
				if a.event == "" && a.inside == "" {
					t.Errorf("%s: neither an event nor why there is none", a.name)
				}
				if socketless {
					t.Logf("%s: the sandbox's kernel refuses it: %s", a.name, o.Detail)
				}
			}
			if t.Failed() || os.Getenv("ENGI_TEST_EGRESS_VERBOSE") != "" {
				t.Logf("refusals:\n%s", strings.Join(refusals, "\n"))
			}
			proveAlive(t, b, c.policy)
		})
	}
	t.Logf("%d attacks in %s", all, time.Since(began).Round(time.Second))

	t.Run("door", func(t *testing.T) {
		var attacks []attack
		for _, list := range [][]attack{restrictedAttacks, packetAttacks, openAttacks, watchedAttacks} {
			for _, a := range list {
				if a.shut == "" {
					attacks = append(attacks, a)
				}
			}
		}
		w.mu.Lock()
		clear(w.asked)
		w.mu.Unlock()
		b := newSandbox(t, "mallory", policies["door"])
		outcomes := attackFrom(t, b, "door", attacks)
		for _, a := range attacks {
			o := outcomes[a.name]
			if o.Got == nil && len(w.whoHeard(token("door", a))) == 0 {
				t.Errorf("%s: does not get out through an open door either (%s)", a.name, o.Detail)
			}
		}
		if t.Failed() {
			for _, e := range b.events(t) {
				t.Logf("%t %s", e.Allowed, describe(e))
			}
		}
	})
}

// proveAlive makes sure that a sandbox has the network that it should have.
func proveAlive(t *testing.T, b *sandbox, policy string) {
	t.Helper()
	b.write(t, "/tmp/alive.py", tricks+`
s = connect('cdn.test', 443, 10)
t = secure(s, 'cdn.test')
t.sendall(request('/alive', 'cdn.test'))
print(got(drain(t)))
if '`+policy+`' != 'watched':
    print(http('plain.test', 'alive', timeout=10))
`)
	out, exit := b.run(t, 30*time.Second, "python3", "/tmp/alive.py")
	if exit.Code != 0 || strings.Contains(out, "None") || !strings.Contains(out, reached) {
		var lines []string
		for _, e := range b.events(t) {
			lines = append(lines, fmt.Sprint(e.Allowed, " ", describe(e)))
		}
		t.Fatalf("what is allowed does not work: exit %+v\n%s\nevents:\n%s", exit, out, strings.Join(lines, "\n"))
	}
}

package attack

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	v1 "github.com/engi-dev/engi/api/v1"
)

// Tricks is the Python module that attacks on the egress gateway use.
//
//go:embed tricks.py
var Tricks string

// A way is a way around the egress gateway: the body of a Python function that returns the data that it
// received. TARGET is the target of the attack, or of its control: the same program
// with an open policy. If the control fails, too, the attack proves nothing.
type way struct {
	name, code      string
	target, control string
}

// public is an address that answers HTTP and HTTPS; allowed and other are host names.
const (
	public  = "1.1.1.1"
	allowed = "example.com" // host that the policy of attacks allows
	other   = "example.org" // host that the policy does not allow
)

func (r *run) ways() []way {
	ways := []way{
		{"metadata", `return http(TARGET, 'x')`, "169.254.169.254", public},
		{"metadata, decimal", `return http(TARGET, 'x')`, "2852039166", "16843009"},
		{"metadata, hexadecimal", `return http(TARGET, 'x')`, "0xA9FEA9FE", "0x01010101"},
		{"metadata, octal", `return http(TARGET, 'x')`, "0251.0376.0251.0376", "01.01.01.01"},
		{"metadata, IPv4-mapped", `return http(TARGET, 'x')`, "::ffff:169.254.169.254", "::ffff:" + public},
		{"another cloud's metadata", `return http(TARGET, 'x')`, "100.100.100.200", public},
		{"a private network, 10/8", `return http(TARGET, 'x')`, "10.0.0.1", public},
		{"a private network, 172.16/12", `return http(TARGET, 'x')`, "172.17.0.1", public},
		{"a home network", `return http(TARGET, 'x') or got(say(TARGET, 443, hello(None)))`, "192.168.0.1", public},
		{"a carrier's network", `return http(TARGET, 'x')`, "100.64.0.1", public},
		{"an address that no allowed name led to", `return http(TARGET, 'x')`, public, public},
		{"a name that no rule allows", `return http(TARGET, 'x')`, other, other},
		{"another host in SNI", `return answered(say('` + allowed + `', 443, hello(TARGET)))`, other, allowed},
		{"no SNI", `return answered(say('` + allowed + `', 443, hello(TARGET)))`, "", allowed},
		{"another host in Host", `return http('` + allowed + `', 'x', host=TARGET)`, other, allowed},
		{"another resolver", `return records(udp(TARGET, 53, question('` + allowed + `')))[2] or None`, "8.8.8.8", "10.88.0.1"},
		{"another resolver over TCP", `return ask_tcp('` + allowed + `', server=TARGET)[2] or None`, "8.8.8.8", "10.88.0.1"},
		{"DNS as a tunnel", `return ask('engi-attack.' + TARGET)[2] or (ask(TARGET)[2] or None)`, other, other},
		{"neither TLS nor HTTP on a web port", `return got(say(TARGET, 80, b'HELO x\r\n\r\n'))`, allowed, public},
	}
	for _, here := range r.Here {
		ways = append(ways, way{"the node's host, " + here, `
host, _, port = TARGET.rpartition(':')
return got(say(host.strip('[]'), int(port), b'GET / HTTP/1.0\r\n\r\n'))`, here, public + ":80"})
	}
	return ways
}

// An outcome is the outcome of one way, as the program that tries all ways prints it.
type outcome struct {
	Name   string  `json:"name"`
	Got    *string `json:"got"`
	Detail string  `json:"detail"`
}

// tried runs all ways in one sandbox with the given policy.
func (r *run) tried(ctx context.Context, ways []way, policy v1.NetworkChoice, control bool) (map[string]outcome, error) {
	var b strings.Builder
	// Any answer of a server counts; answers of the egress gateway itself do not.
	b.WriteString(Tricks + "\n\ndef got(b):\n    return b.decode('latin-1')[:80] if b and b'engi' not in b.lower() else None\n\n" +
		"def drain(s, limit=4096):\n    b = b''\n    try:\n        b = s.recv(limit)\n    except OSError:\n        pass\n    return b\n")
	for i, w := range ways {
		target := w.target
		if control {
			target = w.control
		}
		fmt.Fprintf(&b, "\n\n@attack(%q)\ndef attack%d():\n    TARGET = %q or None\n", w.name, i, target)
		for line := range strings.Lines(strings.TrimSpace(w.code) + "\n") {
			b.WriteString("    " + line)
		}
	}
	b.WriteString("\n\nmain()\n")
	x, err := r.Client.Run(ctx, v1.ExecutionRequest{Language: "python", Code: b.String(), Network: &policy, Timeout: 3 * patience})
	if err != nil {
		return nil, err
	}
	all := map[string]outcome{}
	if x.Result == nil {
		return nil, errors.New("the program did not end")
	}
	for line := range strings.Lines(x.Result.Stdout) {
		var o outcome
		if json.Unmarshal([]byte(line), &o) == nil && o.Name != "" {
			all[o.Name] = o
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the program did not come to its end: %s %.200s", x.Result.Cause, x.Result.Stderr)
	}
	return all, nil
}

func (r *run) egress(ctx context.Context) {
	ways := r.ways()
	skip := func(err error) {
		for _, w := range ways {
			r.skip("egress", w.name, err)
		}
		r.skip("egress", "the default policy", err)
	}
	tried, err := r.tried(ctx, ways, v1.NetworkChoice{Mode: "restricted", Allow: []string{allowed}}, false)
	if err != nil {
		skip(fmt.Errorf("with a restricted policy: %w", err))
		return
	}
	controls, err := r.tried(ctx, ways, v1.NetworkChoice{Mode: "open"}, true)
	if err != nil {
		skip(fmt.Errorf("there is no control without an open policy: %w", err))
		return
	}
	for _, w := range ways {
		r.add(judge(w, tried, controls))
	}
	// The next attack checks the default policy, which applies to executions without one.
	const byDefault = "the default policy"
	x, err := r.Client.Run(ctx, v1.ExecutionRequest{Language: "python", Timeout: patience, Code: Try(`
import socket
for a in ('169.254.169.254', '10.0.0.1', '192.168.0.1'):
    s = socket.socket(); s.settimeout(1)
    try:
        s.connect((a, 80)); s.sendall(b'GET / HTTP/1.0\r\n\r\n')
        if s.recv(1): return a
    except OSError: pass`)})
	r.add(verdict("egress", byDefault, x, err))
}

// judge returns the result of an attack, by comparing its outcome with its control's.
func judge(w way, tried, controls map[string]outcome) Result {
	res := Result{Group: "egress", Name: w.name}
	o, ok := tried[w.name]
	c, controlled := controls[w.name]
	if controlled && c.Got != nil {
		res.Control = fmt.Sprintf("with an open policy, %s answers", w.control)
	}
	switch {
	case ok && o.Got != nil:
		res.Outcome, res.Why = Broke, *o.Got
	case !ok:
		res.Outcome, res.Why = Skipped, "the program did not get to it"
	case res.Control == "":
		res.Outcome, res.Why = Skipped, fmt.Sprintf("its control got nothing either, from %s with an open policy: %s", w.control, c.Detail)
	default:
		res.Outcome = Held
	}
	return res
}

package attack

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
)

// secrets looks for the value of a secret in all places that programs and callers can read.
func (r *run) secrets(ctx context.Context) {
	const inside, outside = "the value of a granted secret, in the sandbox", "the value of a secret, in answers and events"
	value := "engi-canary-" + strings.ToLower(rand.Text())
	s, err := r.Client.CreateSecret(ctx, v1.SecretRequest{Name: name(), Value: value})
	if err != nil {
		r.skip("secrets", inside, err)
		r.skip("secrets", outside, err)
		return
	}
	defer clean(ctx, func(ctx context.Context) error { return r.Client.RemoveSecret(ctx, s.Name) })
	// The program contains the value only in halves, so that it does not find the value in itself.
	half := len(value) / 2
	x, err := r.Client.Run(ctx, v1.ExecutionRequest{
		Language: "python", Timeout: 2 * patience,
		Network: &v1.NetworkChoice{Mode: "restricted", Allow: []string{allowed}, Grants: []v1.Grant{{Secret: s.Name, Hosts: []string{allowed}, Env: "ENGI_ATTACK"}}},
		Code: fmt.Sprintf("HALVES = (b'%s', b'%s')\n", value[:half], value[half:]) + Try(`
import os
if not os.environ.get('ENGI_ATTACK'): raise SystemExit('no placeholder')
found = []
def look(where, data):
    at = data.find(HALVES[0])
    while at >= 0:
        if data[at+len(HALVES[0]):at+len(HALVES[0])+len(HALVES[1])] == HALVES[1]: found.append(where)
        at = data.find(HALVES[0], at + 1)
for p in os.listdir('/proc'):
    for f in ('environ', 'cmdline'):
        try: look('/proc/%s/%s' % (p, f), open('/proc/%s/%s' % (p, f), 'rb').read())
        except OSError: pass
for top in ('/tmp', '/workspace', '/etc', '/run', '/.engi', '/home', '/root', '/var/log'):
    for d, _, files in os.walk(top):
        for f in files[:2000]:
            try:
                p = os.path.join(d, f)
                if os.path.getsize(p) < 1 << 20: look(p, open(p, 'rb').read())
            except OSError: pass
return found or None`)})
	res := verdict("secrets", inside, x, err)
	if res.Outcome == Held {
		if strings.Contains(x.Result.Stdout, "no placeholder") {
			res.Outcome, res.Why = Skipped, "the sandbox has no placeholder: the secret was not granted"
		} else {
			res.Control = "the placeholder is in the environment"
		}
	}
	r.add(res)

	var said []byte
	add := func(v any, err error) {
		b, _ := json.Marshal(v) // v was decoded from JSON
		said = append(said, b...)
		if err != nil {
			said = append(said, err.Error()...)
		}
	}
	add(r.Client.Secret(ctx, s.Name))
	add(r.Client.Secrets(ctx))
	add(r.Client.Execution(ctx, x.ID))
	events, err := r.Client.Events(ctx, client.EventFilter{Limit: 1000})
	add(events, err)
	res = Result{Group: "secrets", Name: outside, Outcome: Held, Control: "the secret's name is in them"}
	switch {
	case strings.Contains(string(said), value):
		res.Outcome, res.Why = Broke, "an answer has it"
	case !strings.Contains(string(said), s.Name):
		res.Outcome, res.Why, res.Control = Skipped, "the answers do not tell of the secret at all", ""
	}
	r.add(res)
}

// tenancy creates two owners, and tries to access the objects of one as the other.
func (r *run) tenancy(ctx context.Context) {
	owner := func() (*client.Client, func(), error) {
		n := name()
		k, err := r.Client.CreateKey(ctx, v1.KeyRequest{Name: n, Owner: n, ExpiresIn: v1.Duration(time.Hour)})
		if err != nil {
			return nil, nil, err
		}
		return r.As(k.Secret), func() { clean(ctx, func(ctx context.Context) error { return r.Client.RevokeKey(ctx, k.ID) }) }, nil
	}
	const group = "tenancy"
	ann, leave, err := owner()
	if err != nil {
		r.skip(group, "two owners", fmt.Errorf("needs an administrator's key: %w", err))
		return
	}
	defer leave()
	mallory, leave, err := owner()
	if err != nil {
		r.skip(group, "two owners", err)
		return
	}
	defer leave()
	x, err := ann.Run(ctx, v1.ExecutionRequest{Language: "bash", Code: "echo x > kept", Timeout: patience})
	if err != nil {
		r.skip(group, "two owners", err)
		return
	}
	box, err := ann.CreateSandbox(ctx, v1.SandboxRequest{Lifetime: v1.Lifetime{Timeout: v1.Duration(10 * time.Minute)}})
	if err != nil {
		r.skip(group, "two owners", err)
		return
	}
	defer clean(ctx, func(ctx context.Context) error { return ann.StopSandbox(ctx, box.ID) })
	secret, serr := ann.CreateSecret(ctx, v1.SecretRequest{Name: name(), Value: rand.Text()})
	defer clean(ctx, func(ctx context.Context) error { return ann.RemoveSecret(ctx, secret.Name) })
	volume, verr := ann.CreateVolume(ctx, v1.VolumeRequest{Name: name(), Capacity: 16 << 20})
	defer clean(ctx, func(ctx context.Context) error { return ann.RemoveVolume(ctx, volume.ID) })

	// Each call is tried by mallory, and must fail; then by ann, and must succeed.
	for _, t := range []struct {
		name string
		made error
		do   func(c *client.Client) error
	}{
		{"reading an execution", nil, func(c *client.Client) error { _, err := c.Execution(ctx, x.ID); return err }},
		{"finding executions", nil, func(c *client.Client) error {
			for e, err := range c.Executions(ctx, "") {
				if err != nil || e.ID == x.ID {
					return err
				}
			}
			return errNothing
		}},
		{"reading events", nil, func(c *client.Client) error {
			events, err := c.Events(ctx, client.EventFilter{Subject: box.ID})
			if err == nil && len(events) == 0 {
				return errNothing
			}
			return err
		}},
		{"reading a sandbox", nil, func(c *client.Client) error { _, err := c.Sandbox(ctx, box.ID); return err }},
		{"running a command in a sandbox", nil, func(c *client.Client) error {
			_, err := c.Exec(ctx, box.ID, v1.ProcessRequest{Args: []string{"true"}})
			return err
		}},
		{"writing into a sandbox", nil, func(c *client.Client) error {
			_, err := c.Files(box.ID).Write(ctx, "/tmp/x", strings.NewReader("x"))
			return err
		}},
		{"changing a sandbox's policy", nil, func(c *client.Client) error {
			_, err := c.SetNetwork(ctx, box.ID, v1.NetworkPolicy{Mode: "none"})
			return err
		}},
		{"reading a sandbox's network log", nil, func(c *client.Client) error {
			for _, err := range c.NetworkLog(ctx, box.ID, 0) {
				return err
			}
			return nil
		}},
		{"using a secret", serr, func(c *client.Client) error { _, err := c.Secret(ctx, secret.Name); return err }},
		{"reading a volume", verr, func(c *client.Client) error { _, err := c.VolumeFiles(volume.ID).List(ctx, "/", 1); return err }},
		{"stopping a sandbox", nil, func(c *client.Client) error { return c.StopSandbox(ctx, box.ID) }},
	} {
		res := Result{Group: group, Name: t.name, Outcome: Skipped}
		if t.made != nil {
			res.Why = t.made.Error()
		} else if err := t.do(mallory); err == nil {
			res.Outcome, res.Why = Broke, "another owner can"
		} else if own := t.do(ann); own != nil {
			res.Why = "its owner cannot either: " + own.Error()
		} else {
			res.Outcome, res.Control = Held, "its owner can"
		}
		r.add(res)
	}
}

var errNothing = fmt.Errorf("no document is found")

// exhaustion runs programs that use all resources they can get: each must end with the expected cause,
// and another program that runs at the same time must give the right answer.
func (r *run) exhaustion(ctx context.Context) {
	for _, p := range []struct {
		name string
		q    v1.ExecutionRequest
		want string // expected causes
	}{
		{"a fork bomb", v1.ExecutionRequest{Language: "bash", Processes: 64, Code: `bomb() { bomb | bomb & }; bomb; sleep 60`}, "processes timeout"},
		{"all memory", v1.ExecutionRequest{Language: "python", Memory: 128 << 20, Code: "a = []\nwhile True: a.append(bytearray(b'x' * (8 << 20)))\n"}, "memory"},
		{"all of the disk", v1.ExecutionRequest{Language: "python", Disk: 64 << 20, Code: "f = open('/tmp/big', 'wb')\nwhile True: f.write(b'x' * (1 << 20))\n"}, "disk"},
		{"output without end", v1.ExecutionRequest{Language: "bash", Output: 1 << 20, Code: `yes 0123456789`}, "output"},
		{"a loop that ignores signals", v1.ExecutionRequest{Language: "python", Timeout: v1.Duration(2 * time.Second),
			Code: "import signal, os\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nif os.fork() == 0: os.setsid()\nwhile True: pass\n"}, "timeout"},
	} {
		if p.q.Timeout == 0 {
			p.q.Timeout = v1.Duration(20 * time.Second)
		}
		ended := make(chan Result, 1)
		go func() {
			res := Result{Group: "exhaustion", Name: p.name, Outcome: Held}
			x, err := r.Client.Run(ctx, p.q)
			switch {
			case err != nil:
				res.Outcome, res.Why = Skipped, err.Error()
			case x.Result == nil || !strings.Contains(p.want, x.Result.Cause):
				res.Outcome, res.Why = Broke, fmt.Sprintf("it ended by %+v, not by %s", x.Result, p.want)
			default:
				res.Control = "it ended by its cause: " + x.Result.Cause
			}
			ended <- res
		}()
		beside, err := r.Client.Run(ctx, v1.ExecutionRequest{Language: "bash", Code: "echo $((6 * 7))", Timeout: patience})
		res := <-ended
		if res.Outcome == Held && (err != nil || beside.Result == nil || beside.Result.Stdout != "42\n") {
			res.Outcome, res.Why = Broke, fmt.Sprintf("a program beside it did not work: %+v, %v", beside.Result, err)
		}
		r.add(res)
	}
}

package egress

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"

	"github.com/engi-dev/engi/test/env"
)

// TestBuildsOfOwners: their commands reach the registries that the operator
// allows. They reach no other hosts, and see nothing of the server's environment.
func TestBuildsOfOwners(t *testing.T) {
	env.Slow(t)
	w := testInternet(t)
	w.name("packages.test", "93.184.216.60")
	w.name("elsewhere.test", "93.184.217.60")
	w.name("inside.packages.test", "10.1.2.3")
	n := sharedNode(t)
	builder, ok := n.Templates().(engi.TemplateBuilder)
	if !ok {
		t.Fatal("the node builds no templates")
	}
	const reach = `import socket, sys
for to in sys.argv[1:]:
    host, port = to.rsplit(":", 1)
    try:
        with socket.create_connection((host, int(port)), timeout=5) as c:
            c.settimeout(3)
            if port == "80":
                c.sendall(b"GET / HTTP/1.0\r\nHost: " + host.encode() + b"\r\n\r\n")
            print("reach", to, "yes" if c.recv(1) else "no")
    except OSError:
        print("reach", to, "no")
`
	canary := fmt.Sprint(canaryPort)
	targets := map[string]string{
		"packages.test:80": "yes", "elsewhere.test:80": "no", "93.184.217.60:80": "no", "inside.packages.test:80": "no",
		"127.0.0.1:" + canary: "no", hostAddr4.String() + ":" + canary: "no", "10.88.0.1:" + canary: "no",
		"10.1.2.3:80": "no", "169.254.169.254:80": "no",
	}
	var command strings.Builder
	fmt.Fprintf(&command, "env; cat /etc/resolv.conf /etc/hosts; python3 - <<'END'\n%s\nEND\n", strings.Replace(reach, "sys.argv[1:]", list(targets), 1))
	var lines []string
	_, err := builder.BuildSteps(t.Context(), engi.BuildSpec{
		Name: "own-egress", Owner: "ann", FromTemplate: "base", Force: true,
		Steps: []engi.BuildStep{{Type: engi.StepRun, Args: []string{command.String()}}},
	}, func(p engi.Progress) {
		if p.Log != "" {
			lines = append(lines, p.Log)
		}
	})
	t.Cleanup(func() {
		if err := engi.Ignore(n.Templates().Remove(context.WithoutCancel(t.Context()), "own-egress"), engi.NotFound); err != nil {
			t.Log(err)
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(lines, "\n"))
	}
	said := strings.Join(lines, "\n")
	for to, want := range targets {
		if !strings.Contains(said, "reach "+to+" "+want) {
			t.Errorf("%s is not answered with %s", to, want)
		}
	}
	if strings.Contains(said, "password") || strings.Contains(said, "PIP_EXTRA_INDEX_URL") {
		t.Error("the command has the server's environment")
	}
	if t.Failed() {
		t.Log(said)
	}
}

// TestBuildsOfOwnersEndWhenTheDiskIsFull: a real command cannot write much more than the
// quota, in files or in /tmp.
func TestBuildsOfOwnersEndWhenTheDiskIsFull(t *testing.T) {
	env.Slow(t)
	testInternet(t)
	builder, ok := sharedNode(t).Templates().(engi.TemplateBuilder)
	if !ok {
		t.Fatal("the node builds no templates")
	}
	var last string
	_, err := builder.BuildSteps(t.Context(), engi.BuildSpec{
		Name: "small", Owner: "small", FromTemplate: "base",
		Steps: []engi.BuildStep{{Type: engi.StepRun, Args: []string{"cat /proc/mounts; for i in $(seq 1000); do head -c 20M /dev/zero > /big$i || exit; echo wrote $i; sleep 0.1; done", "root"}}},
	}, func(p engi.Progress) {
		if strings.HasPrefix(p.Log, "wrote ") {
			last = p.Log
		}
		if strings.Contains(p.Log, " /tmp ") && !strings.Contains(p.Log, " tmpfs ") {
			t.Errorf("/tmp has no limit: %s", p.Log)
		}
	})
	if !engi.Is(err, engi.Exhausted) || engi.RemedyOf(err) == "" || last == "" {
		t.Errorf("after %q: %v", last, err)
	}
	var n int
	if _, err := fmt.Sscanf(last, "wrote %d", &n); err != nil || n > 500 {
		t.Errorf("%q, %v", last, err)
	}
}

// list returns a Python list of targets.
func list(targets map[string]string) string {
	var b strings.Builder
	for to := range targets {
		fmt.Fprintf(&b, "%q, ", to)
	}
	return "[" + b.String() + "]"
}

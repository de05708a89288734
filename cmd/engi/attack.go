package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/attack"
	"github.com/engi-dev/engi/internal/engi"
)

type attackCommand struct {
	Run    attackRun    `cmd:"" default:"withargs" help:"Attack a node with hostile programs, and report which defences held."`
	Verify attackVerify `cmd:"" help:"Check the signature of a report."`
}

type attackRun struct {
	Only    []string `help:"Groups of attacks: escape, egress, secrets, tenancy, exhaustion (default: all)." placeholder:"GROUP" sep:","`
	Report  string   `help:"File to write a signed report to." placeholder:"FILE" type:"path"`
	KeyFile string   `help:"Private key that signs the report, created if it is missing (default: attack.key in your configuration directory)." placeholder:"FILE" type:"path"`
	Remote  bool     `help:"Treat the node as one on another machine, although its address looks local."`
}

func (attackRun) Help() string {
	return `Runs the attack programs of engi's own tests: escapes from sandboxes, ways around the network
policy, searches for secrets, access to other tenants' objects, and exhaustion of resources. Needs
an admin key, because it creates two owners; it removes everything that it creates.

For each attack, the report says that the defence held, that it broke, or that the attack was
skipped, with the reason. Attacks on the network policy have a control, which is the same program
with an open policy: if the control fails too, the attack proves nothing and is skipped. Exits with
0 if every defence held, with 3 if one broke, and with 1 if no attack could be tried.

Examples:
  engi attack
  engi attack --only escape,tenancy --json
  engi attack --report report.json && engi attack verify report.json`
}

// exitBroke is the exit code of an attack that succeeded.
const exitBroke = 3

func (a *attackRun) Run(ctx context.Context, g *globals) error {
	for _, group := range a.Only {
		if !strings.Contains(" "+strings.Join(attack.Groups, " ")+" ", " "+group+" ") {
			return engi.Errorf(engi.Invalid, "there is no group %q", group).WithRemedy("name some of %s", strings.Join(attack.Groups, ", "))
		}
	}
	c, err := g.connect(ctx, orPrivate)
	if err != nil {
		return err
	}
	defer c.close()
	o := attack.Options{Client: c.Client, As: func(key string) *client.Client { return client.New(c.url, key) }, Only: a.Only}
	report := attack.Report{Date: time.Now().UTC().Truncate(time.Second), URL: c.url, Client: version}
	if !a.Remote && isHere(c.url) {
		leave, err := onHost(&o)
		if err != nil {
			return err
		}
		defer leave()
		if b, err := os.ReadFile("/proc/version"); err == nil {
			report.Kernel = strings.TrimSpace(string(b))
		}
	}
	if !g.JSON {
		o.Progress = func(r attack.Result) {
			fmt.Fprintf(g.out, "%-7s  %-10s  %s\n", r.Outcome, r.Group, r.Name)
			if r.Why != "" {
				fmt.Fprintf(g.out, "                       %s\n", r.Why)
			}
		}
	}
	if report.Results, err = attack.Run(ctx, o); err != nil {
		return err
	}
	if report.Node, err = c.Node(ctx); err != nil {
		return err
	}
	report.Policy, report.Pins, report.Counts = attack.DefaultPolicy(ctx, o.Client), pins(report.Date), attack.Count(report.Results)
	if a.Report != "" {
		if err := a.write(report); err != nil {
			return err
		}
	}
	if g.JSON {
		if err := g.printJSON(report); err != nil {
			return err
		}
	} else {
		g.printCounts(report)
	}
	switch {
	case report.Counts[attack.Broke] > 0:
		return exitCode(exitBroke)
	case report.Counts[attack.Held] == 0:
		return engi.Errorf(engi.Unavailable, "no attempt could be made").WithRemedy("see the reasons above; 'engi doctor' shows the missing parts")
	}
	return nil
}

func (g *globals) printCounts(r attack.Report) {
	w := tabwriter.NewWriter(g.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nGROUP\tHELD\tBROKE\tSKIPPED")
	for _, group := range attack.Groups {
		n := map[string]int{}
		for _, x := range r.Results {
			if x.Group == group {
				n[x.Outcome]++
			}
		}
		if len(n) > 0 {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", group, n[attack.Held], n[attack.Broke], n[attack.Skipped])
		}
	}
	w.Flush()
}

func (a *attackRun) write(r attack.Report) error {
	path := a.KeyFile
	if path == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return engi.Errorf(engi.Unavailable, "find a place for the key: %v", err).WithRemedy("name one with --key-file")
		}
		path = filepath.Join(dir, "engi", "attack.key")
	}
	key, err := attack.LoadKey(path)
	if err != nil {
		return engi.Errorf(engi.Unavailable, "the key of reports: %v", err).WithRemedy("name another one with --key-file")
	}
	s, err := attack.Sign(r, key)
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(a.Report, append(b, '\n'), 0o644); err != nil {
		return engi.Errorf(engi.Unavailable, "write the report: %v", err).WithRemedy("name another file with --report")
	}
	return nil
}

// isHere reports whether a node is on this machine.
func isHere(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// onHost creates a file and listeners on this machine, which no sandbox may reach.
func onHost(o *attack.Options) (leave func(), err error) {
	dir, err := os.MkdirTemp("", "engi-attack-")
	if err != nil {
		return nil, err
	}
	o.Canary = filepath.Join(dir, "canary")
	if err := os.WriteFile(o.Canary, []byte("of the host\n"), 0o644); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", ":0")
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(attack.Greeting))
			conn.Close()
		}
	}()
	addresses, err := net.InterfaceAddrs()
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() && !n.IP.IsLoopback() {
			o.Here = append(o.Here, net.JoinHostPort(n.IP.String(), fmt.Sprint(ln.Addr().(*net.TCPAddr).Port)))
		}
	}
	return func() {
		ln.Close()
		<-done
		os.RemoveAll(dir)
	}, err
}

// pins returns the versions of the programs that isolate sandboxes, as built into this program.
func pins(now time.Time) (all []attack.Pin) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, m := range info.Deps {
		if m.Path == "gvisor.dev/gvisor" {
			all = append(all, attack.Pin{Module: m.Path, Version: m.Version, Days: attack.Age(m.Version, now)})
		}
	}
	return all
}

type attackVerify struct {
	File string `arg:"" help:"Signed report." placeholder:"FILE" type:"existingfile"`
	By   string `help:"Fingerprint of the key that must have signed it." placeholder:"ed25519:…"`
}

func (attackVerify) Help() string {
	return `Exits with 0 if the signature matches the report and the key in it. Compare the key's fingerprint
with one that you know, or pass that one as --by.

Examples:
  engi attack verify report.json
  engi attack verify report.json --by ed25519:0123456789abcdef0123456789abcdef`
}

func (a *attackVerify) Run(g *globals) error {
	b, err := os.ReadFile(a.File)
	if err != nil {
		return err
	}
	r, key, err := attack.Verify(b)
	if err != nil {
		return engi.Errorf(engi.Invalid, "%s: %v", a.File, err).WithRemedy("ask for the original of the report")
	}
	by := attack.Fingerprint(key)
	if a.By != "" && a.By != by {
		return engi.Errorf(engi.Denied, "%s is signed by %s, not by %s", a.File, by, a.By).WithRemedy("ask which user has this key")
	}
	if g.JSON {
		return g.printJSON(map[string]any{"by": by, "report": r})
	}
	fmt.Fprintf(g.out, "signed by %s\n%s, engi %s on %s, %s\n", by, r.URL, r.Node.Version, r.Node.Tier, r.Date.Format(time.RFC3339))
	g.printCounts(r)
	for _, x := range r.Results {
		if x.Outcome != attack.Held {
			fmt.Fprintf(g.out, "%-7s  %-10s  %s: %s\n", x.Outcome, x.Group, x.Name, x.Why)
		}
	}
	return nil
}

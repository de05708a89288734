// Package deno runs TypeScript in the sandbox of a session. Each piece of code runs
// in a Deno process of its own, which is started before the code arrives, with
// the permissions of the session's policy. The value of the last
// expression is returned as JSON, the output unchanged.
//
// Deno's permissions are not the isolation, which is the sandbox and its egress policy; they
// only fail earlier and with better messages.
package deno

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

//go:embed run.mjs
var program []byte

// programPath is the path of the program in sandboxes. It contains a hash of the
// content, so that a newer version of engi does not use an older program.
var programPath = func() string {
	sum := sha256.Sum256(program)
	return "/run/engi/run-" + hex.EncodeToString(sum[:6]) + ".mjs"
}()

const (
	// MaxCode is the maximum size of a piece of code, in bytes.
	MaxCode = 1 << 20
	// MaxValue is the maximum size of the JSON of a value, in bytes.
	MaxValue = 1 << 20
	// MaxOutput is the maximum number of bytes of each output stream in a result.
	MaxOutput = 1 << 20

	// publicRegistry is the registry from which packages appear to come, whatever mirror the
	// sandbox's other programs use; see package internal/session/deps.
	publicRegistry = "https://registry.npmjs.org/"

	killTimeout = 5 * time.Second // maximum time in which the guest must end a process
	exitTimeout = 2 * time.Second // maximum time in which a process must end after its answer
	tagPrefix   = "engi-code-"    // followed by the ID of the session
)

// Options holds the permissions and settings of a process.
type Options struct {
	Session engi.SessionID     // session to which the process belongs
	Dir     string             // absolute working directory, in which it may read and write
	Config  string             // path of deno.json in the sandbox; empty if no packages are installed
	Network engi.NetworkPolicy // network policy of the sandbox
	Env     map[string]string  // added to the sandbox's environment; values may be secret
	Names   []string           // names of other variables that code may read
	Memory  int64              // memory of the sandbox, in bytes; 0 means no limit
}

// A Request is a piece of code.
type Request struct {
	Code     string
	Language engi.Language // empty means TypeScript
	Timeout  time.Duration // 0 means no limit
}

// Prepare writes the files that processes need to a sandbox. Unless the sandbox is
// fresh, it also ends processes that an earlier process of the node left there for a session; see [Kill].
func Prepare(ctx context.Context, g engi.Guest, session engi.SessionID, fresh bool) (err error) {
	defer engi.Annotate(&err, "prepare the sandbox for code")
	if !fresh {
		if err := Kill(ctx, g, session); err != nil {
			return err
		}
		if _, err := g.Stat(ctx, programPath); !engi.Is(err, engi.NotFound) {
			return err
		}
	}
	return g.Write(ctx, programPath, strings.NewReader(string(program)), engi.WriteOptions{Mode: 0o644, User: "root"})
}

// Kill ends all processes of a session in a sandbox; an empty ID means those of all sessions.
func Kill(ctx context.Context, g engi.Guest, session engi.SessionID) error {
	all, err := g.Processes(ctx)
	if err != nil {
		return err
	}
	prefix := tagPrefix
	if session != "" {
		prefix += string(session) + "-"
	}
	for _, p := range all {
		if p.Ended || !strings.HasPrefix(p.Tag, prefix) {
			continue
		}
		old, err := g.Attach(ctx, p.ID)
		if err == nil {
			err = old.Signal(ctx, "KILL")
		}
		if err != nil && !engi.Is(err, engi.NotFound) {
			return err
		}
	}
	return nil
}

// A Runner is a process that waits for one piece of code. It is not safe for
// concurrent use.
type Runner struct {
	process engi.Process
	marker  string
}

// Start starts a process in a prepared sandbox. The caller must call Run or Kill.
func Start(ctx context.Context, g engi.Guest, o Options) (*Runner, error) {
	env := map[string]string{"NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1", "NPM_CONFIG_REGISTRY": publicRegistry}
	if o.Config != "" {
		env["DENO_DIR"] = path.Join(path.Dir(o.Config), "cache")
	}
	maps.Copy(env, o.Env)
	p, err := g.Start(ctx, engi.Command{
		Args: args(o), Env: env, Dir: o.Dir, Tag: tagPrefix + string(o.Session) + "-" + rand.Text(), Stdin: engi.StdinPipe, Output: 4 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("start deno: %w", err)
	}
	return &Runner{process: p, marker: rand.Text()}, nil
}

// ErrStale means that a process ended before it got its code, which can be run in another
// process.
var ErrStale = engi.Errorf(engi.Unavailable, "the process that waited for the code has ended")

// Kill ends the process.
func (r *Runner) Kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	if err := engi.Ignore(r.process.Signal(ctx, "KILL"), engi.NotFound); err != nil {
		return err
	}
	return nil
}

// Run runs a piece of code and ends the process. out, if not nil, receives its output
// while it runs. A failure of the code is a result; Unavailable means that the sandbox
// has died, Expired that ctx has ended.
func (r *Runner) Run(ctx context.Context, q Request, out func(engi.Chunk)) (res engi.CodeResult, err error) {
	began := time.Now()
	line, err := json.Marshal(map[string]any{"code": q.Code, "language": cmp.Or(q.Language, engi.TypeScript), "mark": r.marker, "most": MaxValue})
	if err != nil {
		return res, engi.Errorf(engi.Internal, "encode code: %v", err)
	}
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	late := make(chan struct{})
	if q.Timeout > 0 {
		timer := time.AfterFunc(q.Timeout, func() {
			close(late)
			_ = r.Kill(ctx) // this ends the output; otherwise run ends
			time.AfterFunc(killTimeout, cancel)
		})
		defer timer.Stop()
	}
	defer func() {
		if e := r.Kill(ctx); e != nil && err == nil && !engi.Is(e, engi.Unavailable) {
			err = e
		}
		res.Duration = time.Since(began)
	}()
	c := newCollector(r.marker, out)
	if err := r.process.Input(run, append(line, '\n')); err != nil {
		if !engi.Is(err, engi.Expired) {
			err = fmt.Errorf("%w: %w", ErrStale, err)
		}
		return res, err
	}
	// If the process has ended, the reason is determined below.
	_ = r.process.CloseInput(run)
	for chunk, e := range r.process.Output(run, 0) {
		if e != nil {
			if isClosed(late) {
				break
			}
			return res, e
		}
		if c.add(chunk); c.complete() && run.Err() == nil {
			time.AfterFunc(exitTimeout, cancel) // the rest of the output arrives at once, or never
		}
		if c.complete() && run.Err() != nil {
			break
		}
	}
	c.flush()
	res = c.result()
	if isClosed(late) && !c.complete() {
		res.Error = &engi.CodeError{Cause: engi.CauseTimeout, Message: fmt.Sprintf("the code ran longer than %v", q.Timeout)}
		return res, nil
	}
	if c.complete() {
		c.decode(&res)
		return res, nil
	}
	exit, err := r.process.Wait(ctx)
	if err != nil {
		return res, err
	}
	explain(&res, exit)
	return res, nil
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

var neverSettled = regexp.MustCompile(`(?s)error: Top-level await promise never resolved\n([^\n]*)\n.*?(?::(\d+):(\d+)\))?\s*$`)

// explain returns the reason why a process ended without an answer.
func explain(res *engi.CodeResult, exit engi.Exit) {
	e := &engi.CodeError{Cause: exit.Cause}
	switch m := neverSettled.FindStringSubmatchIndex(res.Stderr); {
	case exit.Cause != engi.CauseExited && exit.Cause != "":
		e.Message = "the code was ended: " + string(exit.Cause)
		if remedy := exit.Cause.Remedy(); remedy != "" {
			e.Message = remedy
		}
	case strings.Contains(res.Stderr, "out of memory"):
		e.Cause, e.Message = engi.CauseMemory, "the code used more memory than the session may"
	case exit.Code == 1 && m != nil:
		e.Message = "the code awaits a promise that nothing will settle"
		excerpt := res.Stderr[m[2]:m[3]]
		if m[4] >= 0 {
			fmt.Sscan(res.Stderr[m[4]:m[5]], &e.Line)
			fmt.Sscan(res.Stderr[m[6]:m[7]], &e.Column)
		}
		const prefix = "export default ("
		if i := strings.Index(excerpt, prefix); i >= 0 && e.Column > i+len(prefix) {
			e.Column -= len(prefix)
		}
		res.Stderr = res.Stderr[:m[0]]
	case exit.Code == 0 && exit.Signal == "":
		res.OK = true // the code has ended the process
		return
	case exit.Signal != "":
		e.Message = "the program was ended by signal " + exit.Signal
	default:
		e.Message = fmt.Sprintf("the code ended the program with exit status %d", exit.Code)
	}
	res.Error = e
}

// harmless lists variables that every process may read.
var publicVariables = []string{"HOME", "PATH", "USER", "LANG", "TZ", "NODE_ENV", "NO_COLOR", "ENGI_SANDBOX_ID"}

var variablePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// args returns the command line of a process.
func args(o Options) []string {
	a := []string{"deno", "run", "--quiet", "--no-prompt", "--cached-only", "--allow-sys", "--ignore-env", "--allow-write=" + o.Dir}
	if o.Config == "" {
		a = append(a, "--no-config", "--no-lock", "--no-remote", "--allow-read="+o.Dir)
	} else {
		a = append(a, "--config="+o.Config, "--no-lock", "--allow-read="+o.Dir+","+path.Dir(o.Config))
	}
	names := slices.Concat(publicVariables, o.Names)
	for name := range o.Env {
		names = append(names, name)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !variablePattern.MatchString(n) })
	slices.Sort(names)
	a = append(a, "--allow-env="+strings.Join(slices.Compact(names), ","))
	if hosts, all := allowedHosts(o.Network); all {
		a = append(a, "--allow-net")
	} else {
		a = append(a, "--allow-net="+strings.Join(hosts, ","))
	}
	if mib := o.Memory >> 20; mib > 0 {
		// The code should run out of memory before the sandbox does. The rest of the memory is
		// for allocations outside of V8's heap.
		a = append(a, fmt.Sprintf("--v8-flags=--max-old-space-size=%d", max(64, mib*7/10)))
	}
	return append(a, programPath, "file://"+o.Dir+"/")
}

var hostPattern = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?$`)

// hosts converts a policy to the hosts that Deno allows, or reports that Deno must
// allow all. Deno supports neither ranges of ports nor protocols, so it may allow connections
// that the egress policy refuses.
func allowedHosts(p engi.NetworkPolicy) (list []string, all bool) {
	list = []string{"localhost", "127.0.0.1", "[::1]"}
	switch {
	case p.Mode == engi.NetworkNone:
		return list, false
	case p.Mode == engi.NetworkOpen || p.Mode == "" || p.Group != "" || p.Proxy != nil:
		return nil, true
	case p.Mode == engi.NetworkIsolated:
		return list, false
	}
	rules := slices.Clone(p.Allow)
	for _, g := range p.Grants {
		rules = append(rules, g.Hosts...)
	}
	for _, r := range p.Requests {
		rules = append(rules, r.Host)
	}
	for _, rule := range rules {
		if _, rest, ok := strings.Cut(rule, "://"); ok {
			rule = rest
		}
		h, ok := denoHost(rule)
		if !ok {
			return nil, true
		}
		if !slices.Contains(list, h) {
			list = append(list, h)
		}
	}
	return list, false
}

// host returns the target of a rule with its port, if any, or false if Deno does not
// support it.
func denoHost(rule string) (string, bool) {
	if _, err := netip.ParsePrefix(rule); err == nil {
		return rule, !strings.Contains(rule, ":")
	}
	if a, err := netip.ParseAddr(rule); err == nil {
		if a.Is6() {
			return "[" + a.String() + "]", a.Zone() == ""
		}
		return rule, true
	}
	if a, err := netip.ParseAddrPort(rule); err == nil {
		return a.String(), a.Addr().Zone() == ""
	}
	h, port, _ := strings.Cut(rule, ":")
	if !hostPattern.MatchString(h) {
		return "", false
	}
	var n int
	if _, err := fmt.Sscanf(port+"!", "%d!", &n); err != nil || n < 1 || n > 65535 {
		return h, port == "" || strings.Contains(port, "-")
	}
	return fmt.Sprintf("%s:%d", h, n), true
}

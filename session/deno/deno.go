// Package deno runs pieces of TypeScript in the sandbox of a session: each in
// a Deno process of its own, which is started before the code is known and may
// do what the session's policy lets it. The value of the last expression comes
// back as JSON, what the code prints as it is.
//
// It is not what keeps code in its place, that is the sandbox with its wall;
// Deno's permissions say no earlier, and in better words.
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

	"github.com/engi-dev/engi"
)

//go:embed run.mjs
var program []byte

// programPath names the program inside after its content, so that a newer
// engi does not mistake an older one's for its own.
var programPath = func() string {
	sum := sha256.Sum256(program)
	return "/run/engi/run-" + hex.EncodeToString(sum[:6]) + ".mjs"
}()

const (
	// MaxCode is how long a piece of code may be, in bytes.
	MaxCode = 1 << 20
	// MaxValue is how large the JSON of a value may be, in bytes.
	MaxValue = 1 << 20
	// MaxOutput is how much of each output stream a result keeps, in bytes.
	MaxOutput = 1 << 20

	// publicRegistry is where packages seem to come from, whatever mirror the
	// sandbox's other programs are told of; see package session/deps.
	publicRegistry = "https://registry.npmjs.org/"

	killTimeout = 5 * time.Second // that the guest has to end a process
	exitTimeout = 2 * time.Second // that a process has to end after its answer
	tagPrefix   = "engi-code-"
)

// Options say what a process may do. They are in force from its start on.
type Options struct {
	Dir     string             // absolute directory that it may read and write, and where relative names start
	Config  string             // deno.json inside that says what is installed; empty means nothing is
	Network engi.NetworkPolicy // of the sandbox
	Env     map[string]string  // added to the sandbox's environment; values may be secret
	Names   []string           // of further variables that code may read
	Memory  int64              // bytes of the sandbox; 0 bounds nothing
}

// A Request is a piece of code.
type Request struct {
	Code     string
	Language engi.Language // empty means TypeScript
	Timeout  time.Duration // 0 means none
}

// Prepare puts what processes need into a sandbox and, unless it is fresh, ends
// those that an earlier process of the node left there.
func Prepare(ctx context.Context, g engi.Guest, fresh bool) (err error) {
	defer engi.Annotate(&err, "prepare the sandbox for code")
	if !fresh {
		if err := killLeftovers(ctx, g); err != nil {
			return err
		}
		if _, err := g.Stat(ctx, programPath); err == nil || engi.KindOf(err) != engi.NotFound {
			return err
		}
	}
	return g.Write(ctx, programPath, strings.NewReader(string(program)), engi.WriteOptions{Mode: 0o644, User: "root"})
}

func killLeftovers(ctx context.Context, g engi.Guest) error {
	all, err := g.Processes(ctx)
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.Ended || !strings.HasPrefix(p.Tag, tagPrefix) {
			continue
		}
		old, err := g.Attach(ctx, p.ID)
		if err == nil {
			err = old.Signal(ctx, "KILL")
		}
		if err != nil && engi.KindOf(err) != engi.NotFound {
			return err
		}
	}
	return nil
}

// A Runner is a process that waits for its code. It runs one piece. It belongs
// to one goroutine.
type Runner struct {
	process engi.Process
	marker  string
}

// Start starts a process in a prepared sandbox. The caller calls Run or Kill.
func Start(ctx context.Context, g engi.Guest, o Options) (*Runner, error) {
	mark := rand.Text()
	env := map[string]string{"NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1", "NPM_CONFIG_REGISTRY": publicRegistry}
	if o.Config != "" {
		env["DENO_DIR"] = path.Join(path.Dir(o.Config), "cache")
	}
	maps.Copy(env, o.Env)
	p, err := g.Start(ctx, engi.Command{
		Args: args(o), Env: env, Dir: o.Dir, Tag: tagPrefix + mark, Stdin: engi.StdinPipe, Output: 4 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("start deno: %w", err)
	}
	return &Runner{process: p, marker: rand.Text()}, nil
}

// ErrStale says that a process ended before it got its code: another may run
// it.
var ErrStale = engi.Errorf(engi.Unavailable, "the process that waited for the code is gone")

// Kill ends the process, whatever it does.
func (r *Runner) Kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	if err := r.process.Signal(ctx, "KILL"); err != nil && engi.KindOf(err) != engi.NotFound {
		return err
	}
	return nil
}

// Run runs a piece of code and ends the process. out, if not nil, gets what it
// prints while it runs. A piece that fails is an answer; Unavailable means
// that the sandbox died under it, Expired that ctx ended first.
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
			_ = r.Kill(ctx) // then its output ends; if it does not, run ends
			time.AfterFunc(killTimeout, cancel)
		})
		defer timer.Stop()
	}
	defer func() {
		if e := r.Kill(ctx); e != nil && err == nil && engi.KindOf(e) != engi.Unavailable {
			err = e
		}
		res.Duration = time.Since(began)
	}()
	c := newCollector(r.marker, out)
	if err := r.process.Input(run, append(line, '\n')); err != nil {
		if engi.KindOf(err) != engi.Expired {
			err = fmt.Errorf("%w: %w", ErrStale, err)
		}
		return res, err
	}
	// A process that has ended meanwhile says why below.
	_ = r.process.CloseInput(run)
	for chunk, e := range r.process.Output(run, 0) {
		if e != nil {
			if isClosed(late) {
				break
			}
			return res, e
		}
		if c.add(chunk); c.complete() && run.Err() == nil {
			time.AfterFunc(exitTimeout, cancel) // the rest of what it printed comes at once, or never
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

// explain says why a process ended without an answer.
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
		res.OK = true // it ended itself
		return
	case exit.Signal != "":
		e.Message = "the program was ended by signal " + exit.Signal
	default:
		e.Message = fmt.Sprintf("the code ended the program with exit status %d", exit.Code)
	}
	res.Error = e
}

// harmless are variables that say nothing about anybody.
var publicVariables = []string{"HOME", "PATH", "USER", "LANG", "TZ", "NODE_ENV", "NO_COLOR", "ENGI_SANDBOX_ID"}

var variablePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// args is the command line of a process.
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
		// So that the code fails and not the sandbox. The rest is for what is
		// not on V8's heap.
		a = append(a, fmt.Sprintf("--v8-flags=--max-old-space-size=%d", max(64, mib*7/10)))
	}
	return append(a, programPath, "file://"+o.Dir+"/")
}

var hostPattern = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?$`)

// hosts is what a policy lets a process reach, in Deno's words, or that Deno
// shall leave it to the wall. Its words know no ranges of ports and no
// protocols: it may say yes where the wall says no.
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

// host is the target of a rule with its port, if it has one; false if Deno has
// no words for it.
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

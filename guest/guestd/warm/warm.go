// Package warm starts interpreters before their code is known. A started
// interpreter waits in its own start-up sequence, just before it would open
// the program's file, until it is told arguments and environment; what
// follows is the interpreter's own normal start, so a program cannot tell.
//
// What a waiting interpreter cannot be told any more (another file name, a
// variable it has read already) needs a cold start; [Fits] says when.
package warm

import (
	"bytes"
	_ "embed"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/guest/wire"
)

//go:embed hook.py
var hookPython []byte

//go:embed hook.cjs
var hookNode []byte

//go:embed hook.mjs
var hookDeno []byte

//go:embed hook.sh
var hookBash []byte

// A Start is how to start an interpreter.
type Start struct {
	Args []string // the program first, by its absolute path
	Env  map[string]string
}

// Cold returns how to run entry of a language the ordinary way. hook is the
// directory Install filled, or empty.
func Cold(l engi.Language, interpreter, entry string, args []string, env map[string]string, hook string) Start {
	s := Start{Args: append(command(l, interpreter, entry), args...), Env: env}
	if l == engi.Python && hook != "" && env["PYTHONUNBUFFERED"] == "" {
		s.Env = pythonEnv(env, hook, "cold")
	}
	return s
}

func command(l engi.Language, interpreter, entry string) []string {
	if l == engi.TypeScript {
		return []string{interpreter, "run", "-A", "--no-remote", entry}
	}
	return []string{interpreter, entry}
}

func clone(env map[string]string, more ...string) map[string]string {
	c := make(map[string]string, len(env)+len(more)/2)
	for k, v := range env {
		c[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		c[more[i]] = more[i+1]
	}
	return c
}

// pythonEnv makes Python find the hook as its sitecustomize.
func pythonEnv(env map[string]string, hook, mode string) map[string]string {
	c := clone(env, "PYTHONPATH", hook, "ENGI_HOOK", mode)
	if p, ok := env["PYTHONPATH"]; ok {
		c["ENGI_PYTHONPATH"] = p
		if p != "" {
			c["PYTHONPATH"] = hook + ":" + p
		}
	}
	return c
}

// Waiting returns how to start an interpreter that waits. hook is the
// directory Install filled.
func Waiting(l engi.Language, interpreter string, env map[string]string, hook string) (Start, error) {
	entry := wire.Entry(l)
	switch l {
	case engi.Python:
		return Start{command(l, interpreter, entry), pythonEnv(env, hook, "wait")}, nil
	case engi.JavaScript:
		options := "--require=" + filepath.Join(hook, "hook.cjs")
		if o, ok := env["NODE_OPTIONS"]; ok {
			return Start{command(l, interpreter, entry), clone(env, "NODE_OPTIONS", options+" "+o, "ENGI_NODE_OPTIONS", o)}, nil
		}
		return Start{command(l, interpreter, entry), clone(env, "NODE_OPTIONS", options)}, nil
	case engi.TypeScript:
		args := []string{interpreter, "run", "-A", "--no-remote", "--preload", filepath.Join(hook, "hook.mjs"), entry}
		return Start{args, env}, nil
	case engi.Bash:
		return Start{command(l, interpreter, entry), clone(env, "BASH_ENV", filepath.Join(hook, "hook.sh"), "ENGI_HOOK", hook)}, nil
	}
	return Start{}, engi.Errorf(engi.Unsupported, "%s has no interpreter that could wait", l)
}

// A Hook is a private directory with what a starting interpreter reads, and
// the two named pipes by which it is told to go on.
type Hook struct {
	Dir      string // removed when the interpreter waits, or for its run's end
	language engi.Language
	ready    *os.File
	goOn     *os.File
}

// Install makes the hook of a language in dir, which must not exist. uid and
// gid are those of the interpreter; negative means the server's own.
func Install(l engi.Language, dir string, uid, gid int) (_ *Hook, err error) {
	name, text := hookFile(l)
	if name == "" {
		return nil, engi.Errorf(engi.Unsupported, "%s has no interpreter that could wait", l)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return nil, engi.Errorf(engi.Internal, "install hook: %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, engi.Errorf(engi.Internal, "install hook: %v", err)
	}
	made := &Hook{Dir: dir, language: l}
	defer func() {
		if err != nil {
			made.Close()
		}
	}()
	if err := os.WriteFile(path.Join(dir, name), text, 0o644); err != nil {
		return nil, engi.Errorf(engi.Internal, "install hook: %v", err)
	}
	if made.goOn, err = fifo(path.Join(dir, "go"), uid, gid); err != nil {
		return nil, err
	}
	if made.ready, err = fifo(path.Join(dir, "ready"), uid, gid); err != nil {
		return nil, err
	}
	return made, nil
}

func hookFile(l engi.Language) (name string, text []byte) {
	switch l {
	case engi.Python:
		return "sitecustomize.py", hookPython
	case engi.JavaScript:
		return "hook.cjs", hookNode
	case engi.TypeScript:
		return "hook.mjs", hookDeno
	case engi.Bash:
		return "hook.sh", hookBash
	}
	return "", nil
}

// fifo makes a named pipe and opens it for both directions, so that neither
// side waits for the other at open.
func fifo(name string, uid, gid int) (*os.File, error) {
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		return nil, engi.Errorf(engi.Internal, "make pipe %s: %v", name, err)
	}
	f, err := os.OpenFile(name, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "open pipe %s: %v", name, err)
	}
	if uid >= 0 {
		if err := f.Chown(uid, gid); err != nil {
			f.Close()
			return nil, engi.Errorf(engi.Internal, "give away pipe %s: %v", name, err)
		}
	}
	return f, nil
}

// Wait returns once the interpreter waits, and removes what it has read. It
// reports Unavailable if died is closed first, Expired after limit.
func (h *Hook) Wait(died <-chan struct{}, limit time.Duration) error {
	if err := h.ready.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return engi.Errorf(engi.Internal, "wait for interpreter: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		var b [1]byte
		_, err := h.ready.Read(b[:])
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return engi.Errorf(engi.Expired, "the interpreter did not start to wait: %v", err)
		}
	case <-died:
		h.ready.SetReadDeadline(time.Now())
		if err := <-done; err != nil {
			return engi.Errorf(engi.Unavailable, "the interpreter ended instead of waiting")
		}
	}
	h.ready.Close()
	if h.language != engi.JavaScript {
		os.RemoveAll(h.Dir)
		return nil
	}
	// Worker threads of node load what their main thread preloaded: nothing.
	if err := os.WriteFile(path.Join(h.Dir, "hook.cjs"), nil, 0o644); err != nil {
		return engi.Errorf(engi.Internal, "empty hook: %v", err)
	}
	for _, name := range []string{"go", "ready"} {
		os.Remove(path.Join(h.Dir, name))
	}
	return nil
}

// Go tells a waiting interpreter its arguments and variables.
func (h *Hook) Go(args []string, env map[string]string) error {
	msg := message(h.language, args, env)
	h.goOn.SetWriteDeadline(time.Now().Add(time.Second)) // it fits into the pipe, see Fits
	if _, err := h.goOn.Write(msg); err != nil {
		return engi.Errorf(engi.Unavailable, "tell the interpreter: %v", err)
	}
	if err := h.goOn.Close(); err != nil {
		return engi.Errorf(engi.Unavailable, "tell the interpreter: %v", err)
	}
	return nil
}

// Close gives the interpreter up. It may be repeated.
func (h *Hook) Close() {
	if h.goOn != nil {
		h.goOn.Close()
	}
	if h.ready != nil {
		h.ready.Close()
	}
	os.RemoveAll(h.Dir)
}

func message(l engi.Language, args []string, env map[string]string) []byte {
	var b bytes.Buffer
	if l == engi.Bash {
		for k, v := range env {
			b.WriteString("export " + k + "=" + quote(v) + "\n")
		}
		if len(args) > 0 {
			b.WriteString("set --")
			for _, a := range args {
				b.WriteString(" " + quote(a))
			}
			b.WriteByte('\n')
		}
		b.WriteByte(0)
		return b.Bytes()
	}
	// Each list begins with a word that counts for nothing, so that an empty
	// list and a list of an empty string differ. Two NULs in a row end a list;
	// Fits has refused empty arguments, which would look the same.
	b.WriteByte('a')
	for _, a := range args {
		b.WriteByte(0)
		b.WriteString(a)
	}
	b.WriteString("\x00\x00e")
	for k, v := range env {
		b.WriteByte(0)
		b.WriteString(k + "=" + v)
	}
	b.WriteString("\x00\x00")
	return b.Bytes()
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Fits reports whether a waiting interpreter can run entry exactly as a cold
// one would.
func Fits(l engi.Language, entry string, args []string, env map[string]string) bool {
	if entry != wire.Entry(l) {
		return false
	}
	size := 0
	for _, a := range args {
		if a == "" && l != engi.Bash {
			return false
		}
		size += len(a) + 8
	}
	for k, v := range env {
		if startup(l, k) {
			return false
		}
		if l == engi.Bash && !identifier(k) {
			return false
		}
		size += len(k) + len(v) + 16
	}
	if l == engi.Bash {
		return size < 1<<10 // bash reads a pipe byte by byte
	}
	return size < 32<<10
}

// startup reports whether an interpreter looks at a variable, or a library it
// has loaded does, before the program starts.
func startup(l engi.Language, name string) bool {
	for _, p := range []string{"LD_", "LC_", "GLIBC_", "MALLOC_"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	switch name {
	case "LANG", "LANGUAGE", "TZ", "PATH", "HOME":
		return true
	}
	var own []string
	switch l {
	case engi.Python:
		own = []string{"PYTHON", "OPENSSL_"}
	case engi.JavaScript:
		own = []string{"NODE", "UV_", "OPENSSL_", "SSL_", "NO_COLOR", "FORCE_COLOR", "V8_"}
	case engi.TypeScript:
		own = []string{"DENO", "NO_COLOR", "FORCE_COLOR", "V8_", "RUST_", "NPM_", "SSL_", "HTTP", "http", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy", "HOME", "XDG_"}
	case engi.Bash:
		own = []string{"BASH", "SHELL", "POSIX", "PS", "IFS", "ENV", "OPT", "HIST", "IGNOREEOF", "CDPATH", "GLOBIGNORE", "FUNCNEST", "TMOUT", "UID", "EUID", "PPID", "GROUPS", "RANDOM", "SECONDS", "LINENO", "EXECIGNORE", "CHILD_MAX", "SHLVL", "PWD", "OLDPWD", "TERM", "COMP_", "DIRSTACK", "EPOCH", "FIGNORE", "HOST", "INPUTRC", "MACHTYPE", "OSTYPE", "PIPESTATUS", "PROMPT", "READLINE", "REPLY", "SRANDOM", "_", "ENGI_"}
	}
	for _, p := range own {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

func identifier(s string) bool {
	for i, c := range []byte(s) {
		if !(c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || i > 0 && '0' <= c && c <= '9') {
			return false
		}
	}
	return s != ""
}

// Forget closes the pipes of a hook whose interpreter will not wait.
func (h *Hook) Forget() {
	h.goOn.Close()
	h.ready.Close()
}

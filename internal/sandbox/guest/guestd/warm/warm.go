// Package warm starts interpreters before their program is known. A preloaded
// script makes the interpreter wait during its start-up, just before it opens
// the program's file, until it receives arguments and environment. It then
// continues its normal start, so that a program cannot tell the difference.
//
// Some inputs come too late for a waiting interpreter, like another file name or
// a variable that it has already read. They need a cold start; see [CanServe].
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

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/guest/wire"
)

//go:embed preload.py
var preloadPython []byte

//go:embed preload.cjs
var preloadNode []byte

//go:embed preload.mjs
var preloadDeno []byte

//go:embed preload.sh
var preloadBash []byte

// A Command is the command line and environment of an interpreter.
type Command struct {
	Args []string // arguments, beginning with the absolute path of the program
	Env  map[string]string
}

// ColdCommand returns the command that runs entry in a fresh interpreter.
// preload is the directory of a Preload, or empty.
func ColdCommand(l engi.Language, interpreter, entry string, args []string, env map[string]string, preload string) Command {
	s := Command{Args: append(baseArgs(l, interpreter, entry), args...), Env: env}
	if l == engi.Python && preload != "" && env["PYTHONUNBUFFERED"] == "" {
		s.Env = pythonEnv(env, preload, "cold")
	}
	return s
}

func baseArgs(l engi.Language, interpreter, entry string) []string {
	if l == engi.TypeScript {
		return []string{interpreter, "run", "-A", "--no-remote", entry}
	}
	return []string{interpreter, entry}
}

// withVars returns a copy of env with more names and values.
func withVars(env map[string]string, more ...string) map[string]string {
	c := make(map[string]string, len(env)+len(more)/2)
	for k, v := range env {
		c[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		c[more[i]] = more[i+1]
	}
	return c
}

// pythonEnv makes Python load the preload as its sitecustomize.
func pythonEnv(env map[string]string, preload, mode string) map[string]string {
	c := withVars(env, "PYTHONPATH", preload, "ENGI_PRELOAD", mode)
	if p, ok := env["PYTHONPATH"]; ok {
		c["ENGI_PYTHONPATH"] = p
		if p != "" {
			c["PYTHONPATH"] = preload + ":" + p
		}
	}
	return c
}

// WaitingCommand returns the command that starts an interpreter that waits.
// preload is the directory of a Preload.
func WaitingCommand(l engi.Language, interpreter string, env map[string]string, preload string) (Command, error) {
	entry := wire.Entry(l)
	switch l {
	case engi.Python:
		return Command{baseArgs(l, interpreter, entry), pythonEnv(env, preload, "wait")}, nil
	case engi.JavaScript:
		options := "--require=" + filepath.Join(preload, "preload.cjs")
		if o, ok := env["NODE_OPTIONS"]; ok {
			return Command{baseArgs(l, interpreter, entry), withVars(env, "NODE_OPTIONS", options+" "+o, "ENGI_NODE_OPTIONS", o)}, nil
		}
		return Command{baseArgs(l, interpreter, entry), withVars(env, "NODE_OPTIONS", options)}, nil
	case engi.TypeScript:
		args := []string{interpreter, "run", "-A", "--no-remote", "--preload", filepath.Join(preload, "preload.mjs"), entry}
		return Command{args, env}, nil
	case engi.Bash:
		return Command{baseArgs(l, interpreter, entry), withVars(env, "BASH_ENV", filepath.Join(preload, "preload.sh"), "ENGI_PRELOAD", preload)}, nil
	}
	return Command{}, engi.Errorf(engi.Unsupported, "interpreters of %s cannot wait", l)
}

// A Preload is a directory with the script that a starting interpreter loads,
// and the two named pipes by which it reports that it waits and is released.
type Preload struct {
	Dir      string // the directory; removed once the interpreter waits, for JavaScript by the caller
	language engi.Language
	ready    *os.File
	release  *os.File
}

// NewPreload creates the preload of a language in dir, which must not exist. uid
// and gid are the interpreter's; negative means this program's own.
func NewPreload(l engi.Language, dir string, uid, gid int) (_ *Preload, err error) {
	name, text := preloadFile(l)
	if name == "" {
		return nil, engi.Errorf(engi.Unsupported, "interpreters of %s cannot wait", l)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return nil, engi.Errorf(engi.Internal, "install preload: %v", err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, engi.Errorf(engi.Internal, "install preload: %v", err)
	}
	p := &Preload{Dir: dir, language: l}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if err := os.WriteFile(path.Join(dir, name), text, 0o644); err != nil {
		return nil, engi.Errorf(engi.Internal, "install preload: %v", err)
	}
	if p.release, err = MakeFIFO(path.Join(dir, "go"), uid, gid); err != nil {
		return nil, err
	}
	if p.ready, err = MakeFIFO(path.Join(dir, "ready"), uid, gid); err != nil {
		return nil, err
	}
	return p, nil
}

func preloadFile(l engi.Language) (name string, text []byte) {
	switch l {
	case engi.Python:
		return "sitecustomize.py", preloadPython
	case engi.JavaScript:
		return "preload.cjs", preloadNode
	case engi.TypeScript:
		return "preload.mjs", preloadDeno
	case engi.Bash:
		return "preload.sh", preloadBash
	}
	return "", nil
}

// MakeFIFO creates a named pipe for a user and opens it for reading and writing, so
// that neither side blocks in open. Negative IDs mean this program's own.
func MakeFIFO(name string, uid, gid int) (*os.File, error) {
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		return nil, engi.Errorf(engi.Internal, "create pipe %s: %v", name, err)
	}
	f, err := os.OpenFile(name, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, engi.Errorf(engi.Internal, "open pipe %s: %v", name, err)
	}
	if uid >= 0 {
		if err := f.Chown(uid, gid); err != nil {
			f.Close()
			return nil, engi.Errorf(engi.Internal, "change the owner of pipe %s: %v", name, err)
		}
	}
	return f, nil
}

// WaitReady returns once the interpreter waits, and removes the files that the interpreter
// has read. It reports Unavailable if died is closed first, Expired after limit.
func (p *Preload) WaitReady(died <-chan struct{}, limit time.Duration) error {
	if err := p.ready.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return engi.Errorf(engi.Internal, "wait for the interpreter: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		var b [1]byte
		_, err := p.ready.Read(b[:])
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			return engi.Errorf(engi.Expired, "the interpreter did not become ready: %v", err)
		}
	case <-died:
		p.ready.SetReadDeadline(time.Now())
		if err := <-done; err != nil {
			return engi.Errorf(engi.Unavailable, "the interpreter ended during its start")
		}
	}
	p.ready.Close()
	if p.language != engi.JavaScript {
		os.RemoveAll(p.Dir)
		return nil
	}
	// Worker threads of node load the preload again: leave an empty file for them.
	if err := os.WriteFile(path.Join(p.Dir, "preload.cjs"), nil, 0o644); err != nil {
		return engi.Errorf(engi.Internal, "empty the preload: %v", err)
	}
	for _, name := range []string{"go", "ready"} {
		os.Remove(path.Join(p.Dir, name))
	}
	return nil
}

// Release sends a waiting interpreter its arguments and variables.
func (p *Preload) Release(args []string, env map[string]string) error {
	msg := releaseMessage(p.language, args, env)
	p.release.SetWriteDeadline(time.Now().Add(time.Second)) // the message fits into the pipe, see CanServe
	if _, err := p.release.Write(msg); err != nil {
		return engi.Errorf(engi.Unavailable, "release the interpreter: %v", err)
	}
	if err := p.release.Close(); err != nil {
		return engi.Errorf(engi.Unavailable, "release the interpreter: %v", err)
	}
	return nil
}

// Close makes a waiting interpreter exit, and removes all files. It may be
// called more than once.
func (p *Preload) Close() {
	if p.release != nil {
		p.release.Close()
	}
	if p.ready != nil {
		p.ready.Close()
	}
	os.RemoveAll(p.Dir)
}

func releaseMessage(l engi.Language, args []string, env map[string]string) []byte {
	var b bytes.Buffer
	if l == engi.Bash {
		for k, v := range env {
			b.WriteString("export " + k + "=" + Quote(v) + "\n")
		}
		if len(args) > 0 {
			b.WriteString("set --")
			for _, a := range args {
				b.WriteString(" " + Quote(a))
			}
			b.WriteByte('\n')
		}
		b.WriteByte(0)
		return b.Bytes()
	}
	// Each list begins with a dummy word, so that an empty list differs from a
	// list of one empty string. Two NULs end a list; CanServe refuses empty
	// arguments, which would encode the same.
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

// Quote quotes a word for a shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// CanServe reports whether a waiting interpreter can run entry exactly like a
// fresh one.
func CanServe(l engi.Language, entry string, args []string, env map[string]string) bool {
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
		if readAtStartup(l, k) {
			return false
		}
		if l == engi.Bash && !IsIdentifier(k) {
			return false
		}
		size += len(k) + len(v) + 16
	}
	if l == engi.Bash {
		return size < 1<<10 // bash reads pipes byte by byte
	}
	return size < 32<<10
}

// readAtStartup reports whether an interpreter, or a library that it loads, may
// read a variable before the program starts.
func readAtStartup(l engi.Language, name string) bool {
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

// IsIdentifier reports whether s can name a variable of a shell.
func IsIdentifier(s string) bool {
	for i, c := range []byte(s) {
		if !(c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || i > 0 && '0' <= c && c <= '9') {
			return false
		}
	}
	return s != ""
}

// ClosePipes closes the pipes of a preload whose interpreter will not wait.
func (p *Preload) ClosePipes() {
	p.release.Close()
	p.ready.Close()
}

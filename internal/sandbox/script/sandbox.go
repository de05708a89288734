package script

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/engi"
)

// Bounds of the functions of api.sandbox.
const (
	sandboxFileSize  = 1 << 20   // maximum size of a file, in bytes
	sandboxOutput    = 128 << 10 // maximum bytes kept of each stream of a command
	sandboxMaxOutput = 16 << 20  // maximum bytes that a command may print before it is killed
	sandboxEntries   = 5000      // maximum number of entries of a listing
	sandboxDepth     = 20        // maximum number of levels of a listing
	// sandboxHome is the base of relative paths: the volume of the session.
	sandboxHome = "/workspace"
	// killTimeout is the maximum time for killing a command after the end of its script.
	killTimeout = 2 * time.Second
)

// Sandbox returns api.sandbox: functions for files and commands in the sandbox of
// the script's session. Scripts without a session do not have these functions. All data
// from a sandbox is treated as hostile.
func Sandbox() []API {
	describe := func(name, signature, description, items string) engi.ScriptAPI {
		return engi.ScriptAPI{Name: "sandbox." + name, Signature: signature, Description: description, Schema: schema(items), Session: true}
	}
	const file = `{"type":"string","minLength":1}`
	read := describe("read", "(path: string, options?: { encoding?: \"utf8\" | \"base64\" }) => Promise<string>",
		"Returns a file's content, at most 1 MiB. Relative paths begin at /workspace.",
		file+`,{"type":"object","properties":{"encoding":{"enum":["utf8","base64"]}}}`)
	write := describe("write", "(path: string, content: string, options?: { encoding?: \"utf8\" | \"base64\" }) => Promise<void>",
		"Replaces a file's content and creates its parent directories.",
		file+`,{"type":"string"},{"type":"object","properties":{"encoding":{"enum":["utf8","base64"]}}}`)
	list := describe("list", "(path?: string, options?: { depth?: number }) => Promise<SandboxFile[]>",
		"Lists a directory, depth levels deep, by default 1.",
		`{"type":"string"},{"type":"object","properties":{"depth":{"type":"integer","minimum":1,"maximum":20}}}`)
	list.Types = `interface SandboxFile { path: string; type: "file" | "dir" | "link" | "other"; size: number; modified: string; target?: string }
interface SandboxExit { exitCode: number; signal?: string; cause: string; stdout: string; stderr: string; truncated: boolean }`
	run := describe("run", "(command: string | string[], options?: { dir?: string; env?: Record<string, string>; stdin?: string; timeout?: number }) => Promise<SandboxExit>",
		"Runs a command and waits for its end: a string is run by the shell, a list directly. It is killed after timeout milliseconds, and when the script ends.",
		`{"anyOf":[{"type":"string","minLength":1},{"type":"array","items":{"type":"string"},"minItems":1}]},{"type":"object","properties":{`+
			`"dir":{"type":"string"},"env":{"type":"object","additionalProperties":{"type":"string"}},"stdin":{"type":"string"},"timeout":{"type":"number","minimum":1}}}`)
	return []API{
		{ScriptAPI: read, Call: readFile},
		{ScriptAPI: write, Call: writeFile},
		{ScriptAPI: list, Call: listFiles},
		{ScriptAPI: describe("stat", "(path: string) => Promise<SandboxFile>", "Describes a file or directory, without following links.", file), Call: onPath(
			func(ctx context.Context, g engi.Guest, at string) (any, error) {
				fi, err := g.Stat(ctx, at)
				return newFileEntry(fi), err
			})},
		{ScriptAPI: describe("mkdir", "(path: string) => Promise<void>", "Creates a directory and its parents.", file), Call: onPath(
			func(ctx context.Context, g engi.Guest, at string) (any, error) { return nil, g.MakeDir(ctx, at) })},
		{ScriptAPI: describe("remove", "(path: string) => Promise<void>", "Deletes a file, or a directory with everything in it. A missing path is not an error.", file), Call: onPath(
			func(ctx context.Context, g engi.Guest, at string) (any, error) { return nil, g.Remove(ctx, at) })},
		{ScriptAPI: describe("move", "(from: string, to: string) => Promise<void>", "Renames a file or directory.", file+","+file), Call: moveFile},
		{ScriptAPI: run, Call: runCommand},
	}
}

// absolutePath returns an absolute path for a guest.
func absolutePath(at string) (string, error) {
	if at == "" || len(at) > 4096 || strings.ContainsRune(at, 0) || !utf8.ValidString(at) {
		return "", engi.Errorf(engi.Invalid, "%.80q is not a path", at)
	}
	if !path.IsAbs(at) {
		at = path.Join(sandboxHome, at)
	}
	return path.Clean(at), nil
}

// onPath converts a function of one path to a host function.
func onPath(f func(ctx context.Context, g engi.Guest, at string) (any, error)) func(context.Context, Call) (any, error) {
	return func(ctx context.Context, c Call) (any, error) {
		var at string
		if err := c.Into(&at); err != nil {
			return nil, err
		}
		at, err := absolutePath(at)
		if err != nil {
			return nil, err
		}
		g, err := c.Sandbox(ctx)
		if err != nil {
			return nil, err
		}
		return f(ctx, g, at)
	}
}

type encoding struct {
	Encoding string `json:"encoding"`
}

func (e encoding) check() error {
	if e.Encoding != "" && e.Encoding != "utf8" && e.Encoding != "base64" {
		return engi.Errorf(engi.Invalid, "encoding %.20q is neither utf8 nor base64", e.Encoding)
	}
	return nil
}

func readFile(ctx context.Context, c Call) (any, error) {
	var at string
	var o encoding
	if err := c.Into(&at, &o); err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	at, err := absolutePath(at)
	if err != nil {
		return nil, err
	}
	g, err := c.Sandbox(ctx)
	if err != nil {
		return nil, err
	}
	f, err := g.Open(ctx, at)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, sandboxFileSize+1))
	if err != nil {
		return nil, err
	}
	switch {
	case len(data) > sandboxFileSize:
		return nil, engi.Errorf(engi.Exhausted, "%.200s has more than %d bytes", at, sandboxFileSize)
	case o.Encoding == "base64":
		return base64.StdEncoding.EncodeToString(data), nil
	case !utf8.Valid(data):
		return nil, engi.Errorf(engi.Invalid, "%.200s is not text: read it with {encoding: \"base64\"}", at)
	}
	return string(data), nil
}

func writeFile(ctx context.Context, c Call) (any, error) {
	var at string
	var content *string
	var o encoding
	if err := c.Into(&at, &content, &o); err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if content == nil {
		return nil, engi.Errorf(engi.Invalid, "the content is missing")
	}
	data := []byte(*content)
	at, err := absolutePath(at)
	if err != nil {
		return nil, err
	}
	if o.Encoding == "base64" {
		if data, err = base64.StdEncoding.DecodeString(*content); err != nil {
			return nil, engi.Errorf(engi.Invalid, "the content is not base64")
		}
	}
	if len(data) > sandboxFileSize {
		return nil, engi.Errorf(engi.Exhausted, "%d bytes, %d at most", len(data), sandboxFileSize)
	}
	g, err := c.Sandbox(ctx)
	if err != nil {
		return nil, err
	}
	return nil, g.Write(ctx, at, strings.NewReader(string(data)), engi.WriteOptions{})
}

// A fileEntry describes a file to scripts.
type fileEntry struct {
	Path     string    `json:"path"`
	Type     string    `json:"type"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Target   string    `json:"target,omitempty"`
}

func newFileEntry(fi engi.FileInfo) fileEntry {
	e := fileEntry{Path: fi.Path, Type: "other", Size: fi.Size, Modified: fi.Modified.UTC(), Target: fi.Target}
	switch {
	case fi.Mode.IsRegular():
		e.Type = "file"
	case fi.Mode.IsDir():
		e.Type = "dir"
	case fi.Target != "":
		e.Type = "link"
	}
	if y := e.Modified.Year(); y < 0 || y > 9999 { // time.Time cannot encode this year
		e.Modified = time.Time{}
	}
	return e
}

func listFiles(ctx context.Context, c Call) (any, error) {
	at := "."
	o := struct {
		Depth float64 `json:"depth"`
	}{1}
	if err := c.Into(&at, &o); err != nil {
		return nil, err
	}
	if !(o.Depth >= 1 && o.Depth <= sandboxDepth) {
		return nil, engi.Errorf(engi.Invalid, "depth %g is not between 1 and %d", o.Depth, sandboxDepth)
	}
	at, err := absolutePath(at)
	if err != nil {
		return nil, err
	}
	g, err := c.Sandbox(ctx)
	if err != nil {
		return nil, err
	}
	found, err := g.List(ctx, at, int(o.Depth))
	if err != nil {
		return nil, err
	}
	if len(found) > sandboxEntries {
		return nil, engi.Errorf(engi.Exhausted, "%.200s holds %d entries, %d at most are listed", at, len(found), sandboxEntries)
	}
	entries := make([]fileEntry, len(found))
	for i, fi := range found {
		entries[i] = newFileEntry(fi)
	}
	return entries, nil
}

func moveFile(ctx context.Context, c Call) (any, error) {
	var from, to string
	if err := c.Into(&from, &to); err != nil {
		return nil, err
	}
	from, err := absolutePath(from)
	if err != nil {
		return nil, err
	}
	if to, err = absolutePath(to); err != nil {
		return nil, err
	}
	g, err := c.Sandbox(ctx)
	if err != nil {
		return nil, err
	}
	return nil, g.Move(ctx, from, to)
}

// commandLine is a command: a list of arguments, or a string for the shell.
type commandLine []string

func (w *commandLine) UnmarshalJSON(b []byte) error {
	var line string
	if json.Unmarshal(b, &line) == nil {
		if *w = nil; strings.TrimSpace(line) != "" {
			*w = commandLine{"/bin/sh", "-c", line}
		}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(w))
}

// commandResult describes the end of a command to scripts.
type commandResult struct {
	ExitCode  int    `json:"exitCode"`
	Signal    string `json:"signal,omitempty"`
	Cause     string `json:"cause"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated"`
}

func runCommand(ctx context.Context, c Call) (any, error) {
	var command commandLine
	var o struct {
		Dir     string            `json:"dir"`
		Env     map[string]string `json:"env"`
		Stdin   *string           `json:"stdin"`
		Timeout float64           `json:"timeout"`
	}
	if err := c.Into(&command, &o); err != nil {
		return nil, err
	}
	if len(command) == 0 || command[0] == "" || slices.ContainsFunc(command, func(w string) bool { return strings.ContainsRune(w, 0) }) {
		return nil, engi.Errorf(engi.Invalid, "the command is empty or contains a NUL")
	}
	if o.Timeout < 0 || o.Timeout > 1e9 {
		return nil, engi.Errorf(engi.Invalid, "timeout %g is not a number of milliseconds", o.Timeout)
	}
	cmd := engi.Command{Args: command, Env: maps.Clone(o.Env), Dir: sandboxHome, Timeout: time.Duration(o.Timeout * float64(time.Millisecond)), Output: 2 * sandboxOutput}
	var err error
	if o.Dir != "" {
		if cmd.Dir, err = absolutePath(o.Dir); err != nil {
			return nil, err
		}
	}
	if o.Stdin != nil {
		cmd.Stdin = engi.StdinPipe
	}
	// The sandbox outlives the script, but commands of the script do not.
	if deadline, ok := ctx.Deadline(); ok {
		left := max(time.Until(deadline), time.Millisecond)
		if cmd.Timeout == 0 || cmd.Timeout > left {
			cmd.Timeout = left
		}
	}
	g, err := c.Sandbox(ctx)
	if err != nil {
		return nil, err
	}
	p, err := g.Start(ctx, cmd)
	if err != nil {
		return nil, err
	}
	out, err := runToEnd(ctx, p, o.Stdin)
	if err != nil && ctx.Err() != nil {
		// If the kill fails, the command is ended by its own timeout.
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
		defer cancel()
		_ = p.Signal(late, "KILL")
	}
	return out, err
}

// runToEnd sends standard input to a command and returns how it ended.
func runToEnd(ctx context.Context, p engi.Process, stdin *string) (out commandResult, err error) {
	if stdin != nil {
		// The command may print before it has read all its input, so write and read
		// at the same time. It may also close its input early.
		ctx, cancel := context.WithCancel(ctx)
		fed := make(chan struct{})
		go func() {
			defer close(fed)
			for rest := []byte(*stdin); len(rest) > 0; {
				n := min(len(rest), 64<<10)
				if p.Input(ctx, rest[:n]) != nil {
					return
				}
				rest = rest[n:]
			}
			_ = p.CloseInput(ctx)
		}()
		defer func() { cancel(); <-fed }()
	}
	var kept [2]strings.Builder
	total, flooded := 0, false
	for chunk, err := range p.Output(ctx, 0) {
		if engi.Is(err, engi.Conflict) { // the command printed faster than this loop reads
			out.Truncated = true
			break
		}
		if err != nil {
			return out, err
		}
		into := &kept[0]
		if chunk.Stream == engi.Stderr {
			into = &kept[1]
		}
		room := min(len(chunk.Data), sandboxOutput-into.Len())
		into.Write(chunk.Data[:room])
		out.Truncated = out.Truncated || room < len(chunk.Data)
		if total += len(chunk.Data); total > sandboxMaxOutput {
			flooded = true
			if err := engi.Ignore(p.Signal(ctx, "KILL"), engi.NotFound); err != nil {
				return out, err
			}
			break
		}
	}
	end, err := p.Wait(ctx)
	if err != nil {
		return out, err
	}
	out.ExitCode, out.Signal, out.Cause = end.Code, end.Signal, string(end.Cause)
	if flooded {
		out.Cause = string(engi.CauseOutput)
	}
	out.Stdout, out.Stderr = strings.ToValidUTF8(kept[0].String(), "\uFFFD"), strings.ToValidUTF8(kept[1].String(), "\uFFFD")
	return out, nil
}

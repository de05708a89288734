package deno

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

// maxAnswer is the maximum size of an answer in bytes: a value, an error with its stack, warnings.
const maxAnswer = MaxValue + 1<<18

// A collector separates the answer in a process's output from the output of the
// code. All input may come from the code, so it is not trusted.
type collector struct {
	out    func(engi.Chunk) // nil discards output
	offset int64            // number of bytes passed to out
	stdout capture
	stderr capture

	marker []byte
	held   []byte // end of stdout that may be the beginning of the mark
	answer []byte // bytes after the mark; nil before
	found  bool
	done   bool // the line of the answer is complete
}

// A kept holds the beginning of a stream.
type capture struct {
	data []byte
	cut  bool
}

func (k *capture) add(data []byte) {
	if free := MaxOutput - len(k.data); len(data) > free {
		k.cut, data = true, data[:free]
	}
	k.data = append(k.data, data...)
}

func (k *capture) text() string { return strings.ToValidUTF8(string(k.data), string(utf8.RuneError)) }

func newCollector(mark string, out func(engi.Chunk)) *collector {
	return &collector{marker: []byte("\x1e" + mark), out: out}
}

// whole reports whether the answer is complete.
func (c *collector) complete() bool { return c.done }

func (c *collector) add(chunk engi.Chunk) {
	if chunk.Stream == engi.Stderr {
		c.emit(engi.Stderr, chunk.Data)
		return
	}
	data := chunk.Data
	if c.found {
		c.take(data)
		return
	}
	data = append(c.held, data...)
	if i := bytes.Index(data, c.marker); i >= 0 {
		c.found, c.held = true, nil
		c.emit(engi.Stdout, data[:i])
		c.take(data[i+len(c.marker):])
		return
	}
	n := 0
	for n = min(len(data), len(c.marker)-1); n > 0 && !bytes.HasSuffix(data, c.marker[:n]); n-- {
	}
	c.emit(engi.Stdout, data[:len(data)-n])
	c.held = bytes.Clone(data[len(data)-n:])
}

// take adds bytes to the answer. It ignores bytes after the line of the answer.
func (c *collector) take(data []byte) {
	if c.done {
		return
	}
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		data, c.done = data[:i], true
	}
	if free := maxAnswer - len(c.answer); len(data) > free {
		data = data[:free] // the answer will not decode
	}
	c.answer = append(c.answer, data...)
}

func (c *collector) emit(s engi.Stream, data []byte) {
	if len(data) == 0 {
		return
	}
	k := &c.stdout
	if s == engi.Stderr {
		k = &c.stderr
	}
	k.add(data)
	if c.out != nil {
		c.out(engi.Chunk{Stream: s, Offset: c.offset, Data: data})
	}
	c.offset += int64(len(data))
}

// flush outputs bytes that turned out not to be the mark.
func (c *collector) flush() {
	c.emit(engi.Stdout, c.held)
	c.held = nil
}

func (c *collector) result() engi.CodeResult {
	return engi.CodeResult{Stdout: c.stdout.text(), Stderr: c.stderr.text(), Truncated: c.stdout.cut || c.stderr.cut}
}

// decode parses the answer into res.
func (c *collector) decode(res *engi.CodeResult) {
	var a struct {
		OK       bool            `json:"ok"`
		Value    json.RawMessage `json:"value"`
		Warnings []string        `json:"warnings"`
		Error    struct {
			Name    string `json:"name"`
			Message string `json:"message"`
			Line    int    `json:"line"`
			Column  int    `json:"column"`
			Stack   string `json:"stack"`
		} `json:"error"`
	}
	if err := json.Unmarshal(c.answer, &a); err != nil {
		// Only the code itself can have damaged the answer.
		res.Error = &engi.CodeError{Cause: engi.CauseExited, Message: "the code spoilt its own answer"}
		return
	}
	res.OK = a.OK
	if a.OK {
		res.Value = a.Value
		for _, w := range a.Warnings[:min(len(a.Warnings), 20)] {
			res.Warnings = append(res.Warnings, clip.Bytes(w, 400))
		}
		return
	}
	res.Error = &engi.CodeError{
		Cause: engi.CauseExited, Name: clip.Bytes(a.Error.Name, 256), Message: clip.Bytes(a.Error.Message, 32<<10),
		Line: max(0, a.Error.Line), Column: max(0, a.Error.Column), Stack: clip.Bytes(a.Error.Stack, 32<<10),
	}
}

// Package wire is what the script room and its helper process say to each
// other over two pipes: frames of four bytes of length, most significant
// first, and that many bytes of JSON. The host sends a Run, the helper
// answers with any number of Calls and one Done; each Call is answered by an
// Answer, in any order. The helper runs one program at a time.
//
// What the helper says is hostile to the host: the interpreter in it ran a
// stranger's program.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"io"

	"github.com/engi-dev/engi"
)

// MaxFrame bounds one frame to the helper, in bytes. [Limits.Frame] bounds
// those from it.
const MaxFrame = 4 << 20

// A Run is a program with its limits.
type Run struct {
	ID       uint64        `json:"id"` // nobody could guess it before
	Language engi.Language `json:"language"`
	Code     string        `json:"code"`
	Limits   Limits        `json:"limits"`
	APIs     []string      `json:"apis"`
}

// Limits bound one run. Every field is set.
type Limits struct {
	Timeout int64 `json:"timeout_ns"` // from the moment the helper has the program
	Memory  int64 `json:"memory"`     // bytes
	Stack   int   `json:"stack"`      // calls within calls
	Lines   int   `json:"lines"`      // of console output
	Text    int   `json:"text"`       // bytes of one line, and of all text in the result
	Depth   int   `json:"depth"`      // levels of the result
	Nodes   int   `json:"nodes"`      // values in the result
	Calls   int   `json:"calls"`      // of host functions at once

	AllCalls int `json:"all_calls"` // of host functions in the run
}

// Console returns how many characters a program may print.
func (l Limits) Console() int { return 8 * l.Text }

// Frame bounds one frame from the helper, in bytes: one that has all that a
// program may print and return, and a character may take six bytes of JSON.
func (l Limits) Frame() int { return 80*l.Text + 64*l.Nodes + 1<<20 }

// To is what the host sends: one of its fields.
type To struct {
	Run    *Run    `json:"run,omitempty"`
	Answer *Answer `json:"answer,omitempty"`
}

// An Answer settles a call.
type Answer struct {
	Call  int             `json:"call"`
	Value json.RawMessage `json:"value,omitempty"` // JSON; null if absent
	Name  string          `json:"name,omitempty"`  // of the exception; with Error
	Error string          `json:"error,omitempty"` // why it failed
}

// From is what the helper sends: one of its fields.
type From struct {
	Call *Call `json:"call,omitempty"`
	Done *Done `json:"done,omitempty"`
}

// A Call asks for a host function.
type Call struct {
	Run  uint64          `json:"run"`
	ID   int             `json:"id"` // fresh within the run
	API  string          `json:"api"`
	Args json.RawMessage `json:"args"` // a list
}

// Done is the last word on a run.
type Done struct {
	Run      uint64          `json:"run"`
	Value    json.RawMessage `json:"value,omitempty"`
	Stdout   []string        `json:"stdout,omitempty"`
	Stderr   []string        `json:"stderr,omitempty"`
	Warnings []string        `json:"warnings,omitempty"`
	Error    *Error          `json:"error,omitempty"`
	Duration int64           `json:"duration_ns"`
}

// Error is a [engi.ScriptError] on the wire.
type Error struct {
	Kind    engi.ScriptErrorKind `json:"kind"`
	Name    string               `json:"name,omitempty"`
	Message string               `json:"message"`
	Line    int                  `json:"line,omitempty"`
	Column  int                  `json:"column,omitempty"`
	Stack   string               `json:"stack,omitempty"`
}

// Write sends v as one frame of most bytes at most, in one write. It reports
// Invalid, and sends nothing, for one that is larger.
func Write(w io.Writer, v any, most int) error {
	body, err := json.Marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "encode a frame: %v", err)
	}
	if len(body) > most {
		return engi.Errorf(engi.Invalid, "a frame of %d bytes, %d at most", len(body), most)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	if _, err := w.Write(append(frame, body...)); err != nil {
		return engi.Errorf(engi.Unavailable, "write a frame: %v", err)
	}
	return nil
}

// Read receives one frame of most bytes at most into v, which is a pointer. It
// reports Unavailable when the other side is gone, and Invalid for what is no
// frame.
func Read(r io.Reader, v any, most int) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return engi.Errorf(engi.Unavailable, "read a frame: %v", err)
	}
	size := int64(binary.BigEndian.Uint32(head[:]))
	if size > int64(most) {
		return engi.Errorf(engi.Invalid, "a frame of %d bytes, %d at most", size, most)
	}
	// What is announced is not allocated before it has arrived.
	body, err := io.ReadAll(io.LimitReader(r, size))
	if err != nil || int64(len(body)) < size {
		return engi.Errorf(engi.Unavailable, "a frame broke off after %d of %d bytes", len(body), size)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return engi.Errorf(engi.Invalid, "a frame makes no sense: %v", err)
	}
	return nil
}

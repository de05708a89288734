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

// MaxFrame bounds one frame, in bytes.
const MaxFrame = 4 << 20

// A Run is a program with its limits.
type Run struct {
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
	ID   int             `json:"id"` // fresh within the run
	API  string          `json:"api"`
	Args json.RawMessage `json:"args"` // a list
}

// Done is the last word on a run.
type Done struct {
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

// Write sends v as one frame, in one write.
func Write(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return engi.Errorf(engi.Internal, "encode a frame: %v", err)
	}
	if len(body) > MaxFrame {
		return engi.Errorf(engi.Invalid, "a frame of %d bytes, %d at most", len(body), MaxFrame)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	if _, err := w.Write(append(frame, body...)); err != nil {
		return engi.Errorf(engi.Unavailable, "write a frame: %v", err)
	}
	return nil
}

// Read receives one frame into v, which is a pointer. It reports Unavailable
// when the other side is gone, and Invalid for what is no frame.
func Read(r io.Reader, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return engi.Errorf(engi.Unavailable, "read a frame: %v", err)
	}
	size := int64(binary.BigEndian.Uint32(head[:]))
	if size > MaxFrame {
		return engi.Errorf(engi.Invalid, "a frame of %d bytes, %d at most", size, MaxFrame)
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

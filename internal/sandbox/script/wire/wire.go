// Package wire is the protocol between package script and its helper process, over
// two pipes. A frame is a length of four bytes, most significant first, followed by that many
// bytes of JSON. The host sends a Run. The helper sends any number of Calls, which
// the host answers with Answers in any order, and one Done. It runs one program at
// a time.
//
// The host must treat all data from the helper as hostile, since a program may have taken
// over the helper.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"io"

	"github.com/engi-dev/engi/internal/engi"
)

// MaxFrame is the maximum size of a frame to the helper, in bytes. [Limits.Frame] is the maximum for frames from
// the helper.
const MaxFrame = 4 << 20

// A Run is a program with its limits.
type Run struct {
	ID       uint64        `json:"id"` // random, so that earlier programs cannot guess it
	Language engi.Language `json:"language"`
	Code     string        `json:"code"`
	Limits   Limits        `json:"limits"`
	APIs     []string      `json:"apis"`
}

// Limits holds the limits of a run. All fields are required.
type Limits struct {
	Timeout int64 `json:"timeout_ns"` // nanoseconds, counted from the arrival of the program at the helper
	Memory  int64 `json:"memory"`     // maximum memory, in bytes
	Stack   int   `json:"stack"`      // maximum number of nested calls
	Lines   int   `json:"lines"`      // maximum number of lines of console output
	Text    int   `json:"text"`       // maximum bytes of one line, and of all text in the result
	Depth   int   `json:"depth"`      // maximum number of levels of the result
	Nodes   int   `json:"nodes"`      // maximum number of values in the result
	Calls   int   `json:"calls"`      // maximum number of concurrent calls of host functions

	AllCalls int `json:"all_calls"` // maximum number of calls of host functions in the run
}

// Console returns the maximum number of characters that a program may print.
func (l Limits) Console() int { return 8 * l.Text }

// Frame returns the maximum size of a frame from the helper, in bytes. It has room for all text that a
// program may print and return, with six bytes of JSON per character.
func (l Limits) Frame() int { return 80*l.Text + 64*l.Nodes + 1<<20 }

// To is a message from the host. Exactly one field is set.
type To struct {
	Run    *Run    `json:"run,omitempty"`
	Answer *Answer `json:"answer,omitempty"`
}

// An Answer is the result of a call.
type Answer struct {
	Call  int             `json:"call"`
	Value json.RawMessage `json:"value,omitempty"` // JSON; null if absent
	Name  string          `json:"name,omitempty"`  // name of the exception; set only with Error
	Error string          `json:"error,omitempty"` // reason for the failure; empty after success
}

// From is a message from the helper. Exactly one field is set.
type From struct {
	Call *Call `json:"call,omitempty"`
	Done *Done `json:"done,omitempty"`
}

// A Call is a call of a host function.
type Call struct {
	Run  uint64          `json:"run"`
	ID   int             `json:"id"` // unique within the run
	API  string          `json:"api"`
	Args json.RawMessage `json:"args"` // arguments, a JSON array
}

// Done is the result of a run.
type Done struct {
	Run      uint64          `json:"run"`
	Value    json.RawMessage `json:"value,omitempty"`
	Stdout   []string        `json:"stdout,omitempty"`
	Stderr   []string        `json:"stderr,omitempty"`
	Warnings []string        `json:"warnings,omitempty"`
	Error    *Error          `json:"error,omitempty"`
	Duration int64           `json:"duration_ns"`
}

// Error is the JSON form of [engi.ScriptError].
type Error struct {
	Kind    engi.ScriptErrorKind `json:"kind"`
	Name    string               `json:"name,omitempty"`
	Message string               `json:"message"`
	Line    int                  `json:"line,omitempty"`
	Column  int                  `json:"column,omitempty"`
	Stack   string               `json:"stack,omitempty"`
}

// Write sends v as one frame in one write. It returns Invalid, and sends nothing, if
// the frame would have more than most bytes.
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

// Read decodes a frame of at most most bytes into v, a pointer. It returns
// Unavailable when the other side is gone, and Invalid for a malformed frame.
func Read(r io.Reader, v any, most int) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return engi.Errorf(engi.Unavailable, "read a frame: %v", err)
	}
	size := int64(binary.BigEndian.Uint32(head[:]))
	if size > int64(most) {
		return engi.Errorf(engi.Invalid, "a frame of %d bytes, %d at most", size, most)
	}
	// The buffer grows with the received bytes, not with the announced length.
	body, err := io.ReadAll(io.LimitReader(r, size))
	if err != nil || int64(len(body)) < size {
		return engi.Errorf(engi.Unavailable, "a frame ended after %d of %d bytes", len(body), size)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return engi.Errorf(engi.Invalid, "a frame is not valid: %v", err)
	}
	return nil
}

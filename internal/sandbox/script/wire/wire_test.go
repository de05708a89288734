package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/engi-dev/engi/internal/engi"
)

func TestFrames(t *testing.T) {
	var b bytes.Buffer
	sent := []To{{Run: &Run{ID: 1<<64 - 1, Language: engi.TypeScript, Code: "'é\u0000'", APIs: []string{"a.b"}}}, {Answer: &Answer{Call: 3, Value: json.RawMessage(`{"a":1}`)}}, {}}
	for _, to := range sent {
		if err := Write(&b, to, MaxFrame); err != nil {
			t.Fatal(err)
		}
	}
	r := iotest.OneByteReader(&b)
	for _, want := range sent {
		var got To
		if err := Read(r, &got, MaxFrame); err != nil {
			t.Fatal(err)
		}
		g, _ := json.Marshal(got)
		w, _ := json.Marshal(want)
		if !bytes.Equal(g, w) {
			t.Errorf("got %s, want %s", g, w)
		}
	}
	var none To
	if err := Read(r, &none, MaxFrame); !engi.Is(err, engi.Unavailable) {
		t.Errorf("at the end: %v", err)
	}
}

func TestBounds(t *testing.T) {
	var b bytes.Buffer
	if err := Write(&b, From{Call: &Call{API: strings.Repeat("x", 100)}}, 50); !engi.Is(err, engi.Invalid) || b.Len() != 0 {
		t.Errorf("%v, and %d bytes are out", err, b.Len())
	}
	if err := Write(&b, From{Call: &Call{Args: json.RawMessage("{")}}, MaxFrame); err == nil || b.Len() != 0 {
		t.Errorf("%v, and %d bytes are out", err, b.Len())
	}
	for name, c := range map[string]struct {
		head uint32
		body string
		want engi.Kind
	}{
		"too large":    {51, strings.Repeat(" ", 51), engi.Invalid},
		"far too much": {1<<32 - 1, "", engi.Invalid},
		"broken off":   {50, "{", engi.Unavailable},
		"empty":        {0, "", engi.Invalid},
		"no JSON":      {4, "nope", engi.Invalid},
		"two values":   {4, "{}{}", engi.Invalid},
		"other types":  {16, `{"done":"a word"`, engi.Invalid},
	} {
		in := io.MultiReader(bytes.NewReader(binary.BigEndian.AppendUint32(nil, c.head)), strings.NewReader(c.body))
		var f From
		if err := Read(in, &f, 50); !engi.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l := Limits{Text: 64 << 10, Nodes: 10_000}
	if l.Console() < l.Text || l.Frame() < 6*(l.Console()+2*l.Text) {
		t.Errorf("a frame of %d bytes cannot hold %d characters of console", l.Frame(), l.Console())
	}
}

// FuzzRead reads anything that a helper may send.
func FuzzRead(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\x00\x00\x00\x20{\"done\":{\"run\":1,\"value\":[1,2]}}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("\x00\x00\x00\x05{\"ca"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			var from From
			if err := Read(r, &from, 1<<16); err != nil {
				if k := engi.KindOf(err); k != engi.Invalid && k != engi.Unavailable {
					t.Errorf("%v is %v", err, k)
				}
				return
			}
			if from.Done != nil && from.Done.Value != nil && !json.Valid(from.Done.Value) {
				t.Errorf("a value that is no JSON: %q", from.Done.Value)
			}
		}
	})
}

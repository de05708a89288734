package httpio

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/api/v1"
)

func TestJoinerSplitsNoCharacter(t *testing.T) {
	type in struct {
		t    string
		data string
	}
	out := func(kind string, offset int64, data string) Chunk {
		return Chunk{Stream: kind, Offset: offset, Text: data}
	}
	raw := func(kind string, offset int64, data string) Chunk {
		return Chunk{Stream: kind, Offset: offset, Bytes: []byte(data)}
	}
	const o, e = "stdout", "stderr"
	for name, c := range map[string]struct {
		in   []in
		want []Chunk
	}{
		"nothing to hold": {[]in{{o, "ab"}, {e, "c"}}, []Chunk{out("stdout", 2, "ab"), out("stderr", 3, "c")}},
		"cut in two":      {[]in{{o, "a\xc3"}, {o, "\xbc!"}}, []Chunk{out("stdout", 1, "a"), out("stdout", 4, "ü!")}},
		"cut in four": {[]in{{o, "\xf0"}, {o, "\x9f"}, {o, "\x98"}, {o, "\x80"}},
			[]Chunk{out("stdout", 4, "😀")}},
		"the other stream goes on": {[]in{{o, "a\xe2\x82"}, {e, "err"}, {e, "or"}, {o, "\xac"}},
			[]Chunk{out("stdout", 1, "a"), out("stderr", 1, "err"), out("stderr", 1, "or"), out("stdout", 9, "€")}},
		"both wait": {[]in{{o, "\xe2"}, {e, "\xc3"}, {o, "\x82\xac"}, {e, "\xbc"}},
			[]Chunk{out("stdout", 1, "€"), out("stderr", 5, "ü")}},
		"never completed":           {[]in{{o, "a\xe2\x82"}}, []Chunk{out("stdout", 1, "a"), raw("stdout", 3, "\xe2\x82")}},
		"never completed, both":     {[]in{{e, "\xc3"}, {o, "\xe2"}}, []Chunk{raw("stderr", 1, "\xc3"), raw("stdout", 2, "\xe2")}},
		"no character after all":    {[]in{{o, "\xe2"}, {o, "a"}}, []Chunk{raw("stdout", 2, "\xe2a")}},
		"bytes":                     {[]in{{o, "\xff\x00"}}, []Chunk{raw("stdout", 2, "\xff\x00")}},
		"comes back in a character": {[]in{{o, "\xac!"}}, []Chunk{raw("stdout", 2, "\xac!")}},
		"new one after an old":      {[]in{{o, "\xe2\x82"}, {o, "\xac\xe2"}, {o, "\x82\xac"}}, []Chunk{out("stdout", 3, "€"), out("stdout", 6, "€")}},
	} {
		s := NewJoiner(0)
		var got []Chunk
		var at int64
		for _, i := range c.in {
			if ev, ok := s.Add(i.t, at, []byte(i.data)); ok {
				got = append(got, ev)
			}
			at += int64(len(i.data))
		}
		got = append(got, s.Flush()...)
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func index(stream string) int {
	if stream == "stderr" {
		return 1
	}
	return 0
}

// FuzzJoiner cuts output at random places and resumes after a random event: no
// byte is lost or moved, no character is split, and what is sent twice
// is what the documentation of v1.Event says.
func FuzzJoiner(f *testing.F) {
	f.Add([]byte("a€😀b\xff\xe2\x82"), []byte{1, 0x83, 2, 0x81, 1}, uint8(2))
	f.Add([]byte("€€€€€€€€€€€€"), []byte{1, 0x81, 1, 0x81, 1, 0x82, 2, 0x83, 1, 0x81}, uint8(3))
	f.Fuzz(func(t *testing.T, output, cuts []byte, back uint8) {
		type chunk struct {
			t    string
			at   int64
			data []byte
		}
		var chunks []chunk
		var want [2][]byte
		for i, at := 0, 0; at < len(output); i++ {
			kind, n := "stdout", 1
			if len(cuts) > 0 {
				c := cuts[i%len(cuts)]
				n = 1 + int(c&0x7f)%8
				if c&0x80 != 0 {
					kind = "stderr"
				}
			}
			n = min(n, len(output)-at)
			chunks = append(chunks, chunk{kind, int64(at), output[at : at+n]})
			want[index(kind)] = append(want[index(kind)], output[at:at+n]...)
			at += n
		}
		// run replays from an offset, as Watch does.
		run := func(from int64) []Chunk {
			s := NewJoiner(from)
			var events []Chunk
			for _, c := range chunks {
				if end := c.at + int64(len(c.data)); end > from {
					skip := max(0, from-c.at)
					if e, ok := s.Add(c.t, c.at+skip, c.data[skip:]); ok {
						events = append(events, e)
					}
				}
			}
			return append(events, s.Flush()...)
		}
		collect := func(into *[2][]byte, events []Chunk) {
			for _, e := range events {
				data := append([]byte(e.Text), e.Bytes...)
				into[index(e.Stream)] = append(into[index(e.Stream)], data...)
			}
		}
		all := run(0)
		var got [2][]byte
		collect(&got, all)
		if !bytes.Equal(got[0], want[0]) || !bytes.Equal(got[1], want[1]) {
			t.Fatalf("got %q, want %q", got, want)
		}
		if utf8.Valid(want[0]) && utf8.Valid(want[1]) {
			for _, e := range all {
				if e.Bytes != nil {
					t.Fatalf("a character was cut: %q", e.Bytes)
				}
			}
		}
		if len(all) == 0 {
			return
		}
		// Resume after some event: what was sent before, without what is sent
		// again, and what is sent then are all output.
		n := 1 + int(back)%len(all)
		var resumed [2][]byte
		collect(&resumed, all[:n])
		last := all[n-1]
		extra := int64(len(resumed[0])+len(resumed[1])) - last.Offset
		i := index(last.Stream)
		if extra < 0 || extra > int64(len(resumed[i])) {
			t.Fatalf("%d bytes sent again of %q", extra, resumed[i])
		}
		resumed[i] = resumed[i][:int64(len(resumed[i]))-extra]
		collect(&resumed, run(last.Offset))
		if !bytes.Equal(resumed[0], want[0]) || !bytes.Equal(resumed[1], want[1]) {
			t.Fatalf("resumed at %d after event %d: got %q, want %q", last.Offset, n, resumed, want)
		}
	})
}

func TestNegotiate(t *testing.T) {
	all := []Format{JSON, SSE, NDJSON}
	for accept, want := range map[string]Format{
		"": JSON, "*/*": JSON, "application/json": JSON, "text/event-stream": SSE, "application/x-ndjson": NDJSON,
		"application/ndjson": NDJSON, "application/jsonl": NDJSON, "text/*": SSE, "application/*": JSON,
		"text/event-stream, application/json;q=0.5": SSE, "application/json;q=0.1, text/event-stream;q=0.2": SSE,
		"text/event-stream, */*": SSE, "text/html, */*;q=0.8": JSON, "application/json, text/event-stream": JSON,
		"TEXT/Event-Stream": SSE, "text/event-stream;charset=utf-8": SSE, "application/json;q=0, */*": JSON,
		"text/html": "", "application/json;q=0": "", "garbage": "", "image/*;q=x": "",
	} {
		r := &http.Request{Header: http.Header{}}
		if accept != "" {
			r.Header.Set("Accept", accept)
		}
		got, err := Negotiate(r, all...)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("Accept %q: %q, %v, want %q", accept, got, err, want)
		}
		if err != nil && Describe(err, "").Status != http.StatusNotAcceptable {
			t.Errorf("Accept %q: status %d", accept, Describe(err, "").Status)
		}
	}
}

func FuzzASCII(f *testing.F) {
	for _, s := range []string{"plain", "ü€😀\u2028", "\x00\"\\", "\xff\xfe", strings.Repeat("é", 100)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := Marshal(v1.ExecutionUpdate{Type: "stdout", Data: s})
		if err != nil {
			t.Fatal(err)
		}
		line := ascii(b)
		if i := bytes.IndexFunc(line, func(r rune) bool { return r >= utf8.RuneSelf }); i >= 0 || bytes.IndexByte(line, '\n') != len(line)-1 {
			t.Fatalf("%q is not one line of ASCII", line)
		}
		var e v1.ExecutionUpdate
		if err := json.Unmarshal(line, &e); err != nil || e.Data != strings.ToValidUTF8(s, "\uFFFD") && utf8.ValidString(s) {
			t.Fatalf("%q became %q, %v", s, e.Data, err)
		}
	})
}

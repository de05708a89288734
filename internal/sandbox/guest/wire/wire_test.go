package wire

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

func TestFramesSurvive(t *testing.T) {
	var b []byte
	b = AppendFrame(b, Stdout, []byte("out"))
	b = AppendFrame(b, Alive, nil)
	b = AppendData(b, Stderr, bytes.Repeat([]byte("x"), MaxData+1))
	b, err := AppendJSON(b, Exited, Finish{Exit: engi.Exit{Code: 3, Cause: engi.CauseExited}})
	if err != nil {
		t.Fatal(err)
	}
	r := NewReader(bytes.NewReader(b))
	for i, want := range []struct {
		k Kind
		n int
	}{{Stdout, 3}, {Alive, 0}, {Stderr, MaxData}, {Stderr, 1}} {
		k, payload, err := r.Next()
		if err != nil || k != want.k || len(payload) != want.n {
			t.Fatalf("frame %d: %q of %d bytes, %v; want %+v", i, k, len(payload), err, want)
		}
	}
	var fin Finish
	if err := r.JSON(Exited, &fin); err != nil || fin.Exit.Code != 3 {
		t.Errorf("got %+v, %v", fin, err)
	}
	if _, _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
}

func TestBadFramesAreRefused(t *testing.T) {
	for name, x := range map[string]struct {
		b    []byte
		kind engi.Kind
	}{
		"unknown kind":  {[]byte{'z', 0, 0, 0, 0}, engi.Invalid},
		"too long data": {[]byte{'D', 0, 4, 0, 1}, engi.Invalid},
		"too long JSON": {[]byte{'H', 255, 255, 255, 255}, engi.Invalid},
		"end with data": {[]byte{'E', 0, 0, 0, 1, 'x'}, engi.Invalid},
		"cut header":    {[]byte{'D', 0, 0}, engi.Unavailable},
		"cut payload":   {[]byte{'D', 0, 0, 0, 9, 'x'}, engi.Unavailable},
	} {
		_, _, err := NewReader(bytes.NewReader(x.b)).Next()
		if !engi.Is(err, x.kind) {
			t.Errorf("%s: got %v of kind %v", name, err, engi.KindOf(err))
		}
	}
}

func TestAnnouncedLengthIsNotAllocated(t *testing.T) {
	huge := []byte{'H', 0, 127, 255, 255, 'x'}
	if n := testing.AllocsPerRun(10, func() { NewReader(bytes.NewReader(huge)).Next() }); n > 50 {
		t.Errorf("%v allocations", n)
	}
	r := NewReader(bytes.NewReader(huge))
	r.Next()
	if cap(r.buf) > 1<<20 {
		t.Errorf("a frame that never came left a buffer of %d bytes", cap(r.buf))
	}
}

func TestErrorsSurvive(t *testing.T) {
	for _, k := range engi.Kinds() {
		err := DecodeError(EncodeError(engi.Errorf(k, "what %d", 1).WithRemedy("do")))
		if !engi.Is(err, k) || err.Error() != "what 1" || engi.RemedyOf(err) != "do" {
			t.Errorf("%v came back as %v: %v, %q", k, engi.KindOf(err), err, engi.RemedyOf(err))
		}
		if Status(k) == 0 {
			t.Errorf("%v has no status", k)
		}
	}
}

// TestGolden pins the JSON of messages, which other builds rely on.
func TestGolden(t *testing.T) {
	for _, x := range []struct {
		v    any
		want string
	}{
		{Run{ID: "i", Language: engi.Python, Interpreter: "/p", Files: []File{{Path: "a", Mode: 0o755, Size: 2, Data: []byte("xx")}}, Args: []string{"b"},
			Env: map[string]string{"K": "v"}, StdinSize: 3, Timeout: time.Second, Output: 4, ArtifactBytes: 5, ArtifactCount: 6, OutputDir: "/o"},
			`{"id":"i","language":"python","interpreter":"/p","files":[{"path":"a","mode":493,"size":2}],"args":["b"],"env":{"K":"v"},"stdin_size":3,"timeout":1000000000,"output":4,"artifact_bytes":5,"artifact_count":6,"output_dir":"/o"}`},
		{Finish{Exit: engi.Exit{Code: -1, Signal: "KILL", Cause: engi.CauseTimeout}, Duration: 7, Warm: true, StdoutBytes: 1, StderrBytes: 2, StdoutTruncated: true,
			Artifacts: []Artifact{{Path: "p", Size: 1, Mode: 420, SHA256: "ab"}}, ArtifactsLeft: 3, Error: "e"},
			`{"code":-1,"signal":"KILL","cause":"timeout","duration":7,"warm":true,"stdout_bytes":1,"stderr_bytes":2,"stdout_truncated":true,"artifacts":[{"path":"p","size":1,"mode":420,"sha256":"ab"}],"artifacts_left":3,"error":"e"}`},
		{Start{ID: "i", PID: 2, From: 3, Warm: true}, `{"id":"i","pid":2,"from":3,"warm":true}`},
		{Setup{User: "u", UID: 1, GID: 2, WorkDir: "/w", Processes: 3}, `{"user":"u","uid":1,"gid":2,"work_dir":"/w","processes":3}`},
	} {
		b, err := json.Marshal(x.v)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(x.want, string(b)); d != "" {
			t.Errorf("%T (-want +got):\n%s", x.v, d)
		}
	}
	in := Finish{Exit: engi.Exit{Code: 1, Cause: engi.CauseExited}, Artifacts: []Artifact{{Path: "a"}}}
	b, _ := json.Marshal(in)
	var out Finish
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(in, out); d != "" {
		t.Errorf("finish (-in +out):\n%s", d)
	}
}

func TestCheckRelative(t *testing.T) {
	for _, p := range []string{"a", "a/b.txt", ".hidden", "a b", "ä", "...", "a/..b", strings.Repeat("n", MaxName), "new\nline"} {
		if err := CheckRelative(p); err != nil {
			t.Errorf("%q: %v", p, err)
		}
	}
	for _, p := range []string{"", "/a", "..", "../a", "a/..", "a/../b", "a//b", "a/", "./a", "a/./b", "a\x00b", "\xff", strings.Repeat("n", MaxName+1), strings.Repeat("n/", MaxPath)} {
		if err := CheckRelative(p); !engi.Is(err, engi.Invalid) {
			t.Errorf("%.40q: %v", p, err)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(AppendFrame(AppendFrame(nil, Stdout, []byte("x")), End, nil))
	f.Add([]byte{'H', 0, 0, 0, 2, '{', '}'})
	f.Add([]byte{'D', 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		total := 0
		for {
			k, payload, err := r.Next()
			if err != nil {
				return
			}
			if total += headerSize + len(payload); total > len(b) {
				t.Fatalf("%d bytes of frames from %d", total, len(b))
			}
			if again := AppendFrame(nil, k, payload); !bytes.Equal(again, b[total-len(again):total]) {
				t.Fatalf("frame %q does not encode to what it was", k)
			}
		}
	})
}

func FuzzCheckRelative(f *testing.F) {
	for _, p := range []string{"a/b", "../x", "/", "a\x00", "a/./b", "\xff"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if CheckRelative(p) != nil {
			return
		}
		if strings.HasPrefix(p, "/") || strings.Contains("/"+p+"/", "/../") || strings.ContainsRune(p, 0) {
			t.Errorf("%q was accepted", p)
		}
	})
}

func FuzzDecodeError(f *testing.F) {
	f.Add([]byte(`{"kind":"not_found","text":"x"}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if DecodeError(b) == nil {
			t.Error("no error")
		}
	})
}

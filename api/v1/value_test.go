package v1_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/engi-dev/engi/api/v1"
)

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "30s": 30 * time.Second, "1.5s": 1500 * time.Millisecond, "500ms": 500 * time.Millisecond, "2m30s": 150 * time.Second,
		"7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour, "250us": 250 * time.Microsecond, "250µs": 250 * time.Microsecond, "1ns": 1,
		"106751d": 106751 * 24 * time.Hour,
	} {
		if got, err := v1.ParseDuration(text); err != nil || got.Std() != want {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "30", "-1s", "+1s", "1d-1s", "1 s", "s", "d", "1.5d", "-1d", "1d1d", "106752d", "106751d24h", "999999999999999999h", "1S", "∞", "1s\x00"} {
		if got, err := v1.ParseDuration(text); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", text, got)
		} else if !strings.Contains(err.Error(), "30s") {
			t.Errorf("ParseDuration(%q): %v shows no example", text, err)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]v1.Bytes{
		"0": 0, "1": 1, "512MiB": 512 << 20, "512 MiB": 512 << 20, "1.5GiB": 3 << 29, "1kB": 1000, "1KB": 1000, "1KiB": 1024, "2TB": 2e12,
		"10B": 10, "9223372036854775807": math.MaxInt64, "0.5KiB": 512,
	} {
		if got, err := v1.ParseBytes(text); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "+1", "1.5", "1.5B", "512M", "512m", "512mib", "MiB", "1e3", "1,5GiB", ". MiB", "1..5MiB", "9223372036854775808", "8388608TiB", "9999999.5TiB", "1 Mi B", "0x10", "1\x00"} {
		if got, err := v1.ParseBytes(text); err == nil {
			t.Errorf("ParseBytes(%q) = %d, want an error", text, got)
		}
	}
	for b, want := range map[v1.Bytes]string{0: "0B", 1: "1B", 1024: "1KiB", 1025: "1025B", 512 << 20: "512MiB", 3 << 29: "1536MiB", 1 << 40: "1TiB"} {
		if got := b.String(); got != want {
			t.Errorf("%d.String() = %q, want %q", int64(b), got, want)
		}
	}
}

func TestModes(t *testing.T) {
	for text, want := range map[string]v1.Mode{"0644": 0o644, "755": 0o755, "0o600": 0o600, "0": 0, "0777": 0o777} {
		if got, err := v1.ParseMode(text); err != nil || got != want {
			t.Errorf("ParseMode(%q) = %o, %v, want %o", text, got, err, want)
		}
	}
	for _, text := range []string{"", "888", "1777", "-1", "+644", "rw-", "0x1ff", "6_4_4"} {
		if got, err := v1.ParseMode(text); err == nil {
			t.Errorf("ParseMode(%q) = %o, want an error", text, got)
		}
	}
}

// values has one of each on the wire.
type values struct {
	D v1.Duration `json:"d"`
	B v1.Bytes    `json:"b"`
	M v1.Mode     `json:"m"`
}

func TestValuesOnTheWire(t *testing.T) {
	in := values{v1.Duration(1500 * time.Microsecond), 512 << 20, 0o755}
	body, err := json.Marshal(in)
	if want := `{"d":"1.5ms","b":536870912,"m":"0755"}`; err != nil || string(body) != want {
		t.Errorf("wrote %s, %v, want %s", body, err, want)
	}
	for body, want := range map[string]values{
		string(body):                           in,
		`{"b":"512MiB","m":"755","d":"1.5ms"}`: in,
		`{"d":"250\u00b5s"}`:                   {D: v1.Duration(250 * time.Microsecond)},
		`{"d":"250µs","b":0}`:                  {D: v1.Duration(250 * time.Microsecond)},
		`{"d":null,"b":null,"m":null}`:         {},
		`{}`:                                   {},
	} {
		var got values
		if err := json.Unmarshal([]byte(body), &got); err != nil || got != want {
			t.Errorf("read %s as %+v, %v, want %+v", body, got, err, want)
		}
	}
	for _, body := range []string{`{"d":30}`, `{"d":{}}`, `{"d":"30"}`, `{"b":-1}`, `{"b":1.5}`, `{"b":"x"}`, `{"b":[]}`, `{"b":true}`, `{"b":1e3}`, `{"m":644}`, `{"m":"999"}`} {
		var got values
		if err := json.Unmarshal([]byte(body), &got); err == nil {
			t.Errorf("read %s as %+v, want an error", body, got)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"30s", "1d12h", "-1s", "1.5ms", "", "d", "9999999d9h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := v1.ParseDuration(s)
		if err != nil {
			return
		}
		if d < 0 {
			t.Fatalf("ParseDuration(%q) = %v is negative", s, d)
		}
		if again, err := v1.ParseDuration(d.String()); err != nil || again != d {
			t.Fatalf("%q is read as %v, that as %v, %v", s, d, again, err)
		}
	})
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"512MiB", "1.5GiB", "-1", "0", "99999999999999999999", "1 kB", "."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := v1.ParseBytes(s)
		if err != nil {
			return
		}
		if b < 0 {
			t.Fatalf("ParseBytes(%q) = %d is negative", s, b)
		}
		if again, err := v1.ParseBytes(b.String()); err != nil || again != b {
			t.Fatalf("%q is read as %d, that as %d, %v", s, b, again, err)
		}
	})
}

func FuzzValuesOnTheWire(f *testing.F) {
	f.Add([]byte(`{"d":"1s","b":"1kB","m":"0644"}`))
	f.Add([]byte(`{"d":"\u0031s","b":1,"m":"\""}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var v, again values
		if json.Unmarshal(body, &v) != nil {
			return
		}
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &again); err != nil || again != v {
			t.Fatalf("%s is read as %+v, written as %s, read as %+v, %v", body, v, out, again, err)
		}
	})
}

package strict

import (
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/api/v1"
)

func TestWhatIsWrongWithABody(t *testing.T) {
	for body, want := range map[string]string{
		``:                         "the body is empty",
		"  \n":                     "the body is empty",
		`{"language":`:             "the body is not JSON: it ends too early, at line 1, column 13",
		"{\n  \"language\": nope}": "the body is not JSON: invalid character 'o' in literal null (expecting 'u') at line 2, column 16",
		`{"language":"go"} x`:      "there is more after the JSON value, at line 1, column 19",
		`{"code":"x","code":"y"}`:  `the field "code" is repeated at line 1, column 13`,
		`{"Code":"x"}`:             `Code: there is no such field; did you mean "code"?`,
		`{"language":"go"}{}`:      "there is more after the JSON value, at line 1, column 18",
		`[]`:                       "want an object, not a list",
		`"go"`:                     "want an object, not a string",
		`7`:                        "want an object, not the number 7",
		"{\"code\":\"\xff\"}":      "the body is not UTF-8",
		`{"code":"\ud800x"}`:       "the text at line 1, column 10 has half of a surrogate pair, which is not a character",
		`{"code":"\uDE00"}`:        "the text at line 1, column 10 has half of a surrogate pair, which is not a character",
		`{"code":"\ud83d\n"}`:      "the text at line 1, column 10 has half of a surrogate pair, which is not a character",
		`{"code":"\ud83z"}`:        "the body is not JSON: invalid escape sequence `\\ud83z` in string at line 1, column 10",
		`{"lang":"go"}`:            `lang: there is no such field; did you mean "language"?`,
		`{"codee":"x"}`:            `codee: there is no such field; did you mean "code"?`,
		`{"zzzzzz":1}`:             `zzzzzz: there is no such field`,
		`{"code":7}`:               "code: want a string, not the number 7",
		`{"async":"yes"}`:          "async: want true or false, not a string",
		`{"processes":"x"}`:        "processes: want a whole number, not a string",
		`{"processes":1.5}`:        "processes: want a whole number, not the number 1.5",
		`{"processes":1e99}`:       "processes: want a whole number, not the number 1e99",
		`{"vcpus":[]}`:             "vcpus: want a number, not a list",
		`{"memory":-1}`:            `memory: "-1" is not a size: write a number of bytes, or a number with B, kB, MB, GB, KiB, MiB or GiB, such as "512MiB"`,
		`{"memory":"512M"}`:        `memory: "512M" is not a size: write a number of bytes, or a number with B, kB, MB, GB, KiB, MiB or GiB, such as "512MiB"`,
		`{"timeout":"-5s"}`:        `timeout: "-5s" is not a duration: write a number with a unit, such as "500ms", "30s" or "2h"`,
		`{"args":"x"}`:             "args: want a list, not a string",
		`{"args":[1]}`:             "args[0]: want a string, not the number 1",
		`{"env":{"A":1}}`:          "env.A: want a string, not the number 1",
		`{"env":[]}`:               "env: want an object, not a list",
		`{"files":[{"pth":"x"}]}`:  `files[0].pth: there is no such field; did you mean "path"?`,
		`{"stdin_base64":"%"}`:     "stdin_base64: this is not base64",
		`{"stdin_base64":7}`:       "stdin_base64: want base64 in a string, not the number 7",
		`{"code":1,"files":[{"mode":644},{"path":2}],"artifacts":{"max_count":"x"}}`: "code: want a string, not the number 1 (and 3 more)",
	} {
		var q v1.ExecutionRequest
		err := Unmarshal([]byte(body), &q)
		if err == nil || err.Error() != want {
			t.Errorf("%s:\n got %v\nwant %v", body, err, want)
		}
		if e, ok := errors.AsType[*Error](err); !ok || (e.Remedy == "") == (len(e.Faults) == 0) {
			t.Errorf("%s: neither remedy nor faults: %+v", body, e)
		}
	}
}

func TestFaultsAreBounded(t *testing.T) {
	body := `{"args":[` + strings.TrimSuffix(strings.Repeat("1,", 1000), ",") + `]}`
	var q v1.ExecutionRequest
	err := Unmarshal([]byte(body), &q)
	e, ok := errors.AsType[*Error](err)
	if !ok || len(e.Faults) != MaxFaults {
		t.Errorf("%v, want %d faults", err, MaxFaults)
	}
}

var raceDetector bool // set by race_test.go

// TestFaultsTakeBoundedWork checks that what is allocated to refuse a body grows
// no faster than the body, and what is said about it not at all.
func TestFaultsTakeBoundedWork(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates, too")
	}
	fields := func(n int, member string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, member, i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	for name, body := range map[string]func(n int) string{
		"unknown fields":         func(n int) string { return `{` + fields(n, `"f%d":0,`) + `}` },
		"unknown fields, nested": func(n int) string { return `{"files":[{` + fields(n, `"f%d":0,`) + `}]}` },
		"an unknown object":      func(n int) string { return `{"x":{` + fields(n, `"f%d":0,`) + `}}` },
		"a long name":            func(n int) string { return `{"` + strings.Repeat("x", 8*n) + `":0}` },
		"a long name of a value": func(n int) string { return `{"env":{"` + strings.Repeat("x", 8*n) + `":0}}` },
		"a long name, twice":     func(n int) string { return fmt.Sprintf(`{"env":{%[1]q:"","a":"",%[1]q:""}}`, strings.Repeat("x", 4*n)) },
		"a long value":           func(n int) string { return `{"memory":"` + strings.Repeat("x", 8*n) + `"}` },
		"faults after much":      func(n int) string { return `{"args":[` + strings.Repeat(`"",`, n) + `1],"x":1}` },
		"faults after structs":   func(n int) string { return `{"files":[` + strings.Repeat(`{"path":"a"},`, n) + `{"x":1}]}` },
		"faults":                 func(n int) string { return `{"args":[1` + strings.Repeat(`,1`, n) + `]}` },
	} {
		work := func(n int) (perByte float64) {
			text := []byte(body(n))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			var q v1.ExecutionRequest
			err := Unmarshal(text, &q)
			runtime.ReadMemStats(&after)
			e, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("%s: %v", name, err)
			}
			said := len(e.Text) + len(e.Remedy)
			for _, f := range e.Faults {
				said += len(f.Field) + len(f.Detail)
			}
			if len(e.Faults) > MaxFaults || said > MaxFaults*1000 || !utf8.ValidString(err.Error()) {
				t.Errorf("%s: %d faults in %d bytes", name, len(e.Faults), said)
			}
			return float64(after.TotalAlloc-before.TotalAlloc) / float64(len(text))
		}
		small, large := work(10_000), work(300_000)
		if large > 2*small+8 || large > 64 {
			t.Errorf("%s: %.1f bytes are allocated for each of a small body, %.1f of a large one", name, small, large)
		}
	}
}

func TestUnescape(t *testing.T) {
	for _, raw := range []string{
		`plain`, ``, `\"\\\/\b\f\n\r\t`, `\u0041\u00e9ü\u2028`, `\ud83d\ude00`, `a\\ud800`, `\\\\`,
	} {
		var want string
		if err := json.Unmarshal([]byte(`"`+raw+`"`), &want); err != nil {
			t.Fatal(err)
		}
		if got := unescape([]byte(raw)); got != want {
			t.Errorf("unescape(%s) = %q, want %q", raw, got, want)
		}
	}
}

// Strings of long bodies are read another way; nothing else may differ.
func TestLongBodies(t *testing.T) {
	pad := strings.Repeat(" ", longBody)
	for _, body := range []string{
		`{"language":"go","code":"a\n\u00e9\ud83d\ude00","stdin":null,"env":{"A\n":"\t"},"args":["","x"],"memory":"1MiB"}`,
		`{"files":[{"path":"a","content":"b"},{"path":"c","content_base64":"aGk=","mode":"0600"}]}`,
		`{"code":"\ud83d"}`, `{"code":"\ude00\ud83d"}`, `{"code":"\u00g0"}`, `{"code":"\x"}`, "{\"code\":\"\x01\"}", "{\"code\":\"\xff\"}",
		`{"code":7}`, `{"args":[1]}`, `{"code":"x","code":"y"}`, `{"Code":"x"}`, `{"code":"x`, `{"code":"x"}{}`, `{"stdin_base64":"%"}`, "{\"stdin_base64\":\"aGk=\\n\"}",
	} {
		var short, long v1.ExecutionRequest
		shortErr, longErr := Unmarshal([]byte(body), &short), Unmarshal([]byte(body+pad), &long)
		if (shortErr == nil) != (longErr == nil) || shortErr != nil && shortErr.Error() != longErr.Error() && !strings.Contains(body, `"x`) {
			t.Errorf("%s: %v when short, %v when long", body, shortErr, longErr)
		}
		if d := cmp.Diff(short, long); d != "" && shortErr == nil {
			t.Errorf("%s (-short +long):\n%s", body, d)
		}
	}
}

// FuzzUnmarshal compares with encoding/json: what that refuses must not be
// accepted, and what is accepted must be read the same, whether the body is
// short or long.
func FuzzUnmarshal(f *testing.F) {
	for _, s := range []string{
		`{"language":"go","code":"x","files":[{"path":"a","content":"b","mode":"0644"}],"env":{"A":"b"},"memory":"1MiB"}`,
		`{"language":"go"}{}`, `[]`, `{"code":"\ud800"}`, `{"x":1}`, `{"files":[{"mode":7}]}`, "{\"code\":\"\xff\"}", `null`, `{"artifacts":null}`, "0\xf9",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var got, want v1.ExecutionRequest
		err := Unmarshal(body, &got)
		if err != nil {
			if err.Error() == "" || !utf8.ValidString(err.Error()) {
				t.Fatalf("%q: %v", body, err)
			}
			return
		}
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatalf("%q was accepted, but: %v", body, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("%q (-want +got):\n%s", body, d)
		}
		var padded v1.ExecutionRequest
		if err := Unmarshal(append(body, strings.Repeat(" ", longBody)...), &padded); err != nil {
			t.Fatalf("%q was refused when long: %v", body, err)
		}
		if d := cmp.Diff(want, padded); d != "" {
			t.Fatalf("%q when long (-want +got):\n%s", body, d)
		}
	})
}

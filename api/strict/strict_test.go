package strict

import (
	"encoding/json"
	"errors"
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
		`{"language":"go"} x`:      "there is more after the JSON value, at line 1, column 18",
		`{"language":"go"}{}`:      "there is more after the JSON value, at line 1, column 18",
		`[]`:                       "want an object, not a list",
		`"go"`:                     "want an object, not a string",
		`7`:                        "want an object, not the number 7",
		"{\"code\":\"\xff\"}":      "the body is not UTF-8",
		`{"code":"\ud800x"}`:       "the text at line 1, column 10 has half of a surrogate pair, which is no character",
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
		`{"code":1,"files":[{"mode":644},{"path":2}],"artifacts":{"max_count":"x"}}`: "artifacts.max_count: want a whole number, not a string (and 3 more)",
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

func TestLoneSurrogates(t *testing.T) {
	for body, want := range map[string]int{
		`"plain"`: -1, `"\ud83d\ude00"`: -1, `"\uD83D\uDE00\u00e9"`: -1, `"\\ud800"`: -1, `"\\\\ud800"`: -1,
		`"\ud83d"`: 1, `"\ud83dx\ude00"`: 1, `"\ud83d\n"`: 1, `"\ude00"`: 1, `"\ud83d\ud83d\ude00"`: 1, `"a\\\udfff"`: 4, `"\u00e9\ud83d"`: 7,
		`\`: -1, `\u`: -1, `"\ud8`: -1,
	} {
		if got := loneSurrogate([]byte(body)); got != want {
			t.Errorf("loneSurrogate(%s) = %d, want %d", body, got, want)
		}
	}
}

func TestNearest(t *testing.T) {
	fields := []string{"language", "code", "files", "timeout", "memory"}
	for name, want := range map[string]string{
		"langauge": "language", "Language": "language", "lang": "language", "cod": "code", "cdoe": "code", "file": "files",
		"time_out": "timeout", "timout": "timeout", "x": "", "memroy": "memory", "completely": "",
	} {
		if got := Nearest(name, fields); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", name, got, want)
		}
	}
}

// FuzzUnmarshal holds the strict reader to what encoding/json reads: it must
// neither accept what that refuses nor change what it reads, except for text
// that is no text.
func FuzzUnmarshal(f *testing.F) {
	for _, s := range []string{
		`{"language":"go","code":"x","files":[{"path":"a","content":"b","mode":"0644"}],"env":{"A":"b"},"memory":"1MiB"}`,
		`{"language":"go"}{}`, `[]`, `{"code":"\ud800"}`, `{"x":1}`, `{"files":[{"mode":7}]}`, "{\"code\":\"\xff\"}", `null`, `{"artifacts":null}`,
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
	})
}

package strict

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/api/v1"
)

// strictly is the reader that hoist must agree with.
func strictly(body []byte) (q v1.ExecutionRequest, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	ok = dec.Decode(&q) == nil && len(bytes.TrimSpace(body[dec.InputOffset():])) == 0
	return q, ok
}

var long = strings.Repeat("0123456789abcdef", longString/16)

func TestHoistTakesLongStrings(t *testing.T) {
	for name, body := range map[string]string{
		"code":        `{"language":"go","code":"` + long + `"}`,
		"spaces":      "\n{ \"code\" :\t\"" + long + "\" , \"async\" : true }\r\n",
		"escapes":     `{"code":"\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00ü` + long + `\\"}`,
		"stdin":       `{"stdin":"` + long + `","stdin_base64":"` + long + `"}`,
		"files":       `{"files":[{"path":"a","content":"` + long + `"},{"path":"b","content":"short"},{"content_base64":"` + long + `","mode":"0600"},{}],"entry":"a"}`,
		"no files":    `{"files":[],"code":"` + long + `"}`,
		"other parts": `{"env":{"code":"x","a":"[{\"}"},"args":["]","\\"],"vcpus":1.5e0,"memory":"1MiB","code":"` + long + `","artifacts":{"max_count":3}}`,
	} {
		var got v1.ExecutionRequest
		want, ok := strictly([]byte(body))
		if !ok || !hoist([]byte(body), &got) {
			t.Errorf("%s: hoisted is not %t", name, ok)
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func TestHoistLeavesTheRest(t *testing.T) {
	for name, body := range map[string]string{
		"twice":             `{"code":"x","code":"` + long + `"}`,
		"other letters":     `{"Code":"` + long + `"}`,
		"escaped key":       `{"c\u006fde":"` + long + `"}`,
		"null":              `{"code":null,"stdin":"` + long + `"}`,
		"unknown":           `{"cod":1,"code":"` + long + `"}`,
		"control character": "{\"code\":\"\x01" + long + `"}`,
		"odd escape":        `{"code":"\x` + long + `"}`,
		"odd code unit":     `{"code":"\u00g0` + long + `"}`,
		"signed code unit":  `{"code":"\u+041` + long + `"}`,
		"not base64":        `{"stdin_base64":"%` + long + `"}`,
		"padding":           `{"stdin_base64":"` + long + `="}`,
		"no end":            `{"code":"` + long,
		"more":              `{"code":"` + long + `"}{}`,
		"comma":             `{"code":"` + long + `",}`,
		"two commas":        `{"code":"` + long + `",,"async":true}`,
		"no comma":          `{"code":"` + long + `" "async":true}`,
		"commas of files":   `{"files":[{"content":"` + long + `"},]}`,
		"files of numbers":  `{"files":[1],"code":"` + long + `"}`,
		"brackets":          `{"args":[}],"code":"` + long + `"}`,
		"a list":            `["` + long + `"]`,
		"nothing":           ``,
	} {
		var got v1.ExecutionRequest
		if hoist([]byte(body), &got) {
			t.Errorf("%s was hoisted", name)
		}
		if d := cmp.Diff(v1.ExecutionRequest{}, got); d != "" {
			t.Errorf("%s left something (-want +got):\n%s", name, d)
		}
	}
}

// FuzzHoist holds that what hoist reads, the strict reader reads the same.
func FuzzHoist(f *testing.F) {
	for _, s := range []string{
		`{"language":"go","code":"@","files":[{"path":"a","content":"@\n"},{"content_base64":"@"}],"memory":1}`,
		`{"stdin":"\ud83d\ude00@","env":{"a":"@"}}`, `{"code":"@\","x":1}`, `{"files":[{"content":"@"} {"content":"@"}]}`, `{"files":[{"Content":"@"}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		body = bytes.ReplaceAll(body, []byte("@"), []byte(long))
		if !utf8.Valid(body) || loneSurrogate(body) >= 0 {
			return // refused before
		}
		var got v1.ExecutionRequest
		if !hoist(body, &got) {
			return
		}
		want, ok := strictly(body)
		if !ok {
			t.Fatalf("%q was hoisted, but is not right", body)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("%q (-want +got):\n%s", body, d)
		}
	})
}

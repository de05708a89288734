package script

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// shellFrame returns a shell command that prints body as a frame.
func shellFrame(body string) string {
	n := len(body)
	octal := func(b int) string {
		return "\\" + string(rune('0'+b>>6&7)) + string(rune('0'+b>>3&7)) + string(rune('0'+b&7))
	}
	return "printf '" + octal(n>>24&255) + octal(n>>16&255) + octal(n>>8&255) + octal(n&255) + strings.NewReplacer(`\`, `\\`, `%`, `%%`, `'`, `'\''`).Replace(body) + "'\n"
}

// takenOverHelper returns a helper that reports that it is confined, then runs a shell
// command.
func takenOverHelper(t *testing.T, then string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "engi-js")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+shellFrame("{}")+then), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestHelperTakenOver runs programs on helpers that violate the protocol. Each result
// must be lost or a timeout, and no process may be left.
func TestHelperTakenOver(t *testing.T) {
	// The ID of the run is in the first bytes that the helper receives.
	const know = `id=$(head -c 200 | tr -dc '[:print:]' | sed 's/.*"id":\([0-9]*\).*/\1/')
say() { body=$(printf "$1" "$id"); n=${#body}; printf "\\$(printf %03o $((n>>24&255)))\\$(printf %03o $((n>>16&255)))\\$(printf %03o $((n>>8&255)))\\$(printf %03o $((n&255)))%s" "$body"; }
`
	var calls atomic.Int64
	slow := API{ScriptAPI: engi.ScriptAPI{Name: "slow", Signature: "() => Promise<void>", Description: "Waits."},
		Call: func(ctx context.Context, c Call) (any, error) {
			calls.Add(1)
			<-ctx.Done()
			calls.Add(-1)
			return nil, ctx.Err()
		}}
	for name, c := range map[string]struct {
		then string
		want engi.ScriptErrorKind // empty means an answer
	}{
		"answers":          {know + `say '{"done":{"run":%s,"value":42,"duration_ns":1}}'; cat >/dev/null`, ""},
		"dies":             {"exit 0", engi.ScriptLost},
		"dies while asked": {"head -c 4 >/dev/null", engi.ScriptLost},
		"says nothing":     {"exec sleep 1000", engi.ScriptTimeout},
		"reads nothing":    {"sleep 1000", engi.ScriptTimeout},
		"chatters":         {"exec yes", engi.ScriptLost},
		"zeros":            {"exec cat /dev/zero", engi.ScriptLost},
		"announces much":   {`printf '\377\377\377\377'; exec sleep 1000`, engi.ScriptLost},
		"breaks off":       {`printf '\000\000\020\000{'; exit`, engi.ScriptLost},
		"never ends one":   {`printf '\000\000\020\000{'; exec sleep 1000`, engi.ScriptTimeout},
		"empty frames":     {know + "while :; do " + strings.TrimSpace(shellFrame("{}")) + "; done", engi.ScriptLost},
		"knows the answer": {shellFrame(`{"done":{"run":1,"value":42}}`) + "cat >/dev/null", engi.ScriptLost},
		"asks early":       {shellFrame(`{"call":{"run":1,"id":1,"api":"slow","args":[]}}`) + "cat >/dev/null", engi.ScriptLost},
		"asks much":        {know + `while :; do say '{"call":{"run":%s,"id":1,"api":"slow","args":[]}}'; done`, engi.ScriptLost},
		"asks the unknown": {know + `say '{"call":{"run":%s,"id":1,"api":"../x","args":null}}'; exec sleep 1000`, engi.ScriptTimeout},
		"odd error":        {know + `say '{"done":{"run":%s,"error":{"kind":"odd","message":""}}}'; cat >/dev/null`, engi.ScriptLost},
		"odd place":        {know + `say '{"done":{"run":%s,"error":{"kind":"exception","line":-5}}}'; cat >/dev/null`, engi.ScriptLost},
		"odd time":         {know + `say '{"done":{"run":%s,"duration_ns":-5}}'; cat >/dev/null`, engi.ScriptLost},
		"value and error":  {know + `say '{"done":{"run":%s,"value":1,"error":{"kind":"exception","name":"E","message":"m"}}}'; cat >/dev/null`, engi.ScriptThrown},
		"no JSON":          {know + `say '{"done":{"run":%s,"value":tru}}'; cat >/dev/null`, engi.ScriptLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := runner(t, func(o *Options) {
				o.Helper, o.APIs = takenOverHelper(t, c.then), []API{slow}
				o.Limits.MinTimeout, o.Limits.Timeout, o.Limits.Calls = 50*time.Millisecond, 2*time.Second, 4
				o.Warm, o.Max = 1, 2
			})
			x, err := r.Scripts().Run(t.Context(), engi.ScriptSpec{Owner: "eve", Code: "1"})
			if err != nil {
				if c.want != engi.ScriptLost || !engi.Is(err, engi.Unavailable) {
					t.Fatal(err)
				}
				return // three times, the helper was gone before the program could be sent
			}
			if c.want == "" {
				if string(x.Value) != "42" {
					t.Errorf("got %+v", x.Error)
				}
				return
			}
			if x.OK || x.Error.Kind != c.want || x.Value != nil {
				t.Errorf("got %s, %+v, want %s", x.Value, x.Error, c.want)
			}
		})
	}
	t.Cleanup(func() {
		if n := calls.Load(); n != 0 {
			t.Errorf("%d calls go on", n)
		}
	})
}

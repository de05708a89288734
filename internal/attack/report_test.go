package attack

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/engi-dev/engi/api/v1"
)

func TestReportsCannotBeChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "engi", "attack.key")
	key, err := LoadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := LoadKey(path); err != nil || !again.Equal(key) {
		t.Errorf("the key is another one the second time: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	s, err := Sign(Report{URL: "http://x?a=1&b=<2>", Results: []Result{{"egress", "x", Broke, "é <>& \u2028", ""}}}, key)
	if err != nil {
		t.Fatal(err)
	}
	file, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	r, public, err := Verify(file)
	if err != nil || r.URL != "http://x?a=1&b=<2>" || len(r.Results) != 1 || Fingerprint(public) != Fingerprint(s.PublicKey) {
		t.Fatalf("%+v, %v", r, err)
	}
	other, err := LoadKey(filepath.Join(t.TempDir(), "k"))
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{
		"a result":    bytes.Replace(file, []byte(`"broke"`), []byte(`"held"`), 1),
		"the key":     bytes.Replace(file, []byte(base64.StdEncoding.EncodeToString(public)), []byte(base64.StdEncoding.EncodeToString(other.Public().(ed25519.PublicKey))), 1),
		"a part":      file[:len(file)/2],
		"no report":   []byte("{}"),
		"a member":    bytes.Replace(file, []byte(`"report": {`), []byte(`"report": {"x": 1,`), 1),
		"a signature": bytes.Replace(file, []byte(`"signature": "`), []byte(`"signature": "AAAA`), 1),
	} {
		if bytes.Equal(bad, file) {
			t.Errorf("%s: nothing was changed", name)
		}
		if _, _, err := Verify(bad); err == nil {
			t.Errorf("%s was changed, and the report is taken for good", name)
		}
	}
}

func TestAge(t *testing.T) {
	now := time.Date(2026, 9, 15, 0, 0, 0, 0, time.UTC)
	for version, want := range map[string]int{
		"v0.0.0-20260905035102-160fafc42237": 9, "v1.2.4-0.20260905035102-160fafc42237": 9, "v1.2.3": -1, "": -1, "v0.0.0-x-y": -1,
	} {
		if got := Age(version, now); got != want {
			t.Errorf("%s: %d days", version, got)
		}
	}
}

// TestOnlyWhatWasTriedIsHeld: an attack that was not tried, or whose control fails, never has the outcome held.
func TestOnlyWhatWasTriedIsHeld(t *testing.T) {
	said := func(out string) v1.Execution { return v1.Execution{Result: &v1.Result{Stdout: out, Cause: "exited"}} }
	for out, want := range map[string]string{
		"": Skipped, "Traceback": Skipped, "DENIED\n": Held, "ESCAPED x\n": Broke, "ESCAPED x\nDENIED\n": Broke,
	} {
		if got := verdict("g", "n", said(out), nil); got.Outcome != want || got.Outcome != Held && got.Why == "" {
			t.Errorf("%q: %+v", out, got)
		}
	}
	if got := verdict("g", "n", said("DENIED"), os.ErrClosed); got.Outcome != Skipped {
		t.Errorf("an error: %+v", got)
	}
	yes := "REACHED"
	w := way{name: "w", control: "1.1.1.1"}
	some := func(got *string) map[string]outcome { return map[string]outcome{"w": {Name: "w", Got: got}} }
	for _, c := range []struct {
		tried, control map[string]outcome
		want           string
	}{
		{some(nil), some(&yes), Held}, {some(nil), some(nil), Skipped}, {some(nil), nil, Skipped}, {nil, some(&yes), Skipped},
		{some(&yes), some(&yes), Broke}, {some(&yes), some(nil), Broke},
	} {
		if got := judge(w, c.tried, c.control); got.Outcome != c.want || got.Outcome == Held && !strings.Contains(got.Control, "1.1.1.1") {
			t.Errorf("tried %v, control %v: %+v", c.tried, c.control, got)
		}
	}
}

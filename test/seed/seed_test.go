package seed

import (
	"flag"
	"os"
	"testing"
)

func TestOf(t *testing.T) {
	for _, c := range []struct {
		own, all, name string
		want           uint64
		bad            bool
	}{
		{name: "OWN", want: 7},
		{want: 7},
		{name: "OWN", own: "3", want: 3},
		{name: "OWN", all: "4", want: 4},
		{all: "4", want: 4},
		{name: "OWN", own: "3", all: "random", want: 3},
		{name: "OWN", all: "some", bad: true},
		{name: "OWN", own: "-1", bad: true},
	} {
		env := map[string]string{"OWN": c.own, "ENGI_SEED": c.all}
		got, err := of(func(name string) string { return env[name] }, c.name, 7)
		if got != c.want || (err != nil) != c.bad {
			t.Errorf("%+v: %d, %v", c, got, err)
		}
	}
	random := func(string) string { return "random" }
	a, _ := of(random, "", 7)
	b, _ := of(random, "", 7)
	if a == 7 || a == b || a == 0 {
		t.Errorf("two random seeds are %d and %d", a, b)
	}
}

// TestRapid checks that importing this package fixes the seed of rapid.
func TestRapid(t *testing.T) {
	if os.Getenv("ENGI_SEED") != "" || os.Getenv("RAPID_SEED") != "" {
		t.Skip("the environment asks for another seed")
	}
	if got := flag.Lookup("rapid.seed").Value.String(); got != "1" {
		t.Errorf("rapid.seed is %s", got)
	}
}

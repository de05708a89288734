package intercept

import (
	"encoding/base64"
	"net/url"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/policy"
)

func FuzzReplace(f *testing.F) {
	const holder = "engi-secret-0123456789abcdef0123456789abcdef"
	f.Add("a="+holder+"&b=1", "Bearer "+holder, "value", "k")
	f.Add("k=1&k=%6b&;&&=", "Basic "+base64.StdEncoding.EncodeToString([]byte("u:"+holder)), "a b&c=d\r\n", "k")
	f.Add("%zz", "basic !!", "x", "%")
	f.Fuzz(func(t *testing.T, query, header, value, name string) {
		if strings.Contains(value, holder) || len(query)+len(header)+len(value) > 1<<12 {
			t.Skip()
		}
		x := &exchange{header: map[string][]string{"Authorization": {header}}, query: query}
		if err := x.replace(holder, value); err != nil {
			return // too long
		}
		if strings.Contains(x.query, holder) || strings.Contains(x.header["Authorization"][0], holder) {
			t.Fatal("a placeholder is left")
		}
		if pair, ok := basicPair(x.header["Authorization"][0]); ok && strings.Contains(pair, holder) {
			t.Fatal("a placeholder is left in credentials")
		}
		if strings.Count(x.query, "&") != strings.Count(query, "&") || strings.ContainsAny(strings.ReplaceAll(x.query, query, ""), "\r\n") && !strings.ContainsAny(query, "\r\n") {
			t.Fatalf("%q became %q", query, x.query)
		}
		if name == "" {
			return
		}
		got, _ := url.ParseQuery(setQuery(query, name, value))
		if all := got[name]; len(all) != 1 || all[0] != value {
			t.Fatalf("%q has %q", setQuery(query, name, value), all)
		}
	})
}

// TestTrustVariablesAreReserved checks that no placeholder can replace the
// variables that make programs trust the authority.
func TestTrustVariablesAreReserved(t *testing.T) {
	for name := range trustEnv {
		_, err := policy.Compile(engi.NetworkPolicy{Mode: engi.NetworkRestricted, Grants: []engi.Grant{{Secret: "a", Hosts: []string{"a.example"}, Env: name}}}, policy.Node{})
		if !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

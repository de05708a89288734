package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
)

func TestGrantsOnTheCommandLine(t *testing.T) {
	for text, want := range map[string]v1.Grant{
		"github@api.github.com":                        {Secret: "github", Hosts: []string{"api.github.com"}},
		"github@a.com,*.b.com:bearer":                  {Secret: "github", Hosts: []string{"a.com", "*.b.com"}, As: "bearer"},
		"k@a.com:header=X-API-Key:strip":               {Secret: "k", Hosts: []string{"a.com"}, As: "header", Name: "X-API-Key", Strip: true},
		"k@a.com:header=Authorization:format=token {}": {Secret: "k", Hosts: []string{"a.com"}, As: "header", Name: "Authorization", Format: "token {}"},
		"k@a.com:basic=ann":                            {Secret: "k", Hosts: []string{"a.com"}, As: "basic", Name: "ann"},
		"k@a.com:basic":                                {Secret: "k", Hosts: []string{"a.com"}, As: "basic"},
		"k@a.com:query=key":                            {Secret: "k", Hosts: []string{"a.com"}, As: "query", Name: "key"},
		"k@a.com:8443,http://b.com:8080:bearer":        {Secret: "k", Hosts: []string{"a.com:8443", "http://b.com:8080"}, As: "bearer"},
		"k@http://b.com":                               {Secret: "k", Hosts: []string{"http://b.com"}},
		"k@a.com:env=TOKEN":                            {Secret: "k", Hosts: []string{"a.com"}, As: "placeholder", Env: "TOKEN"},
	} {
		got, err := grantOf(text)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got):\n%s", text, err, d)
		}
	}
	for _, text := range []string{"", "github", "@a.com", "github@", "k@a.com:cookie", "k@a.com:header", "k@a.com,:bearer", "k@:bearer", "k@a.com:bearer=x", "k@a.com:strip=1", "k@a.com::"} {
		if g, err := grantOf(text); !engi.Is(err, engi.Invalid) {
			t.Errorf("%q is %+v, %v", text, g, err)
		}
	}
}

func TestRequestsOnTheCommandLine(t *testing.T) {
	for text, want := range map[string]v1.RequestRule{
		"POST api.example.com/v1/messages":                                   {Host: "api.example.com", Methods: []string{"POST"}, Path: "/v1/messages"},
		"GET,HEAD *.example.com":                                             {Host: "*.example.com", Methods: []string{"GET", "HEAD"}},
		"deny * api.example.com/admin/**":                                    {Action: "deny", Host: "api.example.com", Path: "/admin/**"},
		"ask DELETE http://a.example.com:8080/x":                             {Action: "ask", Methods: []string{"DELETE"}, Host: "http://a.example.com:8080", Path: "/x"},
		"ask_exact POST a.example.com/pay":                                   {Action: "ask_exact", Methods: []string{"POST"}, Host: "a.example.com", Path: "/pay"},
		"POST https://a.example.com":                                         {Methods: []string{"POST"}, Host: "https://a.example.com"},
		`POST a.example.com/m where mcp_servers absent; model in ["a", "b"]`: {Methods: []string{"POST"}, Host: "a.example.com", Path: "/m", Body: []string{"mcp_servers absent", `model in ["a", "b"]`}},
	} {
		got, err := requestOf(text)
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got):\n%s", text, err, d)
		}
		if back := requestText(got); back != text {
			t.Errorf("%s is printed as %s", text, back)
		}
	}
	for _, text := range []string{"", "api.example.com", "drop POST a.example.com", "POST a.example.com /v1", "where a absent"} {
		if r, err := requestOf(text); !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" {
			t.Errorf("%q is %+v, %v", text, r, err)
		}
	}
	f := networkFlags{Request: []string{"GET a.example.com"}}
	if p, err := f.policy(); err != nil || len(p.Requests) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestNetworkFlagsChangeWhatTheyName(t *testing.T) {
	p := v1.NetworkPolicy{Mode: v1.NetworkRestricted, Allow: []string{"a.com"}, Deny: []string{"b.com"}, Group: "g"}
	f := networkFlags{Allow: []string{"none"}, Secret: []string{"k@a.com"}, As: "db"}
	if err := f.apply(&p); err != nil {
		t.Fatal(err)
	}
	want := v1.NetworkPolicy{Mode: v1.NetworkRestricted, Deny: []string{"b.com"}, Grants: []v1.Grant{{Secret: "k", Hosts: []string{"a.com"}}}, Group: "g", Name: "db"}
	if d := cmp.Diff(want, p); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if p, err := (&networkFlags{}).policy(); p != nil || err != nil {
		t.Errorf("no flags are %+v, %v", p, err)
	}
	if p, err := (&networkFlags{Group: "g"}).policy(); err != nil || p.Mode != v1.NetworkIsolated {
		t.Errorf("a group is %+v, %v", p, err)
	}
}

// TestNetworkLinesAreLines holds that names which programs chose cannot write
// to a terminal what they want.
func TestNetworkLinesAreLines(t *testing.T) {
	at := time.Now()
	line := networkLine(v1.NetworkRecord{Seq: 7, Type: v1.NetworkLookup, Time: &at, Host: "a\x1b[2J\r\n.com", Reason: "no rule\u202e", Rule: "x"})
	if strings.ContainsAny(line, "\x1b\r\n\u202e") || !strings.Contains(line, "denied") || !strings.Contains(line, ".com") {
		t.Errorf("line %q", line)
	}
	line = networkLine(v1.NetworkRecord{Type: v1.NetworkClose, Allowed: true, Protocol: "tcp", Host: "a.com", Address: "1.1.1.1:443", Up: 5, Down: 6})
	if !strings.HasSuffix(line, "tcp a.com 1.1.1.1:443  5 bytes out, 6 in") {
		t.Errorf("line %q", line)
	}
}

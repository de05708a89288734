package request

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// TestBadRules checks that rules without a sensible meaning are refused, with a remedy.
func TestBadRules(t *testing.T) {
	for name, r := range map[string]engi.RequestRule{
		"action": {Action: "drop"}, "lower case": {Methods: []string{"get"}}, "no token": {Methods: []string{"GET "}}, "CONNECT": {Methods: []string{"CONNECT"}},
		"twice": {Methods: []string{"GET", "GET"}}, "many methods": {Methods: make([]string, 17)}, "relative": {Path: "v1"}, "query": {Path: "/v1?a=b"}, "encoded": {Path: "/v1/%61"},
		"dots": {Path: "/v1/../x"}, "empty segment": {Path: "/v1//x"}, "parameter": {Path: "/v1;a"}, "stars": {Path: "/v1/**/x"}, "stars in a name": {Path: "/v1/x**"}, "long": {Path: "/" + strings.Repeat("a", 2000)},
		"limit": {MaxBody: 64 << 20}, "negative": {MaxBody: -1}, "reason": {Reason: "a\nb"}, "deny by body": {Action: engi.RequestDeny, Body: []string{"a absent"}}, "socket with a body": {Methods: []string{WebSocket}, Body: []string{"a absent"}},
		"many conditions": {Body: make([]string, 65)}, "no condition": {Body: []string{""}}, "no operator": {Body: []string{"a"}}, "operator": {Body: []string{"a is 1"}}, "twice the same": {Body: []string{"a absent", "a absent"}},
		"contradiction": {Body: []string{"a absent", "a present"}}, "absent and more": {Body: []string{"a absent 1"}}, "empty list": {Body: []string{"a in []"}}, "no list": {Body: []string{`a in "b"`}}, "list of lists": {Body: []string{"a in [[1]]"}},
		"after a list": {Body: []string{"a in [1] 2"}}, "null": {Body: []string{"a in [null]"}}, "no number": {Body: []string{"a max x"}}, "infinite": {Body: []string{"a max Inf"}}, "negative number": {Body: []string{"a max -1"}},
		"keys that are numbers": {Body: []string{"a keys [1]"}}, "path": {Body: []string{"a..b absent"}}, "index": {Body: []string{"a[0] absent"}}, "half a bracket": {Body: []string{"a[* absent"}}, "deep root": {Body: []string{"** absent"}},
		"deep in the middle": {Body: []string{"a.**.b absent"}}, "the whole": {Body: []string{"$ absent"}}, "each present": {Body: []string{"a[*].b present"}}, "deep present": {Body: []string{"**.b present"}}, "long condition": {Body: []string{"a in [\"" + strings.Repeat("a", 5000) + "\"]"}},
	} {
		err := new(Set).Add(r)
		if err == nil {
			t.Errorf("%s is accepted", name)
		} else if err.Kind != engi.Invalid || err.Remedy == "" || !strings.Contains(err.Text, "request rule") || len(err.Error()) > 800 {
			t.Errorf("%s: %v, %s", name, err, err.Remedy)
		}
	}
	var s Set
	for range MaxRules {
		if err := s.Add(engi.RequestRule{Path: "/a"}); err != nil {
			t.Fatal(err)
		}
	}
	if s.Add(engi.RequestRule{}) == nil {
		t.Errorf("there are %d rules", s.Len())
	}
}

func TestPaths(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		match         bool
	}{
		{"/v1/messages", "/v1/messages", true}, {"/v1/messages", "/v1/messages/", false}, {"/v1/messages", "/v1/message", false}, {"/", "/", true},
		{"/**", "/", true}, {"/**", "/a/b", true}, {"/v1/**", "/v1/", true}, {"/v1/**", "/v1/a/b/", true}, {"/v1/**", "/v1", false}, {"/v1/**", "/v1a", false},
		{"/v1/*", "/v1/a", true}, {"/v1/*", "/v1/", true}, {"/v1/*", "/v1/a/b", false}, {"/v1/*/x", "/v1/a/x", true}, {"/v1/*/x", "/v1/a/b/x", false}, {"/*/x/**", "/a/x/", true}, {"/*/x/**", "/a/x/y", true}, {"/*/**", "/a/b/c", true},
		{"/m/*:generate", "/m/a-1:generate", true}, {"/m/*:generate", "/m/a:generateAll", false}, {"/m/a*b*c", "/m/a1b2c", true}, {"/m/a*b*c", "/m/ac", false}, {"/m/a*a", "/m/a", false}, {"/m/*.json", "/m/.json", true}, {"/b\u00fccher", "/b\u00fccher", true},
	} {
		for action, path := range map[engi.RequestAction]string{engi.RequestAllow: c.path, engi.RequestDeny: strings.ToUpper(c.path)} {
			var s Set
			if err := s.Add(engi.RequestRule{Path: c.pattern, Action: action}); err != nil {
				t.Fatal(err)
			}
			j := Judging{Set: &s, Request: Request{Method: "GET", Path: path}}
			r, err := j.First([]int32{0})
			slash := action == engi.RequestDeny && (c.pattern+"/" == c.path || c.pattern == c.path+"/**") // lenient servers take both for the same
			if want := c.match || slash; err != nil || want != (r != nil) {
				t.Errorf("%s %s matches %s: %v, %v", action, c.pattern, path, r != nil, err)
			}
		}
	}
}

func TestCovers(t *testing.T) {
	rule := func(text string) *Rule {
		action, rest, _ := strings.Cut(text, " ")
		methods, path, _ := strings.Cut(rest, " ")
		r := engi.RequestRule{Action: engi.RequestAction(action), Path: path}
		if methods != "*" {
			r.Methods = strings.Split(methods, ",")
		}
		var s Set
		if err := s.Add(r); err != nil {
			t.Fatal(err)
		}
		return s.Rule(0)
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"allow GET /a", "allow GET /a", true}, {"allow * /**", "deny GET /a", true}, {"allow GET,POST /a/**", "allow POST /a/b/**", true}, {"allow GET /a", "allow * /a", false}, {"allow * /a", "allow WEBSOCKET /a", false},
		{"allow * /**", "deny * /a", false}, {"deny * /**", "allow WEBSOCKET /a", true}, {"allow GET /*", "allow GET /a", false}, {"allow GET /a/**", "allow GET /a", false},
	} {
		if got := rule(c.a).Covers(rule(c.b)); got != c.want {
			t.Errorf("%s covers %s: %v", c.a, c.b, got)
		}
	}
}

func TestConditions(t *testing.T) {
	for _, c := range []struct {
		condition string
		holds     []string
		breaks    []string
	}{
		{"a absent", []string{`{}`, `{"a":null}`, `{"b":{"a":1}}`}, []string{`[]`, `{"a":1}`, `{"a":[]}`, `{"a":false}`, `{"A":1}`, `{"\u0061":1}`, `[{"a":1}]`}},
		{"a.b absent", []string{`{"a":{}}`, `{"a":"b"}`, `{"a":{"c":{"b":1}}}`}, []string{`{"a":{"b":1}}`, `{"a":{"B":1}}`, `{"a":[{"b":1}]}`, `{"A":{}}`}},
		{"a present", []string{`{"a":1}`, `{"a":false}`}, []string{`{}`, `{"a":null}`, `{"b":1}`, `[]`}},
		{`a in ["x", "y-*", 1, true]`, []string{`{}`, `{"a":"x"}`, `{"a":"y-"}`, `{"a":"y-1"}`, `{"a":1.0}`, `{"a":10e-1}`, `{"a":true}`, `{"a":null}`}, []string{`{"a":"X"}`, `{"a":"y"}`, `{"a":"1"}`, `{"a":2}`, `{"a":false}`, `{"a":["x"]}`, `{"a":{}}`, `{"a":1e999}`}},
		{`a not_in ["x", "y*"]`, []string{`{"a":"z"}`, `{"a":1}`, `{}`}, []string{`{"a":"x"}`, `{"a":"X"}`, `{"a":" x "}`, `{"a":"Y1"}`, `{"a":"x\u0000"}`, `{"a":["x"]}`, `{"a":{}}`}},
		{"a max 10", []string{`{"a":10}`, `{"a":0}`, `{"a":1e1}`, `{}`}, []string{`{"a":11}`, `{"a":10.5}`, `{"a":"5"}`, `{"a":-1}`, `{"a":1e400}`, `{"a":[1]}`, `{"a":true}`}},
		{`$ keys ["a", "b"]`, []string{`{"a":1}`, `{}`, `{"a":{"c":1}}`}, []string{`{"c":1}`, `{"A":1}`, `[]`, `{"a":1,"c":null}`}},
		{`a[*] keys ["b"]`, []string{`{"a":[{"b":1},{}]}`, `{"a":[]}`, `{"a":"x"}`}, []string{`{"a":[{"c":1}]}`, `{"a":[[]]}`, `{"a":["x"]}`, `{"a":{"b":1}}`}},
		{`a[*].b in ["x"]`, []string{`{"a":[{"b":"x"},{},1]}`, `{"a":1}`}, []string{`{"a":[{"b":"x"},{"b":"y"}]}`, `{"a":[[{"b":"y"}]]}`, `{"a":{"0":{"b":"y"}}}`, `{"a":[{"b":["x"]}]}`}},
		{`a[*][*] max 1`, []string{`{"a":[[1,0],[]]}`}, []string{`{"a":[[2]]}`, `{"a":[{}]}`}},
		{`[*].b max 1`, []string{`[{"b":1}]`, `[]`}, []string{`[{"b":2}]`, `{"b":1}`}},
		{`**.s.t not_in ["url"]`, []string{`{"s":{"t":"x"}}`, `{"t":"url"}`, `[[{"s":"url"}]]`}, []string{`{"s":{"t":"url"}}`, `[[{"a":{"s":{"t":"url"}}}]]`, `{"s":{"s":{"t":"url"}}}`, `{"a":{"S":1}}`, `{"s":[{"t":"url"}]}`}},
	} {
		var s Set
		if err := s.Add(engi.RequestRule{Body: []string{c.condition}}); err != nil {
			t.Fatal(err, err.Remedy)
		}
		for breaks, bodies := range map[bool][]string{false: c.holds, true: c.breaks} {
			for _, body := range bodies {
				broken, err := s.evaluate([]byte(body))
				if err != nil || breaks != broken[0].is {
					t.Errorf("%s, body %s: %v, %v", c.condition, body, broken, err)
				}
			}
		}
	}
}

// TestConditionsOfManyRules checks that the result of one rule's condition does not
// depend on the conditions of other rules.
func TestConditionsOfManyRules(t *testing.T) {
	var s Set
	for _, body := range [][]string{{"a max 1", "b absent"}, {"a max 2", "**.c absent"}, {"b absent"}} {
		if err := s.Add(engi.RequestRule{Body: body}); err != nil {
			t.Fatal(err)
		}
	}
	for body, want := range map[string]string{`{"a":1}`: "0", `{"a":2}`: "1", `{"a":3}`: "2", `{"a":2,"x":{"c":1}}`: "2", `{"a":2,"b":1}`: "1", `{"a":3,"b":1}`: "-"} {
		j := Judging{Set: &s, Request: Request{Method: "POST", Path: "/"}, Body: func(int64) ([]byte, error) { return []byte(body), nil }}
		r, err := j.First([]int32{0, 1, 2})
		got := "-"
		if r != nil {
			got = fmt.Sprint(slices.Index(s.rules, r))
		}
		if err != nil || got != want || got == "-" && j.Missed() == "" {
			t.Errorf("%s matches %s: %v %q", body, got, err, j.Missed())
		}
	}
}

// TestBodiesTakeBoundedWork judges bodies that are made to cost more than their
// size by a thousand conditions: they are refused, or cost memory like others.
func TestBodiesTakeBoundedWork(t *testing.T) {
	var s Set
	for i := range 1000 {
		if err := s.Add(engi.RequestRule{Body: []string{fmt.Sprintf(`a[*].b not_in ["%d*x"]`, i), fmt.Sprintf("c.d.e max %d", i), fmt.Sprintf("**.long_key.f max %d", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	many := func(each string, n int) string { return strings.TrimSuffix(strings.Repeat(each+",", n), ",") }
	unique := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"%d":0,`, i)
		}
		return `{` + b.String() + `"z":0}`
	}
	for name, c := range map[string]struct{ body, err string }{
		"arrays in place of objects":  {`{"c":[` + many("[]", 100_000) + `]}`, ""},
		"objects in place of arrays":  {`{"x":[` + many(`{"a":{}}`, 50_000) + `]}`, ""},
		"keys in other letters":       {`[` + many(`{"longKey":0}`, 50_000) + `]`, ""},
		"values":                      {`{"a":[` + many(`{"b":"x"}`, 50_000) + `]}`, "too much work"},
		"one long value":              {`{"a":[{"b":"` + strings.Repeat("0", 1<<20) + `"}]}`, "too much work"},
		"too much at the end":         {`{"a":[` + many(`{"b":"x"}`, 2100) + `]}`, "too much work"},
		"a lot of members":            {unique(10_000), "too much work"},
		"a lot of members further in": {`{"y":[` + many(unique(9_000), 5) + `]}`, ""},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := s.evaluate([]byte(c.body))
		runtime.ReadMemStats(&after)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 40*uint64(len(c.body))+1<<20 {
			t.Errorf("%s: a body of %d bytes takes %d", name, len(c.body), used)
		}
	}
}

// FuzzPath checks that no server reads an accepted path differently: decoded
// again, cleaned, with other separators, or without parameters.
func FuzzPath(f *testing.F) {
	for _, p := range []string{"/v1/a", "/%61", "/a/..", "/%2e%2e/", "/a%2fb", "/a;b", "/%ff", "/a//b", "/%25", "/b%C3%BC", "/.a/", "/%e2%84%aa"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			return
		}
		r := &http.Request{Method: "GET", URL: u, RequestURI: target}
		q, err := Read(r)
		if err != nil {
			return
		}
		p := q.Path
		if again, err := url.PathUnescape(p); err != nil || again != p {
			t.Errorf("%q is %q, and decoded again %q", target, p, again)
		}
		if clean := path.Clean(p); clean != p && clean+"/" != p {
			t.Errorf("%q is %q, cleaned %q", target, p, clean)
		}
		if strings.ContainsAny(p, "\\;?#\x00\r\n") || strings.ToValidUTF8(p, "") != p || !strings.HasPrefix(p, "/") {
			t.Errorf("%q is %q", target, p)
		}
		if sent, err := url.PathUnescape(strings.SplitN(u.RequestURI(), "?", 2)[0]); err != nil || sent != p && u.Host == "" {
			t.Errorf("%q is judged as %q and sent as %q", target, p, sent)
		}
	})
}

// FuzzBody checks that servers find nothing forbidden in an accepted body, whether
// they read it like encoding/json, regardless of case, or into maps.
func FuzzBody(f *testing.F) {
	var s Set
	if err := s.Add(engi.RequestRule{Body: []string{"mcp_servers absent", `tools[*].type in ["custom"]`, "max_tokens max 10", `**.source.type not_in ["url"]`, `model in ["a*"]`}}); err != nil {
		f.Fatal(err)
	}
	for _, b := range []string{`{"tools":[{"type":"custom"}],"max_tokens":5,"model":"ab"}`, `{"Tools":[{"type":"x"}]}`, `{"a":{"source":{"type":"url"}}}`, `{"max_tokens":1e9}`, `{"mcp_servers":[]}`, `{"mcp\u005fservers":1}`, `{"tools":[],"tools":[{"type":"x"}]}`} {
		f.Add([]byte(b))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		broken, err := s.evaluate(body)
		if err != nil || slices.ContainsFunc(broken, func(b breach) bool { return b.is }) {
			return
		}
		var typed struct {
			MCP       any     `json:"mcp_servers"`
			MaxTokens float64 `json:"max_tokens"`
			Model     string
			Tools     []struct{ Type string }
		}
		if err := json.Unmarshal(body, &typed); err == nil {
			if typed.MCP != nil || typed.MaxTokens > 10 || typed.Model != "" && !strings.HasPrefix(typed.Model, "a") {
				t.Errorf("%q is accepted: %+v", body, typed)
			}
			for _, tool := range typed.Tools {
				if tool.Type != "" && tool.Type != "custom" {
					t.Errorf("%q is accepted: %+v", body, typed)
				}
			}
		}
		var loose any
		if err := json.Unmarshal(body, &loose); err != nil {
			t.Fatalf("%q is accepted: %v", body, err)
		}
		var walk func(v any)
		walk = func(v any) {
			switch v := v.(type) {
			case map[string]any:
				if source, ok := v["source"].(map[string]any); ok && source["type"] == "url" {
					t.Errorf("%q is accepted", body)
				}
				for _, v := range v {
					walk(v)
				}
			case []any:
				for _, v := range v {
					walk(v)
				}
			}
		}
		walk(loose)
	})
}

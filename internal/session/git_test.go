package session

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/engi-dev/engi/internal/engi"
)

// TestGitOpensNoMore checks that the policy of a session with a repository allows the
// paths of git's protocol and nothing else of the host.
func TestGitOpensNoMore(t *testing.T) {
	open := func(g engi.GitSpec, p engi.NetworkPolicy) engi.NetworkPolicy {
		t.Helper()
		checked, err := checkGit(g)
		if err != nil {
			t.Fatal(err)
		}
		if p, err = openGit(p, *checked); err != nil {
			t.Fatal(err)
		}
		return p
	}
	lines := func(rules []engi.RequestRule) (all []string) {
		for _, r := range rules {
			all = append(all, strings.TrimSpace(strings.Join(r.Methods, ",")+" "+r.Host+r.Path))
		}
		return all
	}
	restricted := engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"a.example"}}
	read := []string{"GET /o/r/info/refs", "POST /o/r/git-upload-pack", "GET /o/r.git/info/refs", "POST /o/r.git/git-upload-pack"}
	p := open(engi.GitSpec{URL: "https://git.example/o/r", Secret: "s"}, restricted)
	if g := p.Grants[0]; len(p.Grants) != 1 || len(p.Requests) != 0 || len(p.Allow) != 1 || g.As != engi.GrantBasic || g.Name != "git" || g.Hosts[0] != "git.example:443" || !slices.Equal(lines(g.Requests), read) {
		t.Errorf("%+v", p)
	}
	p = open(engi.GitSpec{URL: "https://git.example:8443/o/r.git/", Secret: "s", User: "bot", Push: &engi.GitPush{}}, restricted)
	if g := p.Grants[0]; g.Hosts[0] != "git.example:8443" || g.Name != "bot" || len(g.Requests) != 6 || !slices.Contains(lines(g.Requests), "POST /o/r/git-receive-pack") {
		t.Errorf("%+v", p)
	}
	p = open(engi.GitSpec{URL: "https://git.example/o/r.git", Secret: "s", Submodules: true}, restricted)
	if got := lines(p.Grants[0].Requests); !slices.Equal(got, []string{"GET /o/*/info/refs", "POST /o/*/git-upload-pack"}) {
		t.Errorf("with submodules: %q", got)
	}
	// Without a secret, rules allow the access; if the policy already allows more, rules
	// would restrict it.
	p = open(engi.GitSpec{URL: "https://git.example/o/r"}, engi.NetworkPolicy{})
	if p.Mode != engi.NetworkRestricted || len(p.Grants) != 0 || len(p.Requests) != 4 || p.Requests[0].Host != "git.example:443" {
		t.Errorf("%+v", p)
	}
	for _, p := range []engi.NetworkPolicy{{Mode: engi.NetworkOpen}, {Mode: engi.NetworkRestricted, Allow: []string{"git.example:443"}}} {
		if p := open(engi.GitSpec{URL: "https://git.example/o/r"}, p); len(p.Requests)+len(p.Grants) != 0 {
			t.Errorf("%+v", p)
		}
	}
	p = open(engi.GitSpec{URL: "http://git.lan/o/r", Secret: "s"}, engi.NetworkPolicy{Mode: engi.NetworkRestricted, Allow: []string{"git.lan:80"}})
	if g := p.Grants[0]; g.Hosts[0] != "http://git.lan:80" || len(p.Allow) != 1 {
		t.Errorf("%+v", p)
	}
	if _, err := openGit(engi.NetworkPolicy{Mode: engi.NetworkIsolated}, engi.GitSpec{URL: "https://git.example/o/r"}); !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" {
		t.Errorf("isolated: %v", err)
	}
}

func TestGitRefusals(t *testing.T) {
	for _, g := range []engi.GitSpec{
		{URL: "https://u:p@h.example/r"}, {URL: "https://u@h.example/r"}, {URL: "file:///etc"}, {URL: "ext::sh -c x"}, {URL: "https://h.example"}, {URL: "https://h.example/a/../b"},
		{URL: "https://h.example/a%2f..%2fb"}, {URL: "https://h.example/*"}, {URL: "https://h.example/r?x=y"}, {URL: "https://h.example/r#f"},
		{URL: "https://h.example/r", Ref: "--upload-pack=x"}, {URL: "https://h.example/r", Ref: "a..b"}, {URL: "https://h.example/r", Ref: "x/.git"}, {URL: "https://h.example/r", Ref: "a.lock"},
		{URL: "https://h.example/r", Dir: "/etc"}, {URL: "https://h.example/r", Dir: "../x"}, {URL: "https://h.example/r", Dir: "a/../../x"}, {URL: "https://h.example/r", Dir: "-x"},
		{URL: "https://h.example/r", Depth: -1}, {URL: "https://h.example/r", User: "u"},
		{URL: "https://h.example/r", Push: &engi.GitPush{Branch: "+x:refs/heads/y"}}, {URL: "https://h.example/r", Push: &engi.GitPush{Author: "Ann"}},
		{URL: "https://h.example/r", Push: &engi.GitPush{Author: "A\n <a@b>"}}, {URL: "https://h.example/r", Push: &engi.GitPush{Message: "\x00"}},
	} {
		if _, err := checkGit(g); !engi.Is(err, engi.Invalid) || engi.RemedyOf(err) == "" || strings.Contains(err.Error(), "u:p") {
			t.Errorf("%+v: %v", g, err)
		}
	}
	for _, ref := range []string{"main", "v1.2.3", "feature/a-b_c", "0123456789012345678901234567890123456789"} {
		if _, err := checkGit(engi.GitSpec{URL: "https://h.example/o/r.git", Ref: ref, Dir: "src/app"}); err != nil {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

func TestTemplateWithoutGit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		m, stop := start(t, w)
		defer stop()
		s := create(t, m, engi.SessionSpec{Owner: "ann", Git: &engi.GitSpec{URL: "https://git.example/o/r"}})
		_, _, err := m.Enter(t.Context(), "ann", string(s.ID))
		if !engi.Is(err, engi.Unsupported) || !strings.Contains(engi.RemedyOf(err), "base") {
			t.Errorf("%v, remedy %q", err, engi.RemedyOf(err))
		}
		if sandboxes, _, _, _ := w.count(); sandboxes != 0 {
			t.Errorf("%d sandboxes are left", sandboxes)
		}
		if _, err := m.Create(t.Context(), engi.SessionSpec{Persistence: engi.PersistNone, Git: &engi.GitSpec{URL: "https://git.example/o/r", Push: &engi.GitPush{OnRelease: true}}}); !engi.Is(err, engi.Invalid) {
			t.Errorf("nothing would keep what cannot be pushed: %v", err)
		}
	})
}

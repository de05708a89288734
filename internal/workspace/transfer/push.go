package transfer

import (
	"bufio"
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

const (
	maxUpdates = 256
	maxReport  = 1000 // bytes of a reason
	maxRef     = 900  // maximum bytes of a ref's name, so that a line about it fits a packet
)

// An Update is a client's request to change a branch.
type Update struct {
	Name string
	Old  string // commit of the branch that the client has seen; empty for none
	New  string // new commit; empty to remove the branch
}

// A Push is a client's request to change branches.
type Push struct {
	updates []Update
	report  bool // the client wants report-status
	bands   bool // the client wants side-band-64k
}

// ReadPush reads a client's request up to its end; the pack follows. It
// reports Invalid for a malformed request.
func ReadPush(r io.Reader) (*Push, error) {
	in := &packets{r: r}
	p := &Push{}
	shallow, listed := 0, false // listed: the list of updates has begun
	for {
		line, end, err := in.next()
		switch {
		case err == io.EOF:
			return nil, broken("it ends before the list of what is to change")
		case err != nil:
			return nil, err
		case end:
			return p, nil
		}
		if hash, ok := strings.CutPrefix(string(line), "shallow "); ok && !listed {
			// The client does not send the parents of shallow commits; they are looked up here.
			if shallow++; !repo.IsHash(hash) || shallow > maxHaves {
				return nil, broken("%.60q is shallow", hash)
			}
			continue
		}
		text, asked, first := strings.Cut(string(line), "\x00")
		if first && !listed {
			all := strings.Fields(asked)
			p.report, p.bands = slices.Contains(all, "report-status"), slices.Contains(all, "side-band-64k")
		}
		listed = true
		f := strings.SplitN(text, " ", 3)
		if len(f) < 3 || !repo.IsHash(f[0]) || !repo.IsHash(f[1]) || len(f[2]) > maxRef || !utf8.ValidString(f[2]) || strings.ContainsFunc(f[2], isControl) || len(p.updates) == maxUpdates {
			return nil, broken("it has the line %.60q", text)
		}
		for i := range 2 {
			if f[i] == noCommit {
				f[i] = ""
			}
		}
		if slices.ContainsFunc(p.updates, func(u Update) bool { return u.Name == f[2] }) {
			return nil, broken("%.60q is to change twice", f[2])
		}
		p.updates = append(p.updates, Update{f[2], f[0], f[1]})
	}
}

// Of returns the update of a branch; ok is false if there is none.
func (p *Push) Of(name string) (u Update, ok bool) {
	i := slices.IndexFunc(p.updates, func(u Update) bool { return u.Name == name })
	if i < 0 {
		return Update{}, false
	}
	return p.updates[i], true
}

// Report sends the client the result for each branch, which is the error returned by refused.
func (p *Push) Report(w io.Writer, refused func(u Update) error) error {
	if len(p.updates) == 0 { // the client has only asked whether it may push
		return nil
	}
	b := bufio.NewWriter(w)
	out := io.Writer(b)
	if p.bands {
		out = band{b, 1}
	}
	var report strings.Builder
	say := func(format string, a ...any) { _ = write(&report, format, a...) } // writing to a Builder never fails
	say("unpack ok\n")
	remedies := map[string]bool{}
	for _, u := range p.updates {
		err := refused(u)
		if err == nil {
			say("ok %s\n", u.Name)
			continue
		}
		why := err.Error()
		if engi.Is(err, engi.Internal) {
			why = "the server cannot record it"
		}
		say("ng %s %s\n", u.Name, clip.Line(why, maxReport))
		if r := engi.RemedyOf(err); r != "" {
			remedies[clip.Line(r, maxReport)] = true
		}
	}
	_ = flush(&report)
	if p.bands {
		for _, r := range slices.Sorted(maps.Keys(remedies)) {
			if _, err := (band{b, 2}).Write([]byte(r + "\n")); err != nil {
				return err
			}
		}
	}
	if p.report {
		if _, err := io.WriteString(out, report.String()); err != nil {
			return err
		}
	}
	if p.bands {
		if err := flush(b); err != nil {
			return err
		}
	}
	return b.Flush()
}

// Before returns a source of the objects of the pack and of another source.
func (p Pack) Before(source repo.Source) repo.Source {
	return func(ctx context.Context, hash string) (repo.Object, error) {
		if o, ok := p[hash]; ok {
			return o, nil
		}
		return source(ctx, hash)
	}
}

// An Added is the new history of a branch after a push.
type Added struct {
	Objects []repo.Object // objects that the repository does not have
	Commits int           // number of commits in Objects
	Message string        // message of the last commit
}

// Added returns the new history of a branch that moves from one commit to another; from is empty for
// a new branch. It checks all new objects, so that the repository stays complete: known returns
// the existing objects of a kind. It reports Invalid for errors that git's fsck reports, and for
// links and submodules, and Conflict unless from is an ancestor of to.
func (p Pack) Added(ctx context.Context, from, to string, known func(ctx context.Context, kind repo.Kind, hashes []string) (map[string]int64, error)) (a Added, err error) {
	reached := from == "" || from == to
	need := map[repo.Kind]map[string]bool{repo.Commit: {}, repo.Tree: {}, repo.Blob: {}}
	seen := map[string]bool{}
	type object struct {
		hash string
		kind repo.Kind
	}
	open := []object{{to, repo.Commit}}
	for len(open) > 0 {
		at := open[len(open)-1]
		open = open[:len(open)-1]
		if at.kind == repo.Commit && at.hash == from {
			reached = true
		}
		o, ok := p[at.hash]
		if !ok {
			if need[at.kind][at.hash] = true; len(need[at.kind]) > maxObjects {
				return a, engi.Errorf(engi.Exhausted, "the pack needs more than %d objects that it does not contain", maxObjects).WithRemedy("push fewer commits at a time")
			}
			continue
		}
		if o.Kind != at.kind {
			return a, refuse("%s is a %s and no %s", at.hash, o.Kind, at.kind)
		}
		if seen[at.hash] {
			continue
		}
		if seen[at.hash] = true; len(seen)%1000 == 0 && ctx.Err() != nil {
			return a, engi.Errorf(engi.Expired, "%v", context.Cause(ctx))
		}
		a.Objects = append(a.Objects, o)
		if o.Kind == repo.Blob {
			continue
		}
		content, err := o.Content()
		if err != nil {
			return a, err
		}
		if o.Kind == repo.Commit {
			c, err := repo.ParseCommit(content)
			if err != nil {
				return a, refuse("the commit %s: %v", o.Hash, err)
			}
			if a.Commits++; o.Hash == to {
				a.Message = c.Message
			}
			open = append(open, object{c.Tree, repo.Tree})
			for _, parent := range c.Parents {
				open = append(open, object{parent, repo.Commit})
			}
			continue
		}
		entries, err := repo.Entries(content)
		if err != nil {
			return a, refuse("the tree %s: %v", o.Hash, err)
		}
		for _, e := range entries {
			if e.Link() {
				return a, repo.NoFile(e.Name)
			}
			open = append(open, object{e.Hash, e.Kind()})
		}
	}
	for kind, hashes := range need {
		list := slices.Sorted(maps.Keys(hashes))
		has, err := known(ctx, kind, list)
		if err != nil {
			return a, err
		}
		for _, h := range list {
			if _, ok := has[h]; !ok {
				return a, refuse("the %s %s is not there", kind, h)
			}
		}
	}
	if !reached {
		return a, engi.Errorf(engi.Conflict, "its history does not have the last revision").WithRemedy("pull first: recorded revisions cannot be replaced")
	}
	return a, nil
}

func refuse(format string, a ...any) error {
	return engi.Errorf(engi.Invalid, format, a...).WithRemedy("run 'git fsck', correct the problems, and push again")
}

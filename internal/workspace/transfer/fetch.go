package transfer

import (
	"bufio"
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/repo"
)

const (
	maxWants      = 256
	maxHaves      = 32_000  // maximum number of commits in one request, including repeated ones
	maxRequest    = 4 << 20 // maximum bytes of a request
	maxObjects    = 1 << 19 // maximum number of objects of one pack
	infiniteDepth = 1<<31 - 1
)

// noCommit is the hash that stands for no commit.
var noCommit = strings.Repeat("0", 40)

// A Ref is a name of a commit.
type Ref struct {
	Name string // for example refs/heads/main
	Hash string
}

// capabilities are the capabilities offered to clients.
const (
	capabilities     = "multi_ack_detailed no-done side-band-64k shallow no-progress object-format=sha1 agent=engi"
	pushCapabilities = "report-status side-band-64k ofs-delta no-thin object-format=sha1 agent=engi"
)

// Advertise writes the references that a client may fetch. The first one is HEAD; without
// any, the repository is empty.
func Advertise(w io.Writer, refs []Ref) error {
	asked := capabilities
	sorted := slices.SortedFunc(slices.Values(refs), func(a, b Ref) int { return strings.Compare(a.Name, b.Name) })
	if len(refs) > 0 {
		asked += " symref=HEAD:" + refs[0].Name
		sorted = slices.Insert(sorted, 0, Ref{"HEAD", refs[0].Hash})
	}
	return advertise(w, "git-upload-pack", asked, sorted)
}

// AdvertisePush writes the references that a client may change.
func AdvertisePush(w io.Writer, refs []Ref) error {
	return advertise(w, "git-receive-pack", pushCapabilities, refs)
}

func advertise(w io.Writer, service, capabilities string, refs []Ref) error {
	b := bufio.NewWriter(w)
	if err := write(b, "# service=%s\n", service); err != nil {
		return err
	}
	if err := flush(b); err != nil {
		return err
	}
	if len(refs) == 0 {
		refs = []Ref{{"capabilities^{}", noCommit}}
	}
	for i, r := range refs {
		more := ""
		if i == 0 {
			more = "\x00" + capabilities
		}
		if err := write(b, "%s %s%s\n", r.Hash, r.Name, more); err != nil {
			return err
		}
	}
	if err := flush(b); err != nil {
		return err
	}
	return b.Flush()
}

// A Fetch is a client's request to fetch.
type Fetch struct {
	wants    []string
	haves    []string
	shallow  map[string]bool // commits whose parents the client does not have
	depth    int             // 0 means the whole history
	detailed bool            // the client wants multi_ack_detailed
	noDone   bool
	bands    bool
	ended    bool // the list of the client's commits has ended
	done     bool // the client wants the pack now
}

// Read reads a client's request. It reports Invalid for a malformed request, and
// Unsupported for features that [Advertise] does not offer.
func Read(r io.Reader) (*Fetch, error) {
	limited := &io.LimitedReader{R: r, N: maxRequest}
	in := &packets{r: limited}
	q := &Fetch{shallow: map[string]bool{}}
	listed := false // the list of wanted commits has ended
	for {
		line, end, err := in.next()
		switch {
		case limited.N == 0:
			return nil, engi.Errorf(engi.Exhausted, "the request has more than %d bytes", maxRequest).WithRemedy("clone anew")
		case err == io.EOF && listed:
			return q, nil
		case err == io.EOF:
			return nil, broken("it ends before the list of what is wanted")
		case err != nil:
			return nil, err
		case end && !listed:
			if listed = true; len(q.wants) == 0 {
				return nil, broken("nothing is wanted")
			}
			continue
		case end: // a stateless client sends one list at a time
			q.ended = true
			return q, nil
		}
		word, rest, _ := strings.Cut(string(line), " ")
		switch {
		case word == "want" && !listed:
			hash, asked, _ := strings.Cut(rest, " ")
			if len(q.wants) == 0 {
				q.ask(asked)
			}
			if !repo.IsHash(hash) || len(q.wants) == maxWants {
				return nil, broken("%.60q is wanted", hash)
			}
			q.wants = append(q.wants, hash)
		case word == "shallow" && !listed:
			if !repo.IsHash(rest) || len(q.shallow) == maxHaves {
				return nil, broken("%.60q is shallow", rest)
			}
			q.shallow[rest] = true
		case word == "deepen" && !listed:
			if q.depth, err = strconv.Atoi(rest); err != nil || q.depth < 0 || q.depth > infiniteDepth {
				return nil, broken("the depth is %.20q", rest)
			}
		case word == "have" && listed:
			if !repo.IsHash(rest) || len(q.haves) == maxHaves {
				return nil, broken("%.60q is there", rest)
			}
			q.haves = append(q.haves, rest)
		case word == "done" && listed:
			q.done = true
			return q, nil
		case !listed && (word == "deepen-since" || word == "deepen-not" || word == "deepen-relative" || word == "filter"):
			return nil, engi.Errorf(engi.Unsupported, "this server does not know %s", word).WithRemedy("use --depth, or clone the whole")
		default:
			return nil, broken("it has the line %.60q", line)
		}
	}
}

// ask records the requested capabilities.
func (q *Fetch) ask(list string) {
	all := strings.Fields(list)
	q.detailed = slices.Contains(all, "multi_ack_detailed")
	q.noDone = q.detailed && slices.Contains(all, "no-done")
	q.bands = slices.Contains(all, "side-band-64k")
}

// Answer sends the objects that a client is missing. The client may want any commit of source, since the
// references may have moved on in the meantime. Errors of the request are reported
// before anything is written: NotFound, or Invalid for an object that is not a commit. Later errors
// are also sent to the client.
func (q *Fetch) Answer(ctx context.Context, w io.Writer, source repo.Source) error {
	g := &graph{source: source, commits: map[string]*repo.CommitInfo{}}
	known := map[string]bool{}
	for _, h := range q.haves {
		if _, again := known[h]; again {
			continue
		}
		c, err := g.commit(ctx, h)
		if err != nil && !engi.Is(err, engi.NotFound, engi.Invalid) {
			return err
		}
		known[h] = c != nil
	}
	m, err := g.missing(ctx, q, known)
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(w, 64<<10)
	if err := q.answer(ctx, b, g, known, m); err != nil {
		return err
	}
	return b.Flush()
}

func (q *Fetch) answer(ctx context.Context, b *bufio.Writer, g *graph, known map[string]bool, m missing) error {
	if q.depth > 0 {
		for _, h := range m.shallow {
			if err := write(b, "shallow %s", h); err != nil {
				return err
			}
		}
		for _, h := range m.unshallow {
			if err := write(b, "unshallow %s", h); err != nil {
				return err
			}
		}
		if err := flush(b); err != nil {
			return err
		}
	}
	ready, err := q.acknowledge(b, known)
	if err != nil || !ready {
		return err
	}
	out := io.Writer(b)
	if q.bands {
		out = band{b, 1}
	}
	list, err := g.objects(ctx, m)
	if err == nil {
		err = writePack(ctx, out, g.source, list)
	}
	switch {
	case !q.bands:
		return err
	case err != nil: // the status has been sent
		why := "the server cannot read an object; try again"
		if engi.Is(err, engi.Exhausted) {
			why = err.Error() + "; " + engi.RemedyOf(err)
		}
		_, _ = band{b, 3}.Write([]byte(why + "\n")) // Flush reports the error
		return errors.Join(err, b.Flush())
	}
	return flush(b)
}

// acknowledge sends the commits that both sides have, and reports whether the pack follows.
func (q *Fetch) acknowledge(w io.Writer, known map[string]bool) (ready bool, err error) {
	last := "" // last common commit
	say := func(format string, a ...any) {
		if err == nil {
			err = write(w, format, a...)
		}
	}
	for _, h := range q.haves {
		switch {
		case !known[h]:
			continue
		case q.detailed:
			say("ACK %s common\n", h)
		case last == "":
			say("ACK %s\n", h)
		}
		last = h
	}
	switch {
	case q.done && last == "":
		say("NAK\n")
	case q.done && q.detailed:
		say("ACK %s\n", last)
	case q.done || !q.ended:
	case last == "" || !q.detailed:
		if last == "" {
			say("NAK\n")
		}
	default:
		say("ACK %s ready\n", last)
		say("NAK\n")
		if q.noDone {
			say("ACK %s\n", last)
		}
		return q.noDone, err
	}
	return q.done, err
}

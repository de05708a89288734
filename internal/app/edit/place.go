package edit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
)

// A fit is the quality of a match, best first.
type fit int

const (
	same     fit = iota // equal in every byte
	trailing            // equal except for white space at the ends of lines
	shifted             // equal except for the indentation, which differs equally in all lines
	spaced              // equal except for white space
	alike               // similar, with differences that a person would overlook
)

func (f fit) String() string {
	return [...]string{"nothing", "white space at the ends of lines", "the indentation", "white space", "details"}[f]
}

// A hit is a place whose lines equal those of a search except for white space.
type hit struct {
	at  int
	fit fit
}

type seeker struct {
	hits []hit
	n    int
}

// seek finds all places whose lines equal those of search except for white space, in time
// linear in both.
func (t *text) seek(search []string) seeker {
	s := seeker{n: len(search)}
	want := make([]int32, len(search))
	for i, l := range search {
		id, ok := t.keys[squeeze(l)]
		if !ok {
			return s
		}
		want[i] = id
	}
	// This is the failure function of Knuth, Morris and Pratt.
	fail := make([]int, len(want))
	for i, k := 1, 0; i < len(want); i++ {
		for k > 0 && want[i] != want[k] {
			k = fail[k-1]
		}
		if want[i] == want[k] {
			k++
		}
		fail[i] = k
	}
	for j, k := 0, 0; j < len(t.lines); j++ {
		for k > 0 && t.lines[j].key != want[k] {
			k = fail[k-1]
		}
		if t.lines[j].key == want[k] {
			k++
		}
		if k == len(want) {
			at := j - k + 1
			s.hits = append(s.hits, hit{at, t.fit(at, search)})
			k = fail[k-1]
		}
	}
	return s
}

func (s seeker) of(f fit) (at []int) {
	for _, h := range s.hits {
		if h.fit == f {
			at = append(at, h.at)
		}
	}
	return at
}

// straight returns the alignment of a place without gaps.
func (s seeker) straight(at int) []int {
	to := make([]int, s.n)
	for i := range to {
		to[i] = at + i
	}
	return to
}

// fit returns the quality of the match at index at, which matches except for white
// space.
func (t *text) fit(at int, search []string) fit {
	f := same
	var from, to string // indentation of the first line that is not blank
	first := true
	for i, want := range search {
		got := t.lines[at+i].text
		if got == want && (first || from == to) {
			if first && strings.TrimSpace(want) != "" {
				from, to, first = indent(want), indent(want), false
			}
			continue
		}
		if t.budget -= len(got) + 32; t.budget < 0 {
			return spaced
		}
		got, want = strings.TrimRight(got, " \t"), strings.TrimRight(want, " \t")
		if got == "" && want == "" {
			f = max(f, trailing)
			continue
		}
		if first {
			from, to, first = indent(want), indent(got), false
		}
		switch {
		case got == want && from == to:
			f = max(f, trailing)
		case shift(want, from, to) == got:
			f = max(f, shifted)
		default:
			return spaced
		}
	}
	return f
}

func indent(s string) string { return s[:len(s)-len(strings.TrimLeft(s, " \t"))] }

// shift replaces the indentation from of a line by to. A line with a smaller indentation loses
// or gets as much as possible.
func shift(s, from, to string) string {
	if rest, ok := strings.CutPrefix(s, from); ok {
		return to + rest
	}
	own := indent(s)
	if strings.HasPrefix(from, own) && len(from)-len(own) <= len(to) {
		return to[:len(to)-(len(from)-len(own))] + s[len(own):]
	}
	return s
}

// place applies a block at the place of its search. Line i of the search is line
// to[i] of the text, or no line if that is negative; the lines between are kept, and so
// are the lines that the block only quotes.
func (t *text) place(search, with []string, to []int, class fit) {
	in := indents{}
	if class != same {
		for i, j := range to {
			if j >= 0 {
				in.learn(search[i], t.lines[j].text)
			}
		}
	}
	first, last := -1, -1
	for _, j := range to {
		if j >= 0 {
			if first < 0 {
				first = j
			}
			last = j
		}
	}
	var out []line
	next := first // next line of the text
	for _, op := range changes(search, with) {
		if op.search < 0 {
			l := with[op.with]
			if class != same {
				l = in.apply(l)
			}
			out = append(out, t.line(l, t.crlf))
			continue
		}
		j := to[op.search]
		if j < 0 {
			continue // a quoted line that the text does not have
		}
		out = append(out, t.lines[next:j]...)
		if op.with >= 0 {
			out = append(out, t.lines[j])
		}
		next = j + 1
	}
	t.replace(first, last+1-first, out)
}

// indents maps the indentation of a block to the indentation of the text.
type indents struct {
	known    map[string]string
	from, to string // indentation of the first line in the block and in the text
	any      bool
}

func (in *indents) learn(quoted, actual string) {
	if strings.TrimSpace(quoted) == "" || strings.TrimSpace(actual) == "" {
		return
	}
	from, to := indent(quoted), indent(actual)
	if !in.any {
		in.known, in.from, in.to, in.any = map[string]string{}, from, to, true
	}
	if _, ok := in.known[from]; !ok {
		in.known[from] = to
	}
}

func (in *indents) apply(l string) string {
	if !in.any || strings.TrimSpace(l) == "" {
		return l
	}
	own := indent(l)
	if to, ok := in.known[own]; ok {
		return to + l[len(own):]
	}
	// The deepest known indentation that is a prefix of this one is the best guide.
	from, to := in.from, in.to
	best := -1
	for k, v := range in.known {
		if strings.HasPrefix(own, k) && len(k) > best {
			from, to, best = k, v, len(k)
		}
	}
	return shift(l, from, to)
}

// A change keeps a line of a search that the replacement also has, deletes
// a line of the search, or adds a line of the replacement.
type change struct{ search, with int } // line indexes; -1 for none

// changes returns the line changes that turn search into with.
func changes(search, with []string) []change {
	var out []change
	head := 0
	for head < len(search) && head < len(with) && search[head] == with[head] {
		out = append(out, change{head, head})
		head++
	}
	tail := 0
	for tail < len(search)-head && tail < len(with)-head && search[len(search)-1-tail] == with[len(with)-1-tail] {
		tail++
	}
	a, b := search[head:len(search)-tail], with[head:len(with)-tail]
	for _, c := range common(a, b) {
		if c.search >= 0 {
			c.search += head
		}
		if c.with >= 0 {
			c.with += head
		}
		out = append(out, c)
	}
	for i := tail; i > 0; i-- {
		out = append(out, change{len(search) - i, len(with) - i})
	}
	return out
}

// common computes the middle part of changes by a longest common subsequence. Parts that
// are too long are replaced as a whole.
func common(a, b []string) []change {
	var out []change
	i, j := 0, 0
	if n := len(b) + 1; len(a)*n <= 1<<20 {
		length := make([]int32, (len(a)+1)*n) // length of the subsequence from i and j on
		for i := len(a) - 1; i >= 0; i-- {
			for j := len(b) - 1; j >= 0; j-- {
				if a[i] == b[j] {
					length[i*n+j] = length[(i+1)*n+j+1] + 1
				} else {
					length[i*n+j] = max(length[(i+1)*n+j], length[i*n+j+1])
				}
			}
		}
		for i < len(a) && j < len(b) {
			switch {
			case a[i] == b[j]:
				out = append(out, change{i, j})
				i, j = i+1, j+1
			case length[(i+1)*n+j] >= length[i*n+j+1]:
				out = append(out, change{i, -1})
				i++
			default:
				out = append(out, change{-1, j})
				j++
			}
		}
	}
	for ; i < len(a); i++ {
		out = append(out, change{i, -1})
	}
	for ; j < len(b); j++ {
		out = append(out, change{-1, j})
	}
	return out
}

const (
	enough     = 0.75 // share of a long search that a place must match; short searches need more
	lineEnough = 0.5  // share of a line
	margin     = 0.04 // lead that the best place must have over others
	maxTries   = 48   // maximum number of places to compare
	maxFuzzy   = 1000 // maximum lines of a search; a longer one must match in every line except for white space
)

// A candidate is a place that matches partly.
type candidate struct {
	to    []int
	at    int // index of the first line
	end   int // index after the last line
	score float64
}

// fuzzy applies a block where it matches best.
func (t *text) fuzzy(search, with []string, hint int) *misfit {
	if len(search) > maxFuzzy {
		return t.missing(with, "it is not in the file as it is quoted, and too long to look for what is like it")
	}
	var found []candidate
	for _, at := range t.anchors(search, hint) {
		if c := t.align(search, at); c.score > 0 && !slices.ContainsFunc(found, func(f candidate) bool { return f.at == c.at && f.end == c.end }) {
			found = append(found, c)
		}
	}
	if t.budget <= 0 {
		return &misfit{"the file has too many places that are like it", "quote fewer lines, exactly as they are, or write the whole file"}
	}
	slices.SortStableFunc(found, func(a, b candidate) int {
		switch {
		case a.score > b.score:
			return -1
		case a.score < b.score:
			return 1
		}
		return a.at - b.at
	})
	if len(found) == 0 {
		return t.missing(with, "nothing in the file is like it")
	}
	best := found[0]
	if best.score < enough+0.15/float64(len(search)) {
		return t.missing(with, fmt.Sprintf("it is not in the file; closest is line %d, %.0f %% alike: %q", best.at+1, 100*best.score, clip.Text(strings.TrimSpace(t.lines[best.at].text), 80)))
	}
	for _, c := range found[1:] {
		if c.score < best.score-margin {
			break
		}
		if c.at < best.end && best.at < c.end {
			continue
		}
		d, e := abs(c.at-hint), abs(best.at-hint)
		if hint < 0 || d == e {
			return ambiguous(min(best.at, c.at), max(best.at, c.at), 2, alike)
		}
		if d < e {
			best = c
		}
	}
	for _, c := range changes(search, with) {
		if c.search >= 0 && c.with < 0 && best.to[c.search] < 0 && strings.TrimSpace(search[c.search]) != "" {
			return t.missing(with, fmt.Sprintf("a line that it replaces is not at line %d, where the rest is: %q", best.at+1, clip.Text(strings.TrimSpace(search[c.search]), 80)))
		}
	}
	t.place(search, with, best.to, alike)
	return nil
}

// missing returns a misfit, which says if the text already has the replacement.
func (t *text) missing(with []string, why string) *misfit {
	if strings.TrimSpace(strings.Join(with, "")) != "" {
		if s := t.seek(with); len(s.hits) > 0 {
			return &misfit{fmt.Sprintf("%s, but what it puts there is, at line %d", why, s.hits[0].at+1), "leave this change out"}
		}
	}
	return &misfit{why, "read the file again and quote its lines as they are"}
}

// anchors returns the lines where a search could begin: those with a line of the search that is rare in
// the text, and those with a line similar to its longest one.
func (t *text) anchors(search []string, hint int) []int {
	places := map[int32][]int{}
	for _, l := range search {
		if k, ok := t.keys[squeeze(l)]; ok && telling(l) {
			places[k] = nil
		}
	}
	for j, l := range t.lines {
		if at, ok := places[l.key]; ok && len(at) <= maxTries {
			places[l.key] = append(at, j)
		}
	}
	votes := map[int]int{}
	longest := -1
	for i, l := range search {
		if !telling(l) {
			continue
		}
		if longest < 0 || len(l) > len(search[longest]) {
			longest = i
		}
		if k, ok := t.keys[squeeze(l)]; ok && len(places[k]) <= maxTries {
			for _, j := range places[k] {
				votes[j-i] += maxTries / len(places[k])
			}
		}
	}
	if longest >= 0 {
		type near struct {
			at  int
			sim float64
		}
		var nears []near
		for j := range t.lines {
			if s := t.similar(search[longest], t.lines[j].text); s >= lineEnough {
				nears = append(nears, near{j - longest, s})
			}
		}
		slices.SortStableFunc(nears, func(a, b near) int { return int(1e6 * (b.sim - a.sim)) })
		for _, n := range nears[:min(len(nears), maxTries/2)] {
			votes[n.at]++
		}
	}
	if hint >= 0 {
		votes[hint]++
	}
	starts := make([]int, 0, len(votes))
	for at := range votes {
		starts = append(starts, at)
	}
	slices.SortFunc(starts, func(a, b int) int {
		if votes[a] != votes[b] {
			return votes[b] - votes[a]
		}
		return a - b
	})
	return starts[:min(len(starts), maxTries)]
}

// telling reports whether a line identifies its place; brackets alone do not.
func telling(l string) bool { return letters(l) >= 4 }

func letters(l string) (n int) {
	for i := range len(l) {
		if word(l[i]) {
			n++
		}
	}
	return n
}

func weight(l string) float64 { return 0.1 + float64(min(letters(l), 30))/10 }

// align finds the best alignment of the lines of a search with the lines of the text around
// at, in order, with few lines skipped on either side.
func (t *text) align(search []string, at int) candidate {
	slack := 2 + min(len(search)/4, 6)
	from, to := max(at-slack, 0), min(at+len(search)+slack, len(t.lines))
	n := to - from
	if n <= 0 {
		return candidate{}
	}
	// Line i is compared with lines i-2*slack to i+2*slack of the window only.
	score := make([][]float64, len(search)+1)
	step := make([][]byte, len(search)+1) // 1: match, 2: search line skipped, 3: text line skipped
	total := 0.0
	for i := range score {
		score[i], step[i] = make([]float64, n+1), make([]byte, n+1)
		if t.budget -= n; t.budget < 0 {
			return candidate{}
		}
	}
	for i, l := range search {
		w := weight(l)
		total += w
		for j := range n + 1 {
			score[i+1][j], step[i+1][j] = score[i][j], 2
			if j == 0 {
				continue
			}
			got := t.lines[from+j-1].text
			if s := score[i+1][j-1] - 0.2*weight(got); s > score[i+1][j] {
				score[i+1][j], step[i+1][j] = s, 3
			}
			if d := j - 1 - i; d < -2*slack || d > 2*slack {
				continue
			}
			if sim := t.similar(l, got); sim >= lineEnough {
				if s := score[i][j-1] + w*sim; s >= score[i+1][j] {
					score[i+1][j], step[i+1][j] = s, 1
				}
			}
		}
	}
	end := 0
	for j := range n + 1 {
		if score[len(search)][j] > score[len(search)][end] {
			end = j
		}
	}
	c := candidate{to: make([]int, len(search)), at: -1, score: score[len(search)][end] / total}
	for i, j := len(search), end; i > 0; {
		switch step[i][j] {
		case 1:
			c.to[i-1] = from + j - 1
			if c.at < 0 {
				c.end = from + j
			}
			c.at = from + j - 1
			i, j = i-1, j-1
		case 3:
			j--
		default:
			c.to[i-1] = -1
			i--
		}
	}
	if c.at < 0 {
		return candidate{}
	}
	return c
}

// similar returns the share of two lines that is equal at their beginnings and
// ends, ignoring white space, kinds of quotes and a final semicolon or comma.
func (t *text) similar(a, b string) float64 {
	t.budget -= min(len(a), len(b)) + 16
	if t.budget < 0 {
		return 0
	}
	a, b = plain(a), plain(b)
	if a == b {
		return 1
	}
	short, long := min(len(a), len(b)), max(len(a), len(b))
	if float64(short) < lineEnough*float64(long) {
		return 0
	}
	p, s := 0, 0
	for p < short && a[p] == b[p] {
		p++
	}
	for s < short-p && a[len(a)-1-s] == b[len(b)-1-s] {
		s++
	}
	return float64(p+s) / float64(long) * 0.99
}

var quotes = strings.NewReplacer(`"`, "'", "`", "'")

func plain(s string) string {
	return strings.TrimRight(quotes.Replace(squeeze(s)), ";,")
}

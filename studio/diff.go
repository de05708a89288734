package studio

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/engi-dev/engi"
)

func modeOf(mode uint32) fs.FileMode { return fs.FileMode(mode).Perm() }

const (
	context3  = 3         // lines around a change
	diffWork  = 4_000_000 // steps until the rest of two files counts as changed
	noNewline = "\\ No newline at end of file\n"
)

// writeDiff writes the change of a file as git does.
func writeDiff(b *strings.Builder, c engi.AppChange, old, now string, oldMode, nowMode uint32) {
	fmt.Fprintf(b, "diff --git a/%s b/%s\n", c.Path, c.Path)
	from, to := "a/"+c.Path, "b/"+c.Path
	switch {
	case c.Op == engi.FileCreated:
		fmt.Fprintf(b, "new file mode 100%o\n", nowMode)
		from = "/dev/null"
	case c.Op == engi.FileRemoved:
		fmt.Fprintf(b, "deleted file mode 100%o\n", oldMode)
		to = "/dev/null"
	case oldMode != nowMode:
		fmt.Fprintf(b, "old mode 100%o\nnew mode 100%o\n", oldMode, nowMode)
	}
	if old == now {
		return
	}
	if strings.ContainsRune(old, 0) || strings.ContainsRune(now, 0) {
		fmt.Fprintf(b, "Binary files %s and %s differ\n", from, to)
		return
	}
	fmt.Fprintf(b, "--- %s\n+++ %s\n", from, to)
	x, y := splitLines(old), splitLines(now)
	script := difference(x, y)
	for begin := 0; begin < len(script); {
		// A hunk goes on while the next change is near.
		end := begin
		for end+1 < len(script) && script[end+1].x-script[end].xEnd <= 2*context3 {
			end++
		}
		x0, y0 := max(script[begin].x-context3, 0), max(script[begin].y-context3, 0)
		lead := min(script[begin].x-x0, script[begin].y-y0)
		x0, y0 = script[begin].x-lead, script[begin].y-lead
		tail := min(context3, len(x)-script[end].xEnd)
		fmt.Fprintf(b, "@@ -%s +%s @@\n", span(x0, script[end].xEnd+tail), span(y0, script[end].yEnd+tail))
		at := x0
		for _, ch := range script[begin : end+1] {
			writeLines(b, " ", x[at:ch.x])
			writeLines(b, "-", x[ch.x:ch.xEnd])
			writeLines(b, "+", y[ch.y:ch.yEnd])
			at = ch.xEnd
		}
		writeLines(b, " ", x[at:at+tail])
		begin = end + 1
	}
}

// span writes lines from (counted from 0) to before to, as unified diffs do.
func span(from, to int) string {
	switch n := to - from; n {
	case 0:
		return fmt.Sprintf("%d,0", from)
	case 1:
		return fmt.Sprint(from + 1)
	default:
		return fmt.Sprintf("%d,%d", from+1, n)
	}
}

func writeLines(b *strings.Builder, mark string, lines []string) {
	for _, l := range lines {
		b.WriteString(mark)
		b.WriteString(l)
		if !strings.HasSuffix(l, "\n") {
			b.WriteString("\n" + noNewline)
		}
	}
}

// splitLines returns the lines of a text with their ends.
func splitLines(text string) []string {
	lines := strings.SplitAfter(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// A change says that lines x to xEnd of one text became y to yEnd of another.
type change struct{ x, xEnd, y, yEnd int }

// difference returns the changes from x to y in order. They are the fewest, unless that
// would take too long: then what is between the common beginning and the common end of
// a part counts as changed.
func difference(x, y []string) (all []change) {
	ids := map[string]int{}
	number := func(lines []string) []int {
		out := make([]int, len(lines))
		for i, l := range lines {
			id, ok := ids[l]
			if !ok {
				id = len(ids)
				ids[l] = id
			}
			out[i] = id
		}
		return out
	}
	a, b := number(x), number(y)
	work := diffWork
	var split func(x0, x1, y0, y1 int)
	add := func(c change) {
		if n := len(all); n > 0 && all[n-1].xEnd == c.x && all[n-1].yEnd == c.y {
			all[n-1].xEnd, all[n-1].yEnd = c.xEnd, c.yEnd
			return
		}
		all = append(all, c)
	}
	split = func(x0, x1, y0, y1 int) {
		for x0 < x1 && y0 < y1 && a[x0] == b[y0] {
			x0, y0 = x0+1, y0+1
		}
		for x0 < x1 && y0 < y1 && a[x1-1] == b[y1-1] {
			x1, y1 = x1-1, y1-1
		}
		if x0 == x1 && y0 == y1 {
			return
		}
		if x0 == x1 || y0 == y1 {
			add(change{x0, x1, y0, y1})
			return
		}
		mx, my, ok := middle(a[x0:x1], b[y0:y1], &work)
		if !ok || mx == 0 && my == 0 || mx == x1-x0 && my == y1-y0 {
			add(change{x0, x1, y0, y1})
			return
		}
		split(x0, x0+mx, y0, y0+my)
		split(x0+mx, x1, y0+my, y1)
	}
	split(0, len(a), 0, len(b))
	return all
}

// middle returns a point of a shortest way from a to b, about half way (E. Myers, "An
// O(ND) difference algorithm and its variations", 1986, section 4b). ok is false if work
// has run out.
func middle(a, b []int, work *int) (x, y int, ok bool) {
	n, m := len(a), len(b)
	most := (n + m + 1) / 2
	size := 2*most + 2
	forward, backward := make([]int, size), make([]int, size)
	*work -= size
	delta := n - m
	odd := delta%2 != 0
	at := func(k int) int { return ((k % size) + size) % size }
	for d := 0; d <= most; d++ {
		if *work -= d + 1; *work < 0 {
			return 0, 0, false
		}
		for k := -d; k <= d; k += 2 {
			var x int
			if k == -d || k != d && forward[at(k-1)] < forward[at(k+1)] {
				x = forward[at(k+1)]
			} else {
				x = forward[at(k-1)] + 1
			}
			y := x - k
			for x < n && y < m && x >= 0 && y >= 0 && a[x] == b[y] {
				x, y = x+1, y+1
				*work--
			}
			forward[at(k)] = x
			if back := delta - k; odd && back >= -(d-1) && back <= d-1 && x+backward[at(back)] >= n {
				return x, y, x <= n && y <= m && y >= 0
			}
		}
		for k := -d; k <= d; k += 2 {
			var x int
			if k == -d || k != d && backward[at(k-1)] < backward[at(k+1)] {
				x = backward[at(k+1)]
			} else {
				x = backward[at(k-1)] + 1
			}
			y := x - k
			for x < n && y < m && x >= 0 && y >= 0 && a[n-1-x] == b[m-1-y] {
				x, y = x+1, y+1
				*work--
			}
			backward[at(k)] = x
			if front := delta - k; !odd && front >= -d && front <= d && x+forward[at(front)] >= n {
				return n - x, m - y, n-x >= 0 && m-y >= 0 && y >= 0
			}
		}
	}
	return 0, 0, false
}

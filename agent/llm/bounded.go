package llm

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/engi-dev/engi"
)

// maxWeight bounds the places of a schema that one value may be held against,
// all references written out.
const maxWeight = 20_000

// bounded reports Invalid for a schema that checking would not come to an end
// with, or not soon: one that refers to itself, or that grows beyond all bounds
// when its references are written out. Only references to places within the
// schema are understood.
func bounded(root any) error {
	w := weigher{root: root, known: map[string]int{}}
	n, err := w.weigh(root, 0)
	if err == nil && n > maxWeight {
		err = engi.Errorf(engi.Invalid, "the schema has more than %d parts, references written out", maxWeight)
	}
	return err
}

// A weigher counts the parts of a schema. Every object and list is taken for a
// schema: counting too much does no harm.
type weigher struct {
	root  any
	known map[string]int // weight by reference; open if it is being weighed
}

const (
	open     = -1
	maxDepth = 200
)

func (w *weigher) weigh(node any, depth int) (int, error) {
	if depth > maxDepth {
		return 0, engi.Errorf(engi.Invalid, "the schema is more than %d levels deep", maxDepth)
	}
	total := 1
	add := func(child any) error {
		n, err := w.weigh(child, depth+1)
		total = min(total+n, maxWeight+1)
		return err
	}
	switch node := node.(type) {
	case []any:
		for _, child := range node {
			if err := add(child); err != nil {
				return 0, err
			}
		}
	case map[string]any:
		for key, child := range node {
			ref, isText := child.(string)
			switch {
			case isText && (key == "$dynamicRef" || key == "$recursiveRef" || key == "$id" && depth > 0):
				return 0, engi.Errorf(engi.Invalid, "the schema uses %s, which is not supported", key)
			case isText && key == "$ref":
				n, err := w.follow(ref, depth)
				if err != nil {
					return 0, err
				}
				total = min(total+n, maxWeight+1)
			default:
				if err := add(child); err != nil {
					return 0, err
				}
			}
		}
	}
	return total, nil
}

// follow weighs what a reference refers to.
func (w *weigher) follow(ref string, depth int) (int, error) {
	switch n, ok := w.known[ref]; {
	case ok && n == open:
		return 0, engi.Errorf(engi.Invalid, "the schema refers to itself by %.80q, which is not supported", ref)
	case ok:
		return n, nil
	}
	node, ok := pointed(w.root, ref)
	if !ok {
		return 0, engi.Errorf(engi.Invalid, "the schema refers to %.80q, which is no place in it", ref)
	}
	w.known[ref] = open
	n, err := w.weigh(node, depth+1)
	w.known[ref] = n
	return n, err
}

// pointed returns the place in a schema that a JSON pointer in a fragment names.
func pointed(root any, ref string) (any, bool) {
	path, ok := strings.CutPrefix(ref, "#")
	if !ok {
		return nil, false
	}
	path, err := url.PathUnescape(path)
	if err != nil {
		return nil, false
	}
	node := root
	if path == "" {
		return node, true
	}
	path, ok = strings.CutPrefix(path, "/")
	if !ok {
		return nil, false
	}
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	for step := range strings.SplitSeq(path, "/") {
		switch at := node.(type) {
		case map[string]any:
			if node, ok = at[unescape.Replace(step)]; !ok {
				return nil, false
			}
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(at) {
				return nil, false
			}
			node = at[i]
		default:
			return nil, false
		}
	}
	return node, true
}

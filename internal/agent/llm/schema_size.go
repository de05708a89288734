package llm

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// maxSchemaNodes is the maximum number of objects and lists in a schema with all references
// expanded.
const maxSchemaNodes = 20_000

// checkSchemaSize reports Invalid for a schema that would make validation very slow
// or endless: a recursive schema, or one that is large when its references are expanded.
// References to other documents are Invalid too.
func checkSchemaSize(root any) error {
	w := schemaCounter{root: root, counts: map[string]int{}}
	n, err := w.count(root, 0)
	if err == nil && n > maxSchemaNodes {
		err = engi.Errorf(engi.Invalid, "the schema has more than %d parts when its references are expanded", maxSchemaNodes)
	}
	return err
}

// A schemaCounter counts the nodes of a schema. It counts every object and list
// as a schema, which can only make the count too high.
type schemaCounter struct {
	root   any
	counts map[string]int // counts by reference; inProgress during the counting
}

const (
	inProgress     = -1
	maxSchemaDepth = 200
)

func (c *schemaCounter) count(node any, depth int) (int, error) {
	if depth > maxSchemaDepth {
		return 0, engi.Errorf(engi.Invalid, "the schema is more than %d levels deep", maxSchemaDepth)
	}
	total := 1
	add := func(child any) error {
		n, err := c.count(child, depth+1)
		total = min(total+n, maxSchemaNodes+1)
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
				n, err := c.countReference(ref, depth)
				if err != nil {
					return 0, err
				}
				total = min(total+n, maxSchemaNodes+1)
			default:
				if err := add(child); err != nil {
					return 0, err
				}
			}
		}
	}
	return total, nil
}

// countReference counts the nodes of the target of a reference.
func (c *schemaCounter) countReference(ref string, depth int) (int, error) {
	switch n, ok := c.counts[ref]; {
	case ok && n == inProgress:
		return 0, engi.Errorf(engi.Invalid, "the schema is recursive at %.80q, which is not supported", ref)
	case ok:
		return n, nil
	}
	node, ok := resolvePointer(c.root, ref)
	if !ok {
		return 0, engi.Errorf(engi.Invalid, "the schema refers to %.80q, which it does not contain", ref)
	}
	c.counts[ref] = inProgress
	n, err := c.count(node, depth+1)
	c.counts[ref] = n
	return n, err
}

// resolvePointer returns the target of a URL fragment with a JSON
// pointer.
func resolvePointer(root any, ref string) (any, bool) {
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

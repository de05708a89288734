package request

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxCondition = 4 << 10
	maxValues    = 200     // maximum number of values of a list in a condition
	maxSteps     = 16      // maximum number of steps of a path
	maxDepth     = 100     // maximum depth of a body
	maxMembers   = 10_000  // maximum number of members of one object of a body, since all keys of an object are remembered
	maxWork      = 4 << 20 // maximum number of comparisons of values with conditions, in pieces of 64 bytes
)

// evaluating bounds the number of long bodies judged at once, to save memory.
var evaluating = make(chan struct{}, 2)

// Operators of conditions.
const (
	absent  = "absent"
	present = "present"
	in      = "in"
	notIn   = "not_in"
	most    = "max"
	keys    = "keys"
)

// A condition is a statement that must hold for a body.
type condition struct {
	text, path, op string
	values         []scalar
	max            float64
}

// A scalar is a string, a number or a literal of JSON.
type scalar struct {
	kind   jsontext.Kind
	text   string // text of a string
	number float64
}

// A node stands for the values at one path, in the tree of the paths of all conditions.
type node struct {
	here   []int32          // conditions on these values
	all    []int32          // conditions on these values and all values within
	keys   map[string]*node // members of objects
	folded map[string]bool  // keys in the form that fold returns
	each   *node            // elements of arrays
}

// condition returns the number of a condition, which it adds if it is new.
func (s *Set) condition(text string) (int32, *engi.Error) {
	if n, ok := s.known[text]; ok {
		return n, nil
	}
	const form = `write PATH absent, PATH present, PATH in ["a", "b-*"], PATH not_in ["c"], PATH max 4096 or PATH keys ["a", "b"], the path as in tools[*].type, **.type or $`
	bad := func(problem string) (int32, *engi.Error) {
		return 0, engi.Errorf(engi.Invalid, "%q %s", clip.Text(text, maxShown), problem).WithRemedy("%s", form)
	}
	if s.sum += len(text); len(text) > maxCondition || s.sum > maxConditionSum {
		return bad("is too long, or the policy has too many of them")
	}
	c := condition{text: text}
	var operand string
	c.path, operand, _ = strings.Cut(text, " ")
	c.op, operand, _ = strings.Cut(strings.TrimSpace(operand), " ")
	operand = strings.TrimSpace(operand)
	steps, deep, ok := parsePath(c.path)
	if !ok {
		return bad("has a bad path")
	}
	switch c.op {
	case absent, present:
		if operand != "" {
			return bad("has something after " + c.op)
		}
		if c.op == absent && len(steps) == 0 || c.op == present && (deep || len(steps) == 0 || slices.Contains(steps, "")) {
			return bad("can never mean anything: " + c.op + " is for one member")
		}
	case in, notIn, keys:
		var problem string
		if c.values, problem = parseList(operand); problem != "" {
			return bad(problem)
		}
		if c.op == keys && slices.ContainsFunc(c.values, func(v scalar) bool { return v.kind != '"' }) {
			return bad("has a key that is not a string")
		}
	case most:
		var err error
		if c.max, err = strconv.ParseFloat(operand, 64); err != nil || strings.Trim(operand, "0123456789.") != "" {
			return bad("has a bad number")
		}
	default:
		return bad("has an unknown operator")
	}
	n := int32(len(s.conditions))
	s.conditions = append(s.conditions, c)
	if s.known == nil {
		s.known, s.root, s.deep = map[string]int32{}, &node{}, &node{}
	}
	s.known[text] = n
	at := s.root
	if deep {
		at = s.deep
	}
	at.all = append(at.all, n)
	for _, step := range steps {
		at = at.child(step)
		at.all = append(at.all, n)
	}
	at.here = append(at.here, n)
	return n, nil
}

// child returns the node for a step. An empty step means the elements of an array.
func (n *node) child(step string) *node {
	if step == "" {
		if n.each == nil {
			n.each = &node{}
		}
		return n.each
	}
	if n.keys == nil {
		n.keys, n.folded = map[string]*node{}, map[string]bool{}
	}
	if n.keys[step] == nil {
		n.keys[step], n.folded[string(fold([]byte(step)))] = &node{}, true
	}
	return n.keys[step]
}

// parsePath parses $ or [**.]KEY{.KEY|[*]}.
func parsePath(text string) (steps []string, deep, ok bool) {
	if text == "$" {
		return nil, false, true
	}
	text, deep = strings.CutPrefix(text, "**.")
	for part := range strings.SplitSeq(text, ".") {
		key := strings.TrimRight(part, "[*]")
		elements := part[len(key):]
		if strings.Trim(key, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-$@") != "" || strings.ReplaceAll(elements, "[*]", "") != "" ||
			key == "" && (deep || len(steps) > 0 || elements == "") {
			return nil, false, false
		}
		if key != "" {
			steps = append(steps, key)
		}
		for range len(elements) / len("[*]") {
			steps = append(steps, "")
		}
	}
	return steps, deep, len(steps) <= maxSteps
}

// parseList parses a JSON array of scalars.
func parseList(text string) (list []scalar, problem string) {
	dec := jsontext.NewDecoder(strings.NewReader(text))
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '[' {
		return nil, "has no list in JSON"
	}
	for {
		t, err := dec.ReadToken()
		if err != nil {
			return nil, "has a bad list in JSON"
		}
		if t.Kind() == ']' {
			break
		}
		v, ok := scalarOf(t)
		if !ok || v.kind == 'n' {
			return nil, "has a list of something other than strings, numbers, true and false"
		}
		list = append(list, v)
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return nil, "has something after its list"
	}
	if len(list) == 0 || len(list) > maxValues {
		return nil, fmt.Sprintf("has a list of %d values; 1 to %d can be", len(list), maxValues)
	}
	return list, ""
}

func scalarOf(t jsontext.Token) (v scalar, ok bool) {
	v.kind, ok = t.Kind(), true
	switch v.kind {
	case '"':
		v.text = t.String()
	case '0':
		var err error
		v.number, err = strconv.ParseFloat(t.String(), 64)
		ok = err == nil
	case 't', 'f', 'n':
	default:
		ok = false
	}
	return v, ok
}

// A breach reports whether a body breaks a condition, with details if known.
type breach struct {
	is     bool
	detail string
}

// why describes a breach.
func (s *Set) why(c int32, b breach) string {
	return fmt.Sprintf("the body breaks %q", clip.Text(s.conditions[c].text, maxShown)) + b.detail
}

// evaluate returns the breach of each condition by a body. It reports Denied
// for a body that is not JSON or that servers could read differently.
func (s *Set) evaluate(body []byte) ([]breach, error) {
	if len(body) > 64<<10 {
		evaluating <- struct{}{}
		defer func() { <-evaluating }()
	}
	e := evaluation{set: s, dec: jsontext.NewDecoder(bytes.NewBuffer(body)), broken: make([]breach, len(s.conditions))}
	for i := range s.conditions {
		e.broken[i].is = s.conditions[i].op == present
	}
	kind := e.dec.PeekKind()
	var err error
	if kind != '{' && kind != '[' {
		err = faulty("is neither an object nor an array")
	} else {
		err = e.value([]*node{s.root}, 0)
	}
	if e.work > maxWork {
		err = errWork
	}
	if err == nil {
		if _, end := e.dec.ReadToken(); end != io.EOF {
			err = faulty("has something after its value, or is not JSON")
		}
	}
	if err != nil {
		if _, known := err.(*engi.Error); !known {
			err = faulty("is not JSON as everybody reads it: " + clip.Text(err.Error(), maxShown))
		}
		return nil, err
	}
	return e.broken, nil
}

var errWork = faulty("is too much work to be judged")

func faulty(problem string) error {
	return engi.Errorf(engi.Denied, "the body %s", problem).WithRemedy("send one value of JSON in UTF-8, with each key once")
}

type evaluation struct {
	set    *Set
	dec    *jsontext.Decoder
	broken []breach
	failed map[*node]bool // nodes whose conditions are all broken
	work   int
}

// fail marks all conditions on the values of a node, and on values within, as broken.
func (e *evaluation) fail(n *node, detail string) {
	if e.failed[n] {
		return
	}
	if e.failed == nil {
		e.failed = map[*node]bool{}
	}
	e.failed[n] = true
	for _, c := range n.all {
		e.broken[c] = breach{true, detail}
	}
}

// value judges the next value, whose path is that of every node in nodes.
func (e *evaluation) value(nodes []*node, depth int) error {
	kind := e.dec.PeekKind()
	if depth > maxDepth {
		return faulty(fmt.Sprintf("is nested deeper than %d levels", maxDepth))
	}
	judged := slices.ContainsFunc(nodes, func(n *node) bool { return len(n.here) > 0 })
	if kind != '{' && kind != '[' && !judged {
		return e.dec.SkipValue()
	}
	t, err := e.dec.ReadToken()
	if err != nil {
		return err
	}
	if judged {
		v, scalar := scalarOf(t)
		for _, n := range nodes {
			for _, c := range n.here {
				e.work += 1 + len(e.set.conditions[c].values)*(1+len(v.text)/64)
				if e.work > maxWork {
					break
				}
				e.judge(c, v, scalar)
			}
		}
	}
	switch kind {
	case '{':
		return e.object(nodes, depth)
	case '[':
		return e.array(nodes, depth)
	}
	return nil
}

func (e *evaluation) array(nodes []*node, depth int) error {
	var within []*node
	for _, n := range nodes {
		for _, child := range n.keys { // some servers take [x] for x
			e.fail(child, ", with an array in place of an object")
		}
		if n.each != nil {
			within = append(within, n.each)
		}
	}
	for e.dec.PeekKind() != ']' {
		if e.work > maxWork {
			return errWork
		}
		if err := e.value(within, depth+1); err != nil {
			return err
		}
	}
	_, err := e.dec.ReadToken()
	return err
}

func (e *evaluation) object(nodes []*node, depth int) error {
	for _, n := range nodes {
		if n.each != nil { // some servers take {"0": x} for [x]
			e.fail(n.each, ", with an object in place of an array")
		}
	}
	var buffer [8]*node
	for members := 1; e.dec.PeekKind() != '}'; members++ {
		if members > maxMembers || e.work > maxWork {
			return errWork
		}
		key, err := e.dec.ReadValue()
		if err != nil {
			return err
		}
		if bytes.IndexByte(key, '\\') < 0 {
			key = key[1 : len(key)-1]
		} else if key, err = jsontext.AppendUnquote(nil, key); err != nil {
			return err
		} else if bytes.IndexByte(key, 0) >= 0 {
			return faulty("has a key with a NUL")
		}
		within := buffer[:0]
		for _, n := range nodes {
			within = e.member(within, n, key)
		}
		if err := e.value(e.member(within, e.set.deep, key), depth+1); err != nil {
			return err
		}
	}
	_, err := e.dec.ReadToken()
	return err
}

// member judges a key of an object at the path of n, and appends the node of its
// value, if there is one, to within.
func (e *evaluation) member(within []*node, n *node, key []byte) []*node {
	for _, c := range n.here {
		k := &e.set.conditions[c]
		if e.work += 1 + len(k.values); e.work > maxWork {
			break
		}
		if k.op == keys && !slices.ContainsFunc(k.values, func(v scalar) bool { return v.text == string(key) }) {
			e.broken[c] = breach{true, fmt.Sprintf(", with the key %q", clip.Text(string(key), maxShown))}
		}
	}
	if n.keys == nil {
		return within
	}
	if child := n.keys[string(key)]; child != nil {
		return append(within, child)
	}
	if folded := fold(key); n.folded[string(folded)] {
		for name, child := range n.keys {
			if !e.failed[child] && bytes.Equal(fold([]byte(name)), folded) {
				e.fail(child, fmt.Sprintf(", with the key %q, which servers could take for %q", clip.Text(string(key), maxShown), name))
			}
		}
	}
	return within
}

// judge judges a value by a condition on it. Unless the value is a scalar, v has only its
// kind.
// Null counts as absent.
func (e *evaluation) judge(n int32, v scalar, isScalar bool) {
	c := &e.set.conditions[n]
	if isScalar && v.kind == 'n' {
		return
	}
	ok := false
	switch c.op {
	case present:
		e.broken[n].is = false
		return
	case keys:
		ok = v.kind == '{' // the keys are judged one by one
	case in:
		ok = isScalar && slices.ContainsFunc(c.values, func(o scalar) bool { return o.is(v) })
	case notIn:
		plain := strings.ToLower(strings.TrimSpace(v.text))
		ok = isScalar && !strings.ContainsFunc(v.text, func(r rune) bool { return r < ' ' }) && !slices.ContainsFunc(c.values, func(o scalar) bool {
			return o.is(v) || o.kind == '"' && v.kind == '"' && glob(strings.ToLower(o.text), plain)
		})
	case most:
		ok = isScalar && v.kind == '0' && v.number >= 0 && v.number <= c.max // -1 is often no limit
	}
	if !ok {
		e.broken[n] = breach{is: true}
	}
}

// is reports whether a value matches o, where * in the text of o matches any text.
func (o scalar) is(v scalar) bool {
	if o.kind != v.kind {
		return false
	}
	switch o.kind {
	case '"':
		return glob(o.text, v.text)
	case '0':
		return o.number == v.number
	}
	return true
}

// fold returns the common form of a key and all keys that lenient servers take for the
// same key: lower case, without dashes and underscores.
func fold(key []byte) []byte {
	for _, b := range key {
		if b >= utf8.RuneSelf || b >= 'A' && b <= 'Z' || b == '_' || b == '-' {
			return bytes.Map(func(r rune) rune {
				if r == '_' || r == '-' {
					return -1
				}
				return unicode.ToLower(unicode.ToUpper(r))
			}, key)
		}
	}
	return key
}

package markup

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// Allowed elements and attributes. Names are separated by spaces; an element has the attributes
// after its name and the common ones.
var (
	htmlElements = elements(
		everything,
		"a href target rel hreflang", "abbr", "address", "article", "aside", "b", "bdi", "bdo", "blockquote", "br",
		"button type name value disabled", "caption", "cite", "code", "col span", "colgroup span", "data value",
		"datalist", "dd", "del datetime", "details open", "dfn", "div", "dl", "dt", "em", "fieldset name disabled",
		"figcaption", "figure", "footer", "form novalidate autocomplete", "h1", "h2", "h3", "h4", "h5", "h6", "header",
		"hgroup", "hr", "i", "img src alt width height loading decoding",
		"input type name value placeholder checked disabled readonly required min max step minlength maxlength pattern multiple size list autocomplete inputmode",
		"ins datetime", "kbd", "label for", "legend", "li value", "main", "mark", "menu",
		"meter value min max low high optimum", "nav", "ol start type reversed", "optgroup label disabled",
		"option value selected disabled label", "output for name", "p", "pre", "progress value max", "q", "rp", "rt", "ruby",
		"s", "samp", "section", "select name multiple size disabled required autocomplete", "small", "span", "strong", "sub",
		"summary", "sup", "table", "tbody", "td colspan rowspan headers",
		"textarea name placeholder rows cols disabled readonly required minlength maxlength wrap autocomplete inputmode",
		"tfoot", "th colspan rowspan headers scope abbr", "thead", "time datetime", "tr", "u", "ul", "var", "wbr",
	)
	everything = "id class style title lang dir role hidden tabindex translate spellcheck"

	svgElements = elements(
		"id class style lang role tabindex transform opacity fill fill-opacity fill-rule stroke stroke-width stroke-opacity "+
			"stroke-linecap stroke-linejoin stroke-miterlimit stroke-dasharray stroke-dashoffset vector-effect shape-rendering "+
			"color visibility font-family font-size font-weight font-style letter-spacing text-anchor text-decoration "+
			"dominant-baseline alignment-baseline",
		"svg viewBox width height x y preserveAspectRatio", "g", "defs", "path d pathLength", "rect x y width height rx ry",
		"circle cx cy r", "ellipse cx cy rx ry", "line x1 y1 x2 y2", "polyline points", "polygon points",
		"text x y dx dy rotate textLength lengthAdjust", "tspan x y dx dy rotate textLength lengthAdjust",
		"linearGradient x1 y1 x2 y2 gradientUnits gradientTransform spreadMethod",
		"radialGradient cx cy r fx fy fr gradientUnits gradientTransform spreadMethod", "stop offset stop-color stop-opacity",
		"title", "desc",
	)

	// dropped lists elements that are removed with their content; other forbidden elements are replaced by their content.
	dropped = words("applet audio base canvas embed frame frameset head iframe link math meta noembed noframes noscript " +
		"object param plaintext portal fencedframe script source style template title track video xmp")

	// clobbering lists the properties of a form that a field with the same name would hide from scripts.
	// No allowed element can hide properties of the document.
	clobbering = words("__proto__ addEventListener after append appendChild attachShadow attributes baseURI before " +
		"checkValidity childElementCount childNodes children className classList click cloneNode closest " +
		"compareDocumentPosition constructor contains dataset dispatchEvent elements firstChild firstElementChild focus getAttribute " +
		"getAttributeNames getAttributeNS getAttributeNode getBoundingClientRect getElementsByClassName getElementsByTagName getRootNode " +
		"hasAttribute hasAttributes hasChildNodes hasOwnProperty innerHTML innerText insertAdjacentElement insertAdjacentHTML " +
		"insertAdjacentText insertBefore isConnected isEqualNode isPrototypeOf isSameNode lastChild lastElementChild length localName " +
		"lookupPrefix matches moveBefore namespaceURI nextElementSibling nextSibling nodeName nodeType nodeValue normalize onclick " +
		"onerror onload onreset onsubmit outerHTML outerText ownerDocument parentElement parentNode prepend " +
		"previousElementSibling previousSibling propertyIsEnumerable prototype querySelector querySelectorAll remove removeAttribute " +
		"removeAttributeNS removeAttributeNode removeChild removeEventListener replaceChild replaceChildren replaceWith reportValidity " +
		"requestSubmit reset scrollIntoView setAttribute setAttributeNS setAttributeNode setHTMLUnsafe shadowRoot style submit tagName " +
		"textContent toggleAttribute toString valueOf")

	urlSchemes = words("http https mailto tel")

	// Attributes with a fixed set of values.
	enumerated = map[string]map[string]bool{
		"button type":  words("button submit reset"),
		"input type":   words("text number email tel url search checkbox radio range date time datetime-local month week color hidden submit button reset"),
		"ol type":      words("1 a A i I"),
		"target":       words("_blank"),
		"autocomplete": words("on off"),
	}

	transforms = words("transform gradientTransform")

	dataName    = regexp.MustCompile(`^(data|aria)-[a-z][a-z0-9_.-]{0,63}$`)
	imageData   = regexp.MustCompile(`^data:image/(png|jpeg|gif|webp|avif);base64,[A-Za-z0-9+/]+={0,2}$`)
	paintServer = regexp.MustCompile(`^url\(#[A-Za-z][\w-]*\)$`)
)

func words(s string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(s) {
		set[w] = true
	}
	return set
}

// lists returns sets of words, by the first word of each list.
func lists(all ...string) map[string]map[string]bool {
	m := map[string]map[string]bool{}
	for _, list := range all {
		name, rest, _ := strings.Cut(list, " ")
		m[name] = words(rest)
	}
	return m
}

func elements(common string, all ...string) map[string]map[string]bool {
	m := lists(all...)
	for _, attrs := range m {
		maps.Copy(attrs, words(common))
	}
	return m
}

// sanitize removes forbidden content of parent. Content in a forbidden place
// moves up or is removed; the first reason is returned.
func (s scope) sanitize(parent *html.Node) (why error) {
	note := func(err error) {
		if why == nil {
			why = err
		}
	}
	for n := parent.FirstChild; n != nil; {
		next := n.NextSibling
		switch n.Type {
		case html.TextNode:
			n.Data = clean(n.Data)
			if err := s.text(n.Data); n.Data == "" || err != nil {
				note(err)
				parent.RemoveChild(n)
			}
		case html.ElementNode:
			if allowed(n) == nil {
				// Names of SVG or MathML have another meaning in HTML.
				if n.Namespace == "" && !dropped[n.Data] {
					if first := n.FirstChild; first != nil {
						next = first
						for k := first; k != nil; k = n.FirstChild {
							n.RemoveChild(k)
							parent.InsertBefore(k, n)
						}
					}
				}
				parent.RemoveChild(n)
				break
			}
			in, err := s.enter(n)
			if err != nil {
				note(err)
				parent.RemoveChild(n)
				break
			}
			n.Attr = attributes(n)
			note(in.sanitize(n))
		default:
			parent.RemoveChild(n)
		}
		n = next
	}
	return why
}

// allowed returns the attributes that n may have; nil if n itself is forbidden.
func allowed(n *html.Node) map[string]bool {
	switch n.Namespace {
	case "":
		return htmlElements[n.Data]
	case "svg":
		return svgElements[n.Data]
	}
	return nil
}

// attributes returns the allowed attributes of n, ordered by name, because the parser keeps no order.
func attributes(n *html.Node) []html.Attribute {
	kept := n.Attr[:0]
	for _, a := range n.Attr {
		if v, ok := attribute(n, a.Key, a.Val); ok && a.Namespace == "" {
			a.Val = v
			kept = append(kept, a)
		}
	}
	slices.SortStableFunc(kept, byName)
	return slices.CompactFunc(kept, func(a, b html.Attribute) bool { return a.Key == b.Key })
}

func byName(a, b html.Attribute) int { return strings.Compare(a.Key, b.Key) }

// attribute returns the allowed form of an attribute's value.
func attribute(n *html.Node, name, value string) (string, bool) {
	if !allowed(n)[name] && !dataName.MatchString(name) || len(value) > maxAttr {
		return "", false
	}
	value = clean(value)
	if set := enumerated[n.Data+" "+name]; set != nil {
		v := value
		if n.Data != "ol" {
			v = lowerASCII(v)
		}
		return v, set[v]
	}
	if set := enumerated[name]; set != nil {
		v := lowerASCII(value)
		return v, set[v]
	}
	switch name {
	case "id", "name":
		return value, !clobbering[value]
	case "style":
		return parseStyle(value).String(), true
	case "href":
		return link(value)
	case "src":
		return image(value)
	}
	// Most SVG attributes are CSS values.
	if n.Namespace == "svg" && !dataName.MatchString(name) && (strings.ContainsAny(value, `\`) || strings.Contains(value, "(") && !transforms[name] && !safeValue(value)) {
		return value, (name == "fill" || name == "stroke") && paintServer.MatchString(value)
	}
	return value, true
}

// clean removes control characters, which are meaningless in text and which programs read
// differently.
func clean(s string) string {
	if strings.IndexFunc(s, control) < 0 {
		return s
	}
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\r':
			return '\n'
		case control(r):
			return -1
		}
		return r
	}, s)
}

func control(r rune) bool { return r < ' ' && r != '\n' && r != '\t' || r == 0x7f }

// link returns the normal form of a URL that a link may have.
func link(s string) (string, bool) {
	s = bare(s)
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "" && !urlSchemes[strings.ToLower(u.Scheme)] {
		return "", false
	}
	// Browsers find a scheme before the first colon, even where url.Parse finds none.
	if before, _, ok := strings.Cut(s, ":"); ok && u.Scheme == "" && !strings.ContainsAny(before, "/?#") {
		return "", false
	}
	return s, true
}

// image returns the normal form of a URL that a browser may load by itself. Such URLs reveal
// nothing about the page to other servers.
func image(s string) (string, bool) {
	s = bare(s)
	if imageData.MatchString(s) {
		return s, true
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "" || u.Host != "" || strings.Contains(s, `\`) || strings.HasPrefix(s, "//") {
		return "", false
	}
	if before, _, ok := strings.Cut(s, ":"); ok && !strings.ContainsAny(before, "/?#") {
		return "", false
	}
	return s, s != ""
}

// bare removes characters that browsers ignore in URLs.
func bare(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == '\t' || r == '\n' || r == '\r' {
			return -1
		}
		return r
	}, s)
	return strings.TrimFunc(s, func(r rune) bool { return r <= ' ' })
}

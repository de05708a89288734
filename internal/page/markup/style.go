package markup

import (
	"regexp"
	"strings"
)

// A style holds the declarations of a style attribute, in order.
type style []declaration

type declaration struct{ property, value string }

// Allowed properties affect only the page itself: none loads anything, and none positions
// relative to the window.
var properties = words("accent-color align-content align-items align-self aspect-ratio background background-color background-image " +
	"background-position background-repeat background-size border border-bottom border-bottom-color border-bottom-left-radius " +
	"border-bottom-right-radius border-bottom-style border-bottom-width border-collapse border-color border-left border-left-color " +
	"border-left-style border-left-width border-radius border-right border-right-color border-right-style border-right-width " +
	"border-spacing border-style border-top border-top-color border-top-left-radius border-top-right-radius border-top-style " +
	"border-top-width border-width bottom box-shadow box-sizing caption-side clear color column-count column-gap column-rule columns cursor direction " +
	"display fill fill-opacity flex flex-basis flex-direction flex-flow flex-grow flex-shrink flex-wrap float font font-family " +
	"font-size font-style font-variant font-variant-numeric font-weight gap grid grid-area grid-auto-columns grid-auto-flow grid-auto-rows " +
	"grid-column grid-column-end grid-column-start grid-row grid-row-end grid-row-start grid-template grid-template-areas grid-template-columns " +
	"grid-template-rows height hyphens inset justify-content justify-items justify-self left letter-spacing line-height list-style " +
	"list-style-position list-style-type margin margin-block margin-bottom margin-inline margin-left margin-right margin-top max-height max-width min-height " +
	"min-width object-fit object-position opacity order outline outline-color outline-offset outline-style outline-width overflow overflow-wrap " +
	"overflow-x overflow-y padding padding-block padding-bottom padding-inline padding-left padding-right padding-top place-content place-items " +
	"place-self pointer-events position resize right rotate row-gap scale stroke stroke-dasharray stroke-dashoffset stroke-linecap " +
	"stroke-linejoin stroke-opacity stroke-width tab-size table-layout text-align text-anchor text-decoration text-decoration-color " +
	"text-decoration-line text-decoration-style text-indent text-overflow text-shadow text-transform top transform transform-origin " +
	"transition translate user-select vertical-align visibility white-space width word-break word-spacing z-index")

var (
	functions = words("rgb rgba hsl hsla hwb lab lch oklab oklch color-mix calc min max clamp var linear-gradient radial-gradient conic-gradient " +
		"repeating-linear-gradient repeating-radial-gradient repeat minmax fit-content translate translatex translatey scale " +
		"scalex scaley rotate skew skewx skewy matrix cubic-bezier steps")
	valuePattern    = regexp.MustCompile(`^[A-Za-z0-9#%.,()\s+*/'"_-]*$`)
	functionPattern = regexp.MustCompile(`([A-Za-z_-][A-Za-z0-9_-]*)?\(`)
	customPattern   = regexp.MustCompile(`^--[A-Za-z][A-Za-z0-9_-]{0,63}$`)
)

// parseStyle parses a style attribute and drops forbidden declarations.
func parseStyle(s string) style {
	var st style
	for d := range strings.SplitSeq(s, ";") {
		if name, value, ok := strings.Cut(d, ":"); ok {
			if name, value, ok = property(name, value); ok {
				st.set(name, value)
			}
		}
	}
	return st
}

// property returns a declaration in its normal form, if it is allowed.
func property(name, value string) (string, string, bool) {
	name = strings.Trim(name, space)
	if !strings.HasPrefix(name, "--") {
		name = lowerASCII(name)
	}
	value = strings.Join(strings.FieldsFunc(value, isSpace), " ")
	if !properties[name] && !customPattern.MatchString(name) || value == "" || !safeValue(value) {
		return "", "", false
	}
	if name == "position" {
		switch lowerASCII(value) {
		case "static", "relative", "absolute":
		default:
			return "", "", false
		}
	}
	return name, value, true
}

// safeValue reports whether a CSS value calls only functions that compute,
// and cannot reach beyond its apparent end.
func safeValue(v string) bool {
	if len(v) > 1024 || !valuePattern.MatchString(v) || strings.Contains(v, "/*") || strings.Contains(v, "//") {
		return false
	}
	for _, m := range functionPattern.FindAllStringSubmatch(v, -1) {
		if m[1] != "" && !functions[lowerASCII(m[1])] {
			return false
		}
	}
	depth := 0
	var quote rune
	for _, r := range v {
		switch {
		case quote != 0:
			if r == quote {
				quote = 0
			}
		case r == '"' || r == '\'':
			quote = r
		case r == '(':
			depth++
		case r == ')':
			if depth--; depth < 0 {
				return false
			}
		}
	}
	return depth == 0 && quote == 0
}

func (st *style) set(name, value string) {
	for i := range *st {
		if (*st)[i].property == name {
			(*st)[i].value = value
			return
		}
	}
	*st = append(*st, declaration{name, value})
}

func (st *style) remove(name string) {
	for i := range *st {
		if (*st)[i].property == name {
			*st = append((*st)[:i], (*st)[i+1:]...)
			return
		}
	}
}

// String formats a style like browsers do.
func (st style) String() string {
	var b strings.Builder
	for i, d := range st {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(d.property + ": " + d.value + ";")
	}
	return b.String()
}

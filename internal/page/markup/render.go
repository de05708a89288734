package markup

import (
	"strings"

	"golang.org/x/net/html"
)

// escape writes escaped text like browsers do. Escapes that attributes do not need are harmless there.
func escape(b *strings.Builder, s string) {
	from := 0
	for i := 0; i < len(s); i++ {
		as, n := "", 1
		switch s[i] {
		case '&':
			as = "&amp;"
		case '<':
			as = "&lt;"
		case '>':
			as = "&gt;"
		case 0xC2: // first byte of a no-break space
			if i+1 < len(s) && s[i+1] == 0xA0 {
				as, n = "&nbsp;", 2
			}
		}
		if as != "" {
			b.WriteString(s[from:i])
			b.WriteString(as)
			from = i + n
			i += n - 1
		}
	}
	b.WriteString(s[from:])
}

// render writes the content of a sanitized element like browsers do.
func render(b *strings.Builder, parent *html.Node) {
	for n := parent.FirstChild; n != nil; n = n.NextSibling {
		if n.Type == html.TextNode {
			escape(b, n.Data)
			continue
		}
		tag(b, n)
		if n.Namespace == "" && void[n.Data] {
			continue
		}
		render(b, n)
		b.WriteString("</")
		b.WriteString(n.Data)
		b.WriteByte('>')
	}
}

// tag writes the start tag of an element. After some tags, parsers drop the first line end.
func tag(b *strings.Builder, n *html.Node) {
	b.WriteByte('<')
	b.WriteString(n.Data)
	for _, a := range n.Attr {
		b.WriteByte(' ')
		b.WriteString(a.Key)
		b.WriteString(`="`)
		for i, part := range strings.Split(a.Val, `"`) {
			if i > 0 {
				b.WriteString("&quot;")
			}
			escape(b, part)
		}
		b.WriteString(`"`)
	}
	b.WriteString(">")
	if n.Namespace == "" && (n.Data == "pre" || n.Data == "textarea") && n.FirstChild != nil && strings.HasPrefix(n.FirstChild.Data, "\n") {
		b.WriteString("\n")
	}
}

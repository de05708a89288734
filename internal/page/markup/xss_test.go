package markup_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/page/markup"
	"golang.org/x/net/html"
)

// A vector is an attempt of a page to run a script, or to send a request to another server.
// Tests in browsers use the same file.
type vector struct {
	Name    string           `json:"name"`
	HTML    string           `json:"html"`
	Start   string           `json:"start"`
	Patches []engi.PagePatch `json:"patches"`
}

func vectors(t testing.TB) []vector {
	t.Helper()
	f, err := os.Open("testdata/xss.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []vector
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var v vector
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		all = append(all, v)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestVectors(t *testing.T) {
	all := vectors(t)
	if len(all) < 200 {
		t.Errorf("%d vectors, want 200", len(all))
	}
	for _, v := range all {
		shown := markup.NewPage(v.HTML)
		if v.Patches != nil {
			shown = markup.NewPage(v.Start)
			applied, _ := shown.Apply(v.Patches)
			for _, p := range applied {
				for _, part := range []*string{p.HTML, p.Append, p.Prepend, p.Before, p.After, p.Replace} {
					if part != nil {
						if err := harmless(*part); err != nil {
							t.Errorf("%s: an applied patch has %v", v.Name, err)
						}
					}
				}
			}
		}
		got := shown.HTML()
		if err := harmless(got); err != nil {
			t.Errorf("%s: %v\n%s", v.Name, err, got)
		}
		if again := markup.NewPage(got).HTML(); again != got {
			t.Errorf("%s: read again:\n%s\nwant\n%s", v.Name, again, got)
		}
	}
}

// harmless does not use the list of allowed elements. It reports parts of a document that may run or load
// something, however the document is parsed.
func harmless(page string) error {
	const wrong = " script style iframe frame frameset object embed applet base meta link title-html template noscript noembed noframes xmp plaintext " +
		"math portal fencedframe audio video source track picture canvas slot marquee bgsound keygen isindex foreignObject use animate animateTransform " +
		"animateMotion animateColor set discard image feImage handler mpath tref a-svg image-html "
	var bad error
	note := func(format string, args ...any) { bad = fmt.Errorf(format, args...) }
	for _, scripting := range []bool{true, false} {
		doc, err := html.ParseWithOptions(strings.NewReader(page), html.ParseOptionEnableScripting(scripting))
		if err != nil {
			return err
		}
		for n := range doc.Descendants() {
			switch n.Type {
			case html.CommentNode:
				note("a comment")
			case html.ElementNode:
				space := n.Namespace
				if space == "" {
					space = "html"
				}
				if strings.Contains(wrong, " "+n.Data+" ") || strings.Contains(wrong, " "+n.Data+"-"+space+" ") || strings.Contains(n.Data, "-") {
					note("<%s>", n.Data)
				}
				for _, a := range n.Attr {
					if why := wrongAttribute(n, a); why != "" {
						note("<%s %s=%q>: %s", n.Data, a.Key, a.Val, why)
					}
				}
			}
		}
	}
	return bad
}

func wrongAttribute(n *html.Node, a html.Attribute) string {
	name, value := strings.ToLower(a.Key), strings.ToLower(a.Val)
	field := strings.Contains(" button input select textarea output fieldset ", " "+n.Data+" ")
	switch {
	case a.Namespace != "":
		return "a namespace"
	case strings.HasPrefix(name, "on"):
		return "a handler"
	case strings.Contains(" action formaction srcdoc srcset ping is nonce slot background poster manifest xmlns http-equiv data code codebase usemap autofocus contenteditable popover popovertarget commandfor filter mask clip-path ", " "+name+" "):
		return "it does something"
	case name == "name" && !field:
		return "it names something of the document"
	case (name == "name" || name == "id") && strings.Contains(" attributes parentNode innerHTML getAttribute setAttribute removeAttribute removeChild children childNodes firstChild elements length submit reset nodeName tagName nodeType dataset classList style closest matches contains __proto__ constructor ", " "+a.Val+" "):
		return "it hides a property"
	case name == "type" && (value == "file" || value == "image" || value == "password"):
		return "it does something"
	case name == "target" && value != "_blank":
		return "it leads out of the frame"
	case name == "style" || n.Namespace == "svg" && !strings.HasPrefix(name, "data-") && !strings.Contains(" id class lang role ", " "+name+" "):
		loads := []string{"url(", "image-set(", "src(", "element(", "cross-fade(", "\\"}
		if name == "style" {
			loads = append(loads, "expression", "fixed", "sticky", "@", "/*", "<")
		}
		for _, w := range loads {
			if strings.Contains(value, w) && !(w == "url(" && strings.HasPrefix(value, "url(#") && strings.Count(value, "url(") == 1 && (name == "fill" || name == "stroke")) {
				return "it has " + w
			}
		}
	case name == "href" || name == "src":
		u, err := url.Parse(strings.TrimSpace(a.Val))
		if err != nil {
			return err.Error()
		}
		if name == "src" && (u.Host != "" || u.Scheme != "" && !strings.HasPrefix(a.Val, "data:image/") || strings.HasPrefix(value, "data:image/svg") || strings.Contains(value, "\\")) {
			return "it asks another server"
		}
		if !strings.Contains("  http https mailto tel ", " "+u.Scheme+" ") && name == "href" {
			return "it is no link"
		}
		for _, c := range a.Val {
			if c < ' ' {
				return "it has control characters"
			}
		}
	}
	return ""
}

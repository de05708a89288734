// Package markup has the pages that language models write and change. A [Parser] reads
// the lines of an answer while they come. A [Page] is a tree of HTML, to which lines
// are applied. Whatever is in a page is safe to show: a walk over the tree keeps
// elements, attributes and values that are on a list, and nothing else. The patches
// that [Page.Apply] returns make the same tree of a browser's page. The package has no
// files, no clock and no goroutines.
//
// All that models and users write is hostile: sizes, depth and counts have the bounds
// below, and time is linear in the input and in the size of the page.
package markup

import "github.com/engi-dev/engi/internal/engi"

// MaxJSON bounds a page as a string of JSON, in bytes: an event holds 256 KiB of JSON.
const MaxJSON = 240 << 10

// More bounds of pages.
const (
	maxLine     = 256 << 10 // bytes of a line
	maxPatches  = 1000      // of a line
	maxParts    = 100       // attributes, classes or styles of a patch
	maxSelector = 512       // bytes
	maxHTML     = 192 << 10 // bytes of a page
	maxNodes    = 20_000    // of a page
	maxDepth    = 256
	maxAttr     = 64 << 10 // bytes of the value of an attribute
)

func invalid(remedy, format string, args ...any) error {
	return engi.Errorf(engi.Invalid, format, args...).WithRemedy("%s", remedy)
}

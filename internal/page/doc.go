// Package page turns what a language model writes into a page that changes: it
// reads the lines of an answer while they come ([Parser]), keeps the page as a
// tree of HTML ([Page]) and applies patches to it. Whatever is in a page is safe to
// show: a walk over the tree keeps what is on a list, and nothing else. What
// [Page.Apply] returns makes the same tree of a browser's page.
//
// A [Service] keeps the pages of sessions. It has runs of agents answer what users do
// on them, and is a projection of the log of events: a run goes on, and a reader
// resumes, wherever the node was killed. It runs no models and has no tools itself
// (package agent), and no protocol for browsers (package rest).
//
// All that models and users write is hostile: sizes, depth and counts have the bounds
// below, and time is linear in what comes in and in the size of the page.
package page

import "github.com/engi-dev/engi/internal/engi"

// Bounds of pages. An event holds 256 KiB of JSON.
const (
	maxLine     = 256 << 10 // bytes of a line
	maxPatches  = 1000      // of a line
	maxParts    = 100       // attributes, classes or styles of a patch
	maxSelector = 512       // bytes
	maxHTML     = 192 << 10 // bytes of a page
	maxJSON     = 240 << 10 // bytes of a page as a string of JSON
	maxNodes    = 20_000    // of a page
	maxDepth    = 256
	maxAttr     = 64 << 10 // bytes of the value of an attribute
)

func invalid(remedy, format string, args ...any) error {
	return engi.Errorf(engi.Invalid, format, args...).WithRemedy("%s", remedy)
}
